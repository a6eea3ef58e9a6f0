"""Scenarios with real agent processes, judged only by what a user can see."""
