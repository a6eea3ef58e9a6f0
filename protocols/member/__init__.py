"""One node of the cluster: how it iterates, deals with its trainer, joins and leaves.

`node.py` takes every event and hands it to the part that the event concerns; each part has a module
of its own here.
"""
