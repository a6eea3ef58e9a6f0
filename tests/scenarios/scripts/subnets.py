"""`subnets.py END`: trains independent subnets of a net of three linear layers, or with RESIDUAL=1
in the environment of four perceptrons with a residual path around each, until the file END exists,
and prints how good the whole model is then.

It learns the digits, or with CLOTHES=1 in the environment the pictures of Fashion-MNIST, which are
harder, so that the ways to train differ longer; 2,000 of the test pictures judge it.

A step sleeps rather than computes, so that several devices share one machine: SLOW times as long as
on the fastest device, and in proportion to the number of weights of the subnet. SLOW is a number in
the environment, or the name of a file that has one and may change; BASE is how many seconds a step
of the whole model takes with 1. STEPS, HIDDEN, WIDTH (of the residual path), RATE (AdamW's), SEED
and LOCAL_STEPS are numbers in the environment, too; with LOCAL_STEPS=0 all devices train the whole
model and sum their gradients in every step. With GO, the name of a file, the device that founds the
cluster waits in its first step until that exists, so that others can come meanwhile.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

from edgeagent import Trainer, subnets
from models.digits import Digits
from models.fashion import FashionMnist
from models.fully_connected import fully_connected_net
from models.residual_perceptron import residual_perceptron

BATCH = 32  # samples of a step
JUDGED = 2000  # test pictures, at most

end = Path(sys.argv[1])
slow = os.environ.get("SLOW", "1")
base = float(os.environ.get("BASE", "0.05"))
hidden = int(os.environ.get("HIDDEN", "128"))
width = int(os.environ.get("WIDTH", "32"))
local_steps = int(os.environ.get("LOCAL_STEPS", "20"))
clothes = os.environ.get("CLOTHES", "0") == "1"


def weights(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def slowdown() -> float:
    return float(Path(slow).read_text()) if os.path.exists(slow) else float(slow)


seed = int(os.environ.get("SEED", "1"))
torch.manual_seed(seed)
inputs = 28 * 28 if clothes else 64
if os.environ.get("RESIDUAL", "0") == "1":
    model = residual_perceptron(inputs, width, hidden, blocks=4, classes=10)
else:
    model = fully_connected_net(inputs, hidden, classes=10)
whole = weights(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=float(os.environ.get("RATE", "3e-3")))
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
train = FashionMnist(train=True) if clothes else Digits(train=True)
test = FashionMnist(train=False) if clothes else Digits(train=False)
judged = [test[k] for k in range(min(JUDGED, len(test)))]
pictures, labels = torch.stack([x for x, _ in judged]), torch.tensor([y for _, y in judged])


def accuracy() -> float:
    with torch.no_grad():
        return float((model(pictures).argmax(dim=1) == labels).float().mean())


go = Path(os.environ.get("GO", os.devnull))
taken = 0
for x, y in trainer.loader(train):
    while trainer.iteration == 0 and not go.exists():
        time.sleep(0.05)
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
