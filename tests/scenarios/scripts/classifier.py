"""`classifier.py DTYPE`: trains a net with batch norm and dropout in that precision.

With FLIP_AFTER=N in its environment, one bit of the (float32) optimizer state is flipped on this
node after N updates that it took part in, as a cosmic ray would do it. STEPS=N in its environment
sets the number of steps.
"""

import os
import sys

import torch
from torch import nn

from edgeagent import Trainer

FLIP_AFTER = int(os.environ.get("FLIP_AFTER", "0"))
CLASSES = 10
STEPS = int(os.environ.get("STEPS", "100"))

dtype = getattr(torch, sys.argv[1])
torch.manual_seed(2)
first = nn.Linear(64, 256)
model = nn.Sequential(
    first, nn.BatchNorm1d(256), nn.Tanh(), nn.Dropout(0.2), nn.Linear(256, CLASSES)
).to(dtype)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
inputs = torch.randn(2048, 64, dtype=dtype)
labels = (inputs @ torch.randn(64, CLASSES, dtype=dtype)).argmax(dim=1)
dataset = torch.utils.data.TensorDataset(inputs, labels)
trainer = Trainer(model, optimizer, global_batch=256, steps=STEPS)
updates = 0
for x, y in trainer.loader(dataset):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    updates += bool(stepped := trainer.update(loss))
    if stepped and updates == FLIP_AFTER:
        momentum = optimizer.state[first.weight]["momentum_buffer"]
        words = momentum.numpy().view("int32")  # so that PyTorch does not notice the change
        words[7, 3] ^= 1 << 22  # in a place that no check of the trainer looks at
        print(f"flipped at {trainer.iteration}", flush=True)
