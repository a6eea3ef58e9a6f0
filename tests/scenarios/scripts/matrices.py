"""A job whose optimizer multiplies matrices, which each kind of processor rounds in its own way."""

import torch
from torch import nn

from edgeagent import Trainer

torch.manual_seed(1)
model = nn.Linear(64, 48, bias=False)
optimizer = torch.optim.Muon(model.parameters(), lr=0.01)
inputs = torch.arange(64 * 128.0).view(128, 64).sin()
trainer = Trainer(model, optimizer, global_batch=32, steps=1_000_000)
for (x,) in trainer.loader(torch.utils.data.TensorDataset((inputs * 8).round() / 8)):
    loss = model(x).square().mean()
    loss.backward()
    trainer.update(loss)
