"""Train one model together on the laptops, desktops and Jetsons in a room.

`from edgeagent import Trainer` is all a script needs. The import is lazy: the agent, a process of
its own, imports this package without ever importing torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["EdgeAgentError", "Trainer", "__version__"]

from edgeagent.errors import EdgeAgentError

if TYPE_CHECKING:
    from edgeagent.trainer import Trainer


def __getattr__(name: str) -> Any:
    if name == "Trainer":
        from edgeagent.trainer import Trainer

        return Trainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
