"""Tests of edgeagent.planner."""
