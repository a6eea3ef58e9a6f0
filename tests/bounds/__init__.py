"""Bounds of summing gradients, with which tests and benchmarks compare plans and agents."""
