"""Tests of edgeagent.planner.ways."""
