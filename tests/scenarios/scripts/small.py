"""Trains a small net until the file that `argv[1]` names exists, or for ever without one.

Micro-batches sleep rather than compute, so that several devices share one machine and leave it time
to start others.
"""

import sys
import time
from pathlib import Path

import torch
from torch import nn

from edgeagent import Trainer

SECONDS = 0.004  # that a micro-batch takes

end = Path(sys.argv[1]) if len(sys.argv) > 1 else None
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randn(1024, 64), torch.randint(10, (1024,)))
trainer = Trainer(model, optimizer, global_batch=32, micro_batch=8)
for x, y in trainer.loader(data):
    time.sleep(SECONDS)
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    if trainer.update(loss) and end is not None and end.exists():
        trainer.stop()
