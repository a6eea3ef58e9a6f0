"""What a training script imports; runs in the script's process, beside torch.

The only package of edgeagent that imports torch.
"""

from __future__ import annotations

from edgeagent.trainer import subnets
from edgeagent.trainer.prepared import prepare
from edgeagent.trainer.trainer import Trainer

__all__ = ["Trainer", "prepare", "subnets"]
