"""The script of `large_job.py` with a frozen base: a small head is trained, as with an adapter.

Its argument is how many layers of 64 MiB the base has. Only two of them are computed with, because
what a large base costs is what this is about, and not what computing with it costs.
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

from edgeagent import Trainer

WIDTH = 4096


class Adapted(nn.Module):
    """A base that is not trained, and a head that is."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.base = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers))
        self.base.requires_grad_(False)
        self.head = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        for layer in self.base[:2]:
            x = x + 0.01 * layer(x)
        out: torch.Tensor = self.head(x)
        return out


torch.manual_seed(0)
model = Adapted(int(sys.argv[1]))
optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-4)
dataset = TensorDataset(torch.randn(256, WIDTH), torch.arange(256) % 10)

trainer = Trainer(model, optimizer, global_batch=8, micro_batch=4)
for inputs, labels in trainer.loader(dataset):
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    trainer.update(loss)
