"""Independent subnets, for devices of unequal speed: each trains a part of the model.

The loop computes with `trainer.model`, which is this device's part, another one in each round and
as large as the device is fast. `update()` takes a step with it, and returns True when a round has
ended; then `model`, which is always whole, has what all devices have changed.
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from edgeagent import Trainer, subnets

torch.manual_seed(0)
inputs = torch.randn(2048, 20)
labels = (inputs.sum(1) > 0).long()
data = TensorDataset(inputs, labels)
model = nn.Sequential(
    nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

trainer = Trainer(
    model,
    optimizer,
    global_batch=32,  # samples of one step on each device
    local_steps=10,  # steps of a round on each device
    subnets=subnets.fully_connected(model),
    steps=100,  # rounds
)
for x, y in trainer.loader(data):
    loss = nn.functional.cross_entropy(trainer.model(x), y)
    loss.backward()
    if trainer.update(loss) and trainer.iteration % 10 == 0:
        with torch.no_grad():
            right = (model(inputs).argmax(dim=1) == labels).float().mean()
        print(f"round {trainer.iteration} accuracy {right:.3f}", flush=True)
