"""Whole clusters in one process, with virtual time and a virtual network."""
