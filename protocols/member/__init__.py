"""One node: its iteration, its trainer, its joins and its leave.

`node.py` takes every event and hands it to the part that it concerns.
"""
