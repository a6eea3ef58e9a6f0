"""The script of `large_job.py`: AlexNet on noise, which needs no data and still has to be learnt.

Its argument is the width of the hidden layers, 4096 for the whole network.
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

from edgeagent import Trainer
from models.alexnet import AlexNet

torch.manual_seed(0)
pictures = torch.randn(256, 3, 64, 64)
classes = torch.arange(256) % 10
model = AlexNet(1000, hidden=int(sys.argv[1]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

trainer = Trainer(model, optimizer, global_batch=8, micro_batch=4)
for inputs, labels in trainer.loader(TensorDataset(pictures, classes)):
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    trainer.update(loss)
