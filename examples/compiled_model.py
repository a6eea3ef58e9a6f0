"""`torch.compile`: the trainer gets the model, and the loop calls the compiled one.

All micro-batches have the same shape, so nothing is compiled again. The first iterations may take
as long as compiling does. `--backend` is that of `torch.compile`; "inductor" needs a C++ compiler.
Devices whose compiled code rounds differently still have equal models, since the update is not
compiled; their gradients are then a little different from what another device would compute.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import TensorDataset

from edgeagent import Trainer

parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="inductor")

torch.manual_seed(0)
inputs = torch.randn(1024, 20)
data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

trainer = Trainer(model, optimizer, global_batch=64, steps=300)
compiled = torch.compile(model, backend=parser.parse_args().backend)
for x, y in trainer.loader(data):
    loss = nn.functional.cross_entropy(compiled(x), y)
    loss.backward()
    if trainer.update(loss) and trainer.iteration % 10 == 0:
        print(f"step {trainer.iteration} loss {trainer.loss:.4f}", flush=True)
