"""What a user writes: AdamW with two parameter groups, a schedule and clipping, in ten lines."""

import torch
from torch import nn

from edgeagent import Trainer

torch.manual_seed(1)
layers = (nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 10))
model = nn.Sequential(*layers)
body = {"params": model[:4].parameters(), "lr": 1e-3}
head = {"params": model[4].parameters(), "lr": 3e-3, "weight_decay": 0.1}
optimizer = torch.optim.AdamW([body, head])
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 120)
data = torch.utils.data.TensorDataset(torch.randn(1024, 64), torch.randint(10, (1024,)))
trainer = Trainer(model, optimizer, 128, schedule, max_grad_norm=1.0, steps=120)
for x, y in trainer.loader(data):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    if trainer.update(loss):
        print(trainer.iteration, trainer.loss)
