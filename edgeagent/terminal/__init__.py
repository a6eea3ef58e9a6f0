"""What people read: the agent's lines, tables of its status, and how figures are put in words.

Law: nothing here decides anything, blocks the agent's loop or lets a peer's text steer a terminal.
"""
