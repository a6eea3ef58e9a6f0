"""What an agent offers to its own user on its own device: its folder, its socket, its status.

Law: readable by that user only; nothing in this package is reachable from the network.
"""
