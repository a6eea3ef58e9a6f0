"""`rounds.py END`: trains in rounds of 200 local steps until the file END exists, and tells where
in a round it is.

Micro-batches sleep rather than compute, so that several devices share one machine. A round has 400
of them: with two devices each takes 200 local steps, within about a second.
"""

import sys
import time
from pathlib import Path

import torch
from torch import nn

from edgeagent import Trainer

SECONDS = 0.003  # that a local step takes
LOCAL_STEPS = 200
TOLD_EVERY = 40  # local steps

end = Path(sys.argv[1])
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
inputs = torch.randn(1024, 64)
labels = (inputs @ torch.randn(64, 10)).argmax(dim=1)
dataset = torch.utils.data.TensorDataset(inputs, labels)
trainer = Trainer(
    model,
    optimizer,
    global_batch=16,
    micro_batch=8,
    max_grad_norm=1.0,
    local_steps=LOCAL_STEPS,
    outer="nesterov",
)
taken = 0
for x, y in trainer.loader(dataset):
    time.sleep(SECONDS)
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    taken += 1
    if trainer.update(loss):
        taken = 0
        if end.exists():
            trainer.stop()
    elif taken % TOLD_EVERY == 0:
        print(f"round {trainer.iteration}: {taken} steps", flush=True)
