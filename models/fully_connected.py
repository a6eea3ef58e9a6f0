"""A fully connected network of three layers, for any samples of one fixed size.

All its weights are in matrices, so it is the simplest network whose neurons can be divided among
devices. Weights are drawn from torch's global generator, so seed it before the network is built.
"""

from __future__ import annotations

from torch import nn


def fully_connected_net(inputs: int, hidden: int, classes: int) -> nn.Sequential:
    """Three linear layers with ReLU between: [N, ...] of `inputs` numbers to logits [N, classes].

    Both hidden layers are `hidden` wide, so it has
    `inputs * hidden + hidden * hidden + hidden * classes` weights, and a bias for each neuron.
    """
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )
