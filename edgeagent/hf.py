"""What a script that uses Hugging Face's transformers imports; needs the extra `hf`.

The import is lazy, as that of the package itself: the agent must not load torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgeagent.errors import UsageError

if TYPE_CHECKING:
    from edgeagent.trainer.frameworks.huggingface import EdgeTrainer

__all__ = ["EdgeTrainer"]


def __getattr__(name: str) -> Any:
    if name != "EdgeTrainer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from edgeagent.trainer.frameworks import huggingface
    except ModuleNotFoundError as error:
        raise UsageError(
            f"edgeagent.hf needs {error.name}: install edgeagent with the extra hf"
            " (pip install 'edgeagent[hf]')"
        ) from error
    return huggingface.EdgeTrainer
