"""A script with a mistake that shows at iteration `argv[1]`; 0: never, "at once": at its start."""

import sys

import torch
from torch import nn

from edgeagent import Trainer

torch.manual_seed(1)
if sys.argv[1] == "at once":
    raise SystemExit(3)
model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10))
data = torch.utils.data.TensorDataset(torch.randn(1024, 64), torch.randint(10, (1024,)))
trainer = Trainer(model, torch.optim.SGD(model.parameters(), 0.1), 128, steps=600)
for x, y in trainer.loader(data):
    if trainer.iteration == int(sys.argv[1]) > 0:
        raise ValueError("a mistake")
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    trainer.update(loss)
