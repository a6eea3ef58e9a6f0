"""Samples of different lengths, read by worker processes and padded by a `collate_fn`.

How many workers a device has is its own matter (`--workers`): samples and their random numbers are
the same with any number of them, on any device.
"""

import argparse
import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from edgeagent import Trainer

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=2)
Sample = tuple[torch.Tensor, int]


class Sequences(torch.utils.data.Dataset[Sample]):
    """Up to 30 random tokens, small ones for the label 0 and large ones for 1."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, number: int) -> Sample:
        label = number % 2
        length = random.randrange(1, 31)  # drawn anew each time, as augmentation is
        return torch.tensor([random.randrange(1, 60) + 40 * label for _ in range(length)]), label


def padded(samples: list[Sample]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens of shape (samples, longest), int64, padded with 0, and labels (samples,)."""
    tokens, labels = zip(*samples, strict=True)
    return pad_sequence(list(tokens), batch_first=True), torch.tensor(labels)


torch.manual_seed(0)
embedding, classifier = nn.Embedding(100, 32, padding_idx=0), nn.Linear(32, 2)
model = nn.ModuleList([embedding, classifier])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

trainer = Trainer(model, optimizer, global_batch=64, steps=300)
for x, y in trainer.loader(Sequences(), padded, workers=parser.parse_args().workers):
    loss = nn.functional.cross_entropy(classifier(embedding(x).mean(1)), y)
    loss.backward()
    if trainer.update(loss) and trainer.iteration % 10 == 0:
        print(f"step {trainer.iteration} loss {trainer.loss:.4f}", flush=True)
