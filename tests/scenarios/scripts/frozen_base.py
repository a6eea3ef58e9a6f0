"""Trains adapters beside a frozen base; the argument is the seed from which the base is drawn."""

import sys

import torch
from torch import nn

from edgeagent import Trainer
from models.lora import add_adapters

torch.manual_seed(int(sys.argv[1]))
model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 256), nn.Linear(256, 10))
torch.manual_seed(1)
add_adapters(model, "*", rank=2)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
data = torch.utils.data.TensorDataset(torch.randn(1024, 64), torch.randint(10, (1024,)))
trainer = Trainer(model, optimizer, 64, steps=240)
for x, y in trainer.loader(data):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    trainer.update(loss)
