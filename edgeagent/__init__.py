"""Train one model together on the laptops, desktops and Jetsons in a room.

`from edgeagent import Trainer` is all a script needs, or `edgeagent.prepare` for a script in the
shape of DistributedDataParallel's; `edgeagent.subnets` says what of a model can be divided. The
import is lazy: the agent, a process of its own, imports this package without ever importing torch.
The command imports it before it can do anything about Ctrl+C, so it does without `typing`, too.
"""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["EdgeAgentError", "Trainer", "__version__", "prepare", "subnets"]

from edgeagent.errors import EdgeAgentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from edgeagent.trainer import Trainer, prepare, subnets


def __getattr__(name: str) -> Any:
    if name in ("Trainer", "prepare", "subnets"):
        from edgeagent.supported import check_system

        check_system()
        from edgeagent import trainer

        return getattr(trainer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
