"""Tests of protocols."""
