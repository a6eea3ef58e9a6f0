"""`subnets.py END`: trains independent subnets of a net for the digits until the file END exists,
and prints how good the whole model is then.

A step sleeps rather than computes, so that several devices share one machine: SLOW times as long as
on the fastest device, and in proportion to the number of weights of the subnet. SLOW is a number in
the environment, or the name of a file that has one and may change; BASE is how many seconds a step
of the whole model takes with 1. STEPS, HIDDEN, SEED and LOCAL_STEPS are numbers in the environment,
too; with LOCAL_STEPS=0 all devices train the whole model and sum their gradients in every step.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

from edgeagent import Trainer, subnets
from models.digits import Digits

BATCH = 32  # samples of a step

end = Path(sys.argv[1])
slow = os.environ.get("SLOW", "1")
base = float(os.environ.get("BASE", "0.05"))
hidden = int(os.environ.get("HIDDEN", "128"))
local_steps = int(os.environ.get("LOCAL_STEPS", "20"))


def weights(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def slowdown() -> float:
    return float(Path(slow).read_text()) if os.path.exists(slow) else float(slow)


seed = int(os.environ.get("SEED", "1"))
torch.manual_seed(seed)
model = nn.Sequential(
    nn.Flatten(),
    nn.Linear(64, hidden),
    nn.ReLU(),
    nn.Linear(hidden, hidden),
    nn.ReLU(),
    nn.Linear(hidden, 10),
)
whole = weights(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
steps = int(os.environ.get("STEPS", "0")) or None
if local_steps:
    trainer = Trainer(
        model,
        optimizer,
        global_batch=BATCH,
        local_steps=local_steps,
        steps=steps,
        seed=seed,
        subnets=subnets.fully_connected(model),
    )
else:
    trainer = Trainer(
        model, optimizer, global_batch=4 * BATCH, micro_batch=2, steps=steps, seed=seed
    )
test = Digits(train=False)
pictures, labels = test.images, test.labels


def accuracy() -> float:
    with torch.no_grad():
        return float((model(pictures).argmax(dim=1) == labels).float().mean())


taken = 0
for x, y in trainer.loader(Digits(train=True)):
    time.sleep(base * slowdown() * weights(trainer.model) / whole * len(x) / BATCH)
    loss = nn.functional.cross_entropy(trainer.model(x), y)
    loss.backward()
    taken += 1
    if trainer.update(loss):
        taken = 0
        trainer.report("accuracy", accuracy(), quiet=True)
        if end.exists():
            trainer.stop()
    elif taken == local_steps // 2:
        print(f"round {trainer.iteration}: {taken} steps", flush=True)
print(f"accuracy {accuracy():.3f}", flush=True)
