"""Trains well until it is told to get into trouble: `troubled.py FILE [WIDTH [SLOPE]]`.

When FILE appears the next micro-batch reads and removes it, and does what it says: `sleep S` or
`loop` in mid-step, `away S` between two iterations, `rate R` (another learning rate from now on),
`step` (an `optimizer.step()` that was left over). WIDTH: of the hidden layers. SLOPE: how fast the
schedule lets the learning rate fall, if there is to be a schedule. Micro-batches sleep rather than
compute, so that several devices can share one machine.
"""

import sys
import time
from pathlib import Path

import torch
from torch import nn

from edgeagent import Trainer

SECONDS = 0.01  # that a micro-batch takes

order = Path(sys.argv[1])
width = int(sys.argv[2]) if len(sys.argv) > 2 else 64
torch.manual_seed(1)
layers = (nn.Linear(64, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
model = nn.Sequential(*layers, nn.Linear(width, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = None
if len(sys.argv) > 3:
    slope = float(sys.argv[3])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1 / (1 + slope * k))
data = torch.utils.data.TensorDataset(torch.randn(1024, 64), torch.randint(10, (1024,)))
trainer = Trainer(model, optimizer, 64, schedule, steps=1_000_000, micro_batch=8)
absence = 0.0  # seconds to be away after this iteration
for x, y in trainer.loader(data):
    time.sleep(SECONDS)
    word, number = "", 0.0
    if order.exists():
        word, *rest = order.read_text().split()
        number = float(rest[0]) if rest else 0.0
        order.unlink()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    match word:
        case "sleep":
            time.sleep(number)
        case "loop":
            while True:
                time.sleep(SECONDS)
        case "away":
            absence = number
        case "rate":
            for group in optimizer.param_groups:
                group["lr"] = number
        case "step":
            optimizer.step()
    if trainer.update(loss) and absence:
        with trainer.away():
            time.sleep(absence)
        absence = 0.0
