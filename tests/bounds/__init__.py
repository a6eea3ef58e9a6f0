"""Bounds that need linear programs, and so scipy, which the planner may not use."""
