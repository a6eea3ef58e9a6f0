"""What a script that uses Lightning imports; needs the extra `lightning`.

The import is lazy, as that of the package itself: the agent must not load torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgeagent.errors import UsageError

if TYPE_CHECKING:
    from edgeagent.trainer.frameworks.lightning import EdgeStrategy

__all__ = ["EdgeStrategy"]


def __getattr__(name: str) -> Any:
    if name != "EdgeStrategy":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from edgeagent.trainer.frameworks import lightning
    except ModuleNotFoundError as error:
        raise UsageError(
            f"edgeagent.lightning needs {error.name}: install edgeagent with the extra lightning"
            " (pip install 'edgeagent[lightning]')"
        ) from error
    return lightning.EdgeStrategy
