"""The shell of a node: it turns what happens into events, and does what the node wants done.

One part for each family of effects (`protocols/effects.py`), and the loop that joins them.
"""

from edgeagent.shell.loop import Shell
from edgeagent.shell.owner import Options, Owner

__all__ = ["Options", "Owner", "Shell"]
