"""Gradient accumulation: four batches of 16 samples for each update, as batches that fit in memory.

A loop for one device would call `(loss / ACCUMULATE).backward()` four times and then step. Here the
four batches are the micro-batches of one global batch: the trainer adds their gradients up, on as
many devices as there are, and divides. So `update()` belongs after every `backward()`, and the loss
is not divided.
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from edgeagent import Trainer

BATCH, ACCUMULATE = 16, 4

torch.manual_seed(0)
inputs = torch.randn(1024, 20)
data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

trainer = Trainer(model, optimizer, BATCH * ACCUMULATE, micro_batch=BATCH, steps=300)
for x, y in trainer.loader(data):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    if trainer.update(loss) and trainer.iteration % 10 == 0:
        print(f"step {trainer.iteration} loss {trainer.loss:.4f}", flush=True)
