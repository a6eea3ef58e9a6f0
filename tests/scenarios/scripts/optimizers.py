"""`optimizers.py NAME`: trains with that optimizer of PyTorch, and with what else keeps a state:
batch norm, clipped gradients, a schedule by plateaus, and a scaler under which steps are skipped.

Its environment sets the number of steps (STEPS), and may set the samples of one (BATCH, 64) and the
seconds that a micro-batch takes at least (SECONDS, 0.01), so that others can copy meanwhile.
"""

import os
import sys
import time

import torch
from torch import nn

from edgeagent import Trainer

WIDTH = 1024  # large enough that copying the state takes several steps
CLASSES = 10
STEEP = 1e4  # makes gradients so large that a scale that grows is soon too much for them
OPTIONS: dict[str, dict[str, float]] = {"SGD": {"momentum": 0.9}}

name = sys.argv[1]
torch.manual_seed(2)
layers = (nn.Linear(64, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
model = nn.Sequential(*layers, nn.Tanh(), nn.Linear(WIDTH, CLASSES))
optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-3, **OPTIONS.get(name, {}))
schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.8, patience=3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**110, growth_interval=5)
inputs = torch.randn(2048, 64)
labels = (inputs @ torch.randn(64, CLASSES)).argmax(dim=1)
dataset = torch.utils.data.TensorDataset(inputs, labels)
seconds = float(os.environ.get("SECONDS", "0.01"))
steps = int(os.environ["STEPS"])
trainer = Trainer(
    model,
    optimizer,
    int(os.environ.get("BATCH", "64")),
    schedule,
    max_grad_norm=1.0,
    micro_batch=16,
    steps=steps,
    grad_scaler=scaler,
)
for x, y in trainer.loader(dataset):
    time.sleep(seconds)
    loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(STEEP * loss).backward()
    trainer.update(loss)
print(f"skipped {trainer.skipped}", flush=True)
