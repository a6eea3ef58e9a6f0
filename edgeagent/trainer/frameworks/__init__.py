"""Other people's training loops, with the cluster's update in the place of theirs.

Each module needs a package that edgeagent itself does not: install the extra of its name.
"""
