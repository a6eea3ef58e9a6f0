"""`subnets.py END`: trains independent subnets of a model until the file END exists, and prints how
good the whole model is then. NET in the environment says which model: "layers" (three linear ones),
"residual" (four perceptrons with a residual path around each), "resnet" (blocks of convolutions) or
"transformer" (encoder layers, to which the rows of a picture are tokens).

It learns the digits, or with CLOTHES=1 in the environment the pictures of Fashion-MNIST, which are
harder, so that the ways to train differ longer; up to 2,000 of the test pictures judge it at the
end. With STATES, the name of a folder, the device writes the whole model into it after every
EVERY-th iteration (1), as ITERATION.pt, so that it can be judged when that takes no time of the
training.

A step sleeps rather than computes, so that several devices share one machine: SLOW times as long as
on the fastest device, and in proportion to the number of weights of the subnet. SLOW is a number in
the environment, or the name of a file that has one and may change; BASE is how many seconds a step
of the whole model takes with 1. STEPS, HIDDEN, WIDTH (of the residual path), RATE (AdamW's), SEED
and LOCAL_STEPS are numbers in the environment, too; with LOCAL_STEPS=0 all devices train the whole
model and sum their gradients in every step. With GO, the name of a file, the device that founds the
cluster waits in its first step until that exists, so that others can come meanwhile.
"""

import copy
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
from models.resnet import BasicBlock, ResNet

BATCH = 32  # samples of a step
JUDGED = 2000  # test pictures, at most

end = Path(sys.argv[1])
slow = os.environ.get("SLOW", "1")
base = float(os.environ.get("BASE", "0.05"))
hidden = int(os.environ.get("HIDDEN", "128"))
width = int(os.environ.get("WIDTH", "32"))
local_steps = int(os.environ.get("LOCAL_STEPS", "20"))
clothes = os.environ.get("CLOTHES", "0") == "1"


class Rows(nn.Module):
    """Reads a picture row by row: [N, 1, H, W] to logits [N, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(28 if clothes else 8, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32 * (28 if clothes else 8), 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.body(self.embed(x.squeeze(1))).flatten(1))
        return logits


def weights(part: nn.Module) -> int:
    return sum(parameter.numel() for parameter in part.parameters())


def slowdown() -> float:
    return float(Path(slow).read_text()) if os.path.exists(slow) else float(slow)


seed = int(os.environ.get("SEED", "1"))
torch.manual_seed(seed)
inputs = 28 * 28 if clothes else 64
net = os.environ.get("NET", "layers")
model: nn.Module
if net == "residual":
    model = residual_perceptron(inputs, width, hidden, blocks=4, classes=10)
elif net == "resnet":
    model = ResNet(BasicBlock, (1, 1, 4, 1), 10, stem="cifar", width=8, channels=1)
elif net == "transformer":
    model = Rows()
else:
    model = fully_connected_net(inputs, hidden, classes=10)


def division() -> subnets.Division:
    if net == "resnet":
        assert isinstance(model, ResNet)
        return subnets.residual(model, model.get_submodule("layer3"))
    return subnets.transformer(model) if net == "transformer" else subnets.fully_connected(model)


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
        subnets=division(),
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
    # A copy, since statistics of batch norm are those of subnets: here they are the batch's own.
    judge = copy.deepcopy(model)
    with torch.no_grad():
        return float((judge(pictures).argmax(dim=1) == labels).float().mean())


go = Path(os.environ.get("GO", os.devnull))
states, every = os.environ.get("STATES", ""), int(os.environ.get("EVERY", "1"))
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
        if states and trainer.iteration % every == 0:
            path = Path(states) / f"{trainer.iteration}.pt"
            torch.save(model.state_dict(), path.with_suffix(".new"))
            path.with_suffix(".new").replace(path)
        if end.exists():
            trainer.stop()
    elif taken == local_steps // 2:
        print(f"round {trainer.iteration}: {taken} steps", flush=True)
print(f"accuracy {accuracy():.3f}", flush=True)
