"""An `IterableDataset`: every device iterates the stream and keeps what its micro-batches need.

So the stream must be the same on all devices: do not divide it by the number of a device or of a
worker, and shuffle it with the global generators of `random`, numpy or torch, which are seeded for
each sample. Its cost is that each device makes every sample, and that one which joins at iteration
i first makes and drops those of i global batches.
"""

import random
from collections.abc import Iterator

import torch
from torch import nn

from edgeagent import Trainer

Sample = tuple[torch.Tensor, int]


class Readings(torch.utils.data.IterableDataset[Sample]):
    """Readings of a sensor in the order of a file, shuffled in a buffer of 50."""

    def __iter__(self) -> Iterator[Sample]:
        buffer: list[Sample] = []
        for number in range(1000):
            reading = torch.sin(torch.arange(20) * (0.1 + 0.02 * (number % 7)))
            buffer.append((reading + 0.1 * torch.randn(20), number % 7))
            if len(buffer) >= 50:
                yield buffer.pop(random.randrange(len(buffer)))
        yield from buffer


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 7))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

trainer = Trainer(model, optimizer, global_batch=64, steps=300)
for x, y in trainer.loader(Readings()):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    if trainer.update(loss) and trainer.iteration % 10 == 0:
        print(f"step {trainer.iteration} loss {trainer.loss:.4f}", flush=True)
