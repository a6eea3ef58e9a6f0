"""Trains a small net; with the argument `apart` its state is kept as one on a GPU would be."""

import sys

import torch
from torch import nn

from edgeagent import Trainer

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.Tanh(), nn.Linear(256, 10))
optimizer = torch.optim.Adagrad(model.parameters(), lr=1e-2)
data = torch.utils.data.TensorDataset(torch.randn(1024, 64), torch.randint(10, (1024,)))
apart = "apart" in sys.argv
trainer = Trainer(model, optimizer, 128, max_grad_norm=1.0, steps=200, _mirror=apart)
print(f"trains on {trainer.device}", flush=True)
for x, y in trainer.loader(data):
    loss = nn.functional.cross_entropy(model(x.to(trainer.device)), y.to(trainer.device))
    loss.backward()
    trainer.update(loss)
