"""Finding peers, proving the token, and moving frames over authenticated links.

This package authenticates, frames, bounds and queues. It never interprets the contents of frames,
because that is the task of `protocols` and the shell.
"""
