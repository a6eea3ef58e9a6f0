"""The script of `large_job.py` with many layers of 64 MiB and a small head.

Its arguments are how many layers there are, `frozen` or `trained`, and for how many seconds it
sleeps in each of the two micro-batches of a step, in the place of a computation that takes as long
on a processor of its own. Frozen layers are a
pretrained model to which an adapter is fitted: only two of them are computed with, because what a
large base costs is what this is about, and not what computing with it costs. Trained layers have
gradients of 64 MiB each, and AdamW remembers twice as much: with eight of them, state and gradients
have the size of those of GPT-2 with 124 million parameters.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

from edgeagent import Trainer

WIDTH = 4096
COMPUTED_IF_FROZEN = 2


class Layers(nn.Module):
    """A base of large layers, and a head that is trained."""

    def __init__(self, layers: int, *, trained: bool) -> None:
        super().__init__()
        self.base = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers))
        self.base.requires_grad_(trained)
        self.computed = layers if trained else COMPUTED_IF_FROZEN
        self.head = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        for layer in self.base[: self.computed]:
            x = x + 0.01 * layer(x)
        out: torch.Tensor = self.head(x)
        return out


torch.manual_seed(0)
model = Layers(int(sys.argv[1]), trained=sys.argv[2] == "trained")
learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW(learned, lr=1e-4)
dataset = TensorDataset(torch.randn(256, WIDTH), torch.arange(256) % 10)

trainer = Trainer(model, optimizer, global_batch=8, micro_batch=4)
for inputs, labels in trainer.loader(dataset):
    time.sleep(float(sys.argv[3]))
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    trainer.update(loss)
