"""Networks and data sets of the built-in jobs and the benchmarks.

Law: imports only torch, numpy and the standard library, nothing of ours. The agent's core never
imports this package; built-in jobs do, when they are asked for.
"""
