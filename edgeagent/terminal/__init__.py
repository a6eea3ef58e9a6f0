"""What people read: the agent's lines, tables of its status, and how figures are put in words.

Modules here only show what others have decided. They never block the agent's loop, and text of a
peer is cleaned first, so that it cannot control a terminal.
"""
