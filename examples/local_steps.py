"""Rounds of local steps, for slow links: the devices average once in the samples of ten steps.

The loop is the shortest one. Each `update()` takes a step of this device's own with AdamW, and
returns True when a round has ended; then the model has the weights that all devices share.
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from edgeagent import Trainer

torch.manual_seed(0)
inputs = torch.randn(2048, 20)
data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

trainer = Trainer(
    model,
    optimizer,
    global_batch=64,
    micro_batch=16,  # samples of one local step
    local_steps=10,  # a round has the samples of ten global batches
    outer="nesterov",
    steps=100,  # rounds
)
for x, y in trainer.loader(data):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    if trainer.update(loss) and trainer.iteration % 10 == 0:
        print(f"round {trainer.iteration} loss {trainer.loss:.4f}", flush=True)
