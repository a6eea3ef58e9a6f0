"""Networks and data sets of the built-in jobs and the benchmarks.

This package imports torch, numpy and the standard library and nothing else of this project, so that
its networks can be used without the rest. The agent never imports it, because it does without
torch; built-in jobs import it when they are started.
"""
