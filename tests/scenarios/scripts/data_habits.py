"""What a script expects of data, checkpoints and the end: the options say what it does.

Its samples are augmented with numbers of all three global generators, and take `--slow` seconds.
All numbers are such that no sum is rounded: the state is the same in whatever order they are added.
"""

import argparse
import random
import time

import numpy as np
import torch
from torch import nn

from edgeagent import Trainer

options = argparse.ArgumentParser()
options.add_argument("--workers", type=int, default=0)
options.add_argument("--slow", type=float, default=0.0)
options.add_argument("--stop-at", type=int, default=0)
options.add_argument("--weighted", action="store_true")
options.add_argument("--steps", type=int, default=60)
args = options.parse_args()


class Augmented(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Numbered samples with noise."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        time.sleep(args.slow)
        shift = random.randrange(8) + int(np.random.randint(8))
        return number + shift + torch.randint(8, (8,)).float(), number % 3


torch.manual_seed(1)
last = nn.Linear(8, 4, bias=False)
nn.init.zeros_(last.weight)
model = nn.Sequential(nn.Dropout(0.5), last)
optimizer = torch.optim.SGD(model.parameters(), lr=2**-10)
weights = [1.0 + number % 7 for number in range(200)]
sampler = torch.utils.data.WeightedRandomSampler(weights, 150) if args.weighted else None
trainer = Trainer(model, optimizer, 64, micro_batch=8, steps=args.steps, seed=5)
for x, y in trainer.loader(Augmented(), workers=args.workers, sampler=sampler):
    loss = (model(x) * (y - 1).view(-1, 1)).mean()  # linear: gradients are whole numbers / 32
    loss.backward()
    if trainer.update(loss) and trainer.iteration == args.stop_at:
        trainer.stop()
print("the loader ended:", trainer.end_reason, trainer.iteration, flush=True)
