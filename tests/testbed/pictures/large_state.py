"""A job whose state is so large that a join can be seen: a model with 100 MB
that nobody trains, and that each device begins with other numbers, so a joiner pulls them."""

import os
import time

import torch
from torch import nn

from edgeagent import Trainer

torch.manual_seed(1)
x = torch.randn(4096, 20)
dataset = torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
table = torch.randn(25_000_000, generator=torch.Generator().manual_seed(os.getpid()))
model.register_parameter("table", nn.Parameter(table, requires_grad=False))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
trainer = Trainer(model, optimizer, global_batch=256, micro_batch=16)
for inputs, labels in trainer.loader(dataset):
    time.sleep(0.03)
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    trainer.update(loss)
