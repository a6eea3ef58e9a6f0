"""Mixed precision: `--dtype bfloat16` with autocast, `--dtype float16` with a GradScaler as well.

The scale of the scaler is part of the training state: all devices have the same, and a step whose
gradients are not finite is skipped on all of them. The script calls `scaler.scale(loss).backward()`
and nothing else of the scaler, and gives `update()` the loss as it is.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import TensorDataset

from edgeagent import Trainer

parser = argparse.ArgumentParser()
parser.add_argument("--dtype", choices=["bfloat16", "float16"], default="bfloat16")
dtype = getattr(torch, parser.parse_args().dtype)

torch.manual_seed(0)
inputs = torch.randn(1024, 20)
data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=dtype == torch.float16)

trainer = Trainer(model, optimizer, global_batch=64, steps=300, grad_scaler=scaler)
for x, y in trainer.loader(data):
    with torch.autocast(trainer.device.type, dtype):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    if trainer.update(loss) and trainer.iteration % 10 == 0:
        print(f"step {trainer.iteration} loss {trainer.loss:.4f}", flush=True)
