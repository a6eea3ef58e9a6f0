"""Trains layers whose backward pass sleeps between one layer and the next, on whole numbers.

Arguments: a file at which training ends as soon as it exists, or "-" for none; number of layers,
elements of each layer, seconds that a layer's backward takes.
Gradients and updates are whole multiples of a power of two and small, so every sum is exact in any
order: the result is the same bits on any devices, however often they come and go. The sleep stands
for computing without taking the processor from other agents. At the end it prints how often chunks
were announced before all were ready.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edgeagent import Trainer
from edgeagent.handover import ChunksReady
from edgeagent.trainer.client import AgentClient

END = Path(sys.argv[1])
LAYERS, ELEMENTS = int(sys.argv[2]), int(sys.argv[3])
SECONDS = float(sys.argv[4])
MOST = 13  # the greatest part of a gradient
announced = 0
send = AgentClient.send


def counting(speaker: AgentClient, message: Any) -> None:
    """Send a message of the trainer, and count it if it announces chunks."""
    global announced
    announced += isinstance(message, ChunksReady)
    send(speaker, message)


class Slow(torch.autograd.Function):
    """Passes its input on; backward takes `SECONDS`."""

    @staticmethod
    def forward(_: Any, value: torch.Tensor) -> torch.Tensor:
        """Return the value."""
        return value.view_as(value)

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient, some time later."""
        time.sleep(SECONDS)
        return gradient


slow: Any = Slow.apply


class Layer(nn.Module):
    """Adds its weights times whole numbers that depend on the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(ELEMENTS))

    def forward(self, total: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
        """Return the total with this layer's part."""
        pattern = torch.arange(ELEMENTS) * 7 + int(samples.sum()) * 31
        result: torch.Tensor = slow(total) + (self.weight * (pattern % MOST)).sum()
        return result


client: Any = AgentClient
client.send = counting
model = nn.ModuleList(Layer() for _ in range(LAYERS))
optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-6)
data = torch.utils.data.TensorDataset(torch.arange(4096))
trainer = Trainer(model, optimizer, global_batch=32, micro_batch=4)
for (samples,) in trainer.loader(data):
    total = torch.zeros(())
    for layer in model:
        total = layer(total, samples)
    total.backward()
    if trainer.update(total) and END.exists():
        trainer.stop()
print("announced", announced, flush=True)
