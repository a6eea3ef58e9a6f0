"""Finding peers, proving the token, and moving frames over authenticated links.

Law: this package authenticates, frames, bounds and queues; what frames mean is not its business.
"""
