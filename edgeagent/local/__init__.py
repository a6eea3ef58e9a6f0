"""What an agent offers to its own user on its own device: its folder, its socket, its status.

Only that user can read it, and nothing in this package can be reached over the network.
"""
