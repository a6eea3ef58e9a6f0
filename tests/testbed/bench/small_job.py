"""Trains a vector of weights with next to no computing, by edgeagent or by DistributedDataParallel.

Usage: edgeagent run small_job.py -- trainer ELEMENTS
       python small_job.py ddp ELEMENTS RANK PORT STEPS FILE

The gradients are as large as the weights, ELEMENTS float32 numbers, so a step takes what their sum
takes. Of DistributedDataParallel there are two processes, which meet at PORT and write the moments
at which steps were over to FILE as JSON, in seconds; a trainer's are in the events of its agent.
"""

import json
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn


class Weights(nn.Module):
    """A vector that is multiplied by the mean of what comes in."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.zeros(elements))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a scalar."""
        return self.vector.sum() * x.mean()


loop, elements = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
model: nn.Module = Weights(elements)
data = torch.randn(256, 1)
if loop == "trainer":
    from edgeagent import Trainer

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    trainer = Trainer(model, optimizer, global_batch=8, micro_batch=4)
    for (x,) in trainer.loader(torch.utils.data.TensorDataset(data)):
        loss = model(x)
        loss.backward()
        trainer.update(loss)
else:
    rank, port, steps = map(int, sys.argv[3:6])
    where = f"tcp://127.0.0.1:{port}"
    distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    over: list[float] = []
    for step in range(steps):
        first = (8 * step + 4 * rank) % 256
        model(data[first : first + 4]).backward()
        optimizer.step()
        optimizer.zero_grad()
        over.append(time.time())
    Path(sys.argv[6]).write_text(json.dumps(over))
    distributed.destroy_process_group()
