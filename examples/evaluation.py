"""Evaluation after each epoch: on each device or on one, while the others train on.

`edgeagent run examples/evaluation.py -- --evaluate` has this device evaluate; start all devices so,
or one of them. All have the same model, so each of them would report the same figures.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from edgeagent import Trainer

BATCH, EPOCHS = 64, 20

parser = argparse.ArgumentParser()
parser.add_argument("--evaluate", action="store_true", help="this device evaluates")
args = parser.parse_args()

torch.manual_seed(0)
inputs = torch.randn(1280, 20)
data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
train, held_out = random_split(data, [1024, 256])
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def accuracy() -> float:
    """Return the part of the samples held out that the model gets right."""
    model.eval()
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in DataLoader(held_out, 128))
    model.train()
    return right / len(held_out)


updates = len(train) // BATCH  # of one epoch
trainer = Trainer(model, optimizer, global_batch=BATCH, steps=EPOCHS * updates)
batches = trainer.loader(train)
evaluated = trainer.iteration // updates  # epochs; not 0 on a device that joins later
for x, y in batches:
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    trainer.update(loss)
    epoch = trainer.iteration // updates
    if args.evaluate and epoch > evaluated:
        evaluated = epoch
        with trainer.away():  # the others train on; the model stays as it is
            trainer.report("accuracy", accuracy())
print(f"after {trainer.iteration} updates: accuracy {accuracy():.3f}", flush=True)
