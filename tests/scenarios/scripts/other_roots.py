"""Trains a small net until the file that `argv[1]` names exists. With the variable ODD_ROOTS the
square roots of tensors are rounded up, as another kind of processor might round them."""

import math
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

from edgeagent import Trainer

if os.environ.get("ODD_ROOTS"):
    usual = torch.Tensor.sqrt

    def rounded_up(tensor: torch.Tensor) -> torch.Tensor:
        root = usual(tensor)
        return torch.nextafter(root, torch.full_like(root, math.inf))

    torch.Tensor.sqrt = rounded_up  # type: ignore[assignment,method-assign]

end = Path(sys.argv[1])
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randn(1024, 64), torch.randint(10, (1024,)))
trainer = Trainer(model, optimizer, global_batch=32, micro_batch=8)
for x, y in trainer.loader(data):
    time.sleep(0.004)
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    if trainer.update(loss) and end.exists():
        trainer.stop()
