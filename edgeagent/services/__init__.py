"""Agents that the system starts by itself: their files, and what the system says of them."""
