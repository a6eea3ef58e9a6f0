"""Tests of edgeagent.transport."""
