"""Bounds that need more than the planner may use: linear programs."""
