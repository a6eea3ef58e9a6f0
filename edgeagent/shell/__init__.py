"""The shell of a node: it turns what happens into events, and performs the node's effects.

There is one module for each family of effects (`protocols/effects.py`), and one for the loop that
connects them.
"""

from edgeagent.shell.loop import Shell
from edgeagent.shell.owner import Options, Owner, options_of

__all__ = ["Options", "Owner", "Shell", "options_of"]
