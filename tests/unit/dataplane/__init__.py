"""Tests of edgeagent.dataplane."""
