"""The shortest script: a model, an optimizer, a data set, and a loop over micro-batches."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from edgeagent import Trainer

torch.manual_seed(0)
inputs = torch.randn(1024, 20)
data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

trainer = Trainer(model, optimizer, global_batch=64, steps=300)
for x, y in trainer.loader(data):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    if trainer.update(loss) and trainer.iteration % 10 == 0:
        print(f"step {trainer.iteration} loss {trainer.loss:.4f}", flush=True)
