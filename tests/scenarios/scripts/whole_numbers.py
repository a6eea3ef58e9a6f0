"""Trains a model whose gradients are whole eighths, so that their sums are exact in any order.

However many devices train, and whoever dies, the weights have to end with the same bits.

Usage: edgeagent run whole_numbers.py -- MILLISECONDS [FILE]

A micro-batch takes so many milliseconds, and forty times as long until FILE exists, so that
devices have time to start and to join on a busy machine.
"""

import sys
import time
from pathlib import Path

import torch
from torch import nn

from edgeagent import Trainer

torch.manual_seed(1)
model = nn.ParameterList(nn.Parameter(torch.randn(shape)) for shape in ((200, 64), (64, 64), (64,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randint(-8, 9, (1024, 64)).float())
trainer = Trainer(model, optimizer, global_batch=32, micro_batch=8)
for (x,) in trainer.loader(data):
    slow = 1 if all(Path(name).exists() for name in sys.argv[2:]) else 40
    time.sleep(slow * float(sys.argv[1]) / 1000)
    loss = torch.stack([(layer * x.mean(0)).sum() for layer in model]).sum()
    loss.backward()
    trainer.update(loss)
