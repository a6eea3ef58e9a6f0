"""Independent subnets: each device trains another part of the model, as large as it is fast."""

from __future__ import annotations

from edgeagent.trainer.subnets.layers import (
    Blocks,
    Division,
    Layer,
    Piece,
    fully_connected,
    hidden,
    residual,
    transformer,
)

__all__ = [
    "Blocks",
    "Division",
    "Layer",
    "Piece",
    "fully_connected",
    "hidden",
    "residual",
    "transformer",
]
