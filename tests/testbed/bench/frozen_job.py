"""Trains a small head beside a large base that is frozen, by edgeagent or by torch alone.

Usage: edgeagent run frozen_job.py -- trainer MILLIONS MILLISECONDS STEPS FILE
       python frozen_job.py torch MILLIONS MILLISECONDS STEPS FILE

The base has so many million parameters; a step sleeps so many milliseconds in place of computing
with them. The moments at which steps were over are written to FILE as JSON, in seconds.
"""

import json
import sys
import time
from pathlib import Path

import torch
from torch import nn

BATCH = 32

loop, millions, milliseconds, steps, file = sys.argv[1:]
torch.manual_seed(1)
model = nn.Module()
model.base = nn.Parameter(torch.ones(int(float(millions) * 1e6)), requires_grad=False)
model.head = head = nn.Linear(64, 10)
optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randn(1024, 64), torch.randint(0, 10, (1024,)))
over: list[float] = []


def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compute for a while; return the loss of a batch."""
    time.sleep(float(milliseconds) / 1000)
    return nn.functional.cross_entropy(head(x), y)


if loop == "trainer":
    from edgeagent import Trainer

    trainer = Trainer(model, optimizer, global_batch=BATCH, micro_batch=BATCH, steps=int(steps))
    for x, y in trainer.loader(data):
        loss = loss_of(x, y)
        loss.backward()
        trainer.update(loss)
        over.append(time.perf_counter())
else:
    batches = torch.utils.data.DataLoader(data, BATCH, shuffle=True)
    while len(over) < int(steps):
        for x, y in batches:
            loss_of(x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
            over.append(time.perf_counter())
Path(file).write_text(json.dumps(over[: int(steps)]))
