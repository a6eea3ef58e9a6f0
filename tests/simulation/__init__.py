"""Whole clusters in one process, time and network virtual."""
