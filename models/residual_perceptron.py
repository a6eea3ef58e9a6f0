"""Perceptrons with a residual path around each, for any samples of one fixed size.

The neurons inside each block can be divided among devices, while the path around them stays whole.
So a device that trains few of the neurons still computes with all that the other blocks have made
of its input. Weights are drawn from torch's global generator, so seed it before it is built.
"""

from __future__ import annotations

from torch import Tensor, nn


class Residual(nn.Module):
    """Adds to its input, [N, width], what a perceptron of one hidden layer makes of it."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` and the perceptron's output added: float [N, width]."""
        out: Tensor = x + self.body(x)
        return out


def residual_perceptron(
    inputs: int, width: int, hidden: int, blocks: int, classes: int
) -> nn.Sequential:
    """Return a net of so many `blocks`: [N, ...] of `inputs` numbers to logits [N, classes].

    The path that leads around the blocks is `width` wide, and each block has `hidden` neurons.
    """
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, width),
        *(Residual(width, hidden) for _ in range(blocks)),
        nn.LayerNorm(width),
        nn.Linear(width, classes),
    )
