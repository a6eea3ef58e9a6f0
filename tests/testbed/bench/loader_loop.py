"""One training loop over slow samples, with torch's DataLoader or with a Trainer's loader.

It prints a line of JSON: the number of samples that were trained after the first `WARM` iterations,
and the seconds that this took. Both loops train the same model on micro-batches of one size, and
step after every `STEP_EVERY` of them.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MICRO_BATCH = 32
STEP_EVERY = 4  # micro-batches
SAMPLES = 4096
WIDTH = 64
WARM = 4  # iterations, after which samples that were fetched ahead at the start are used up


class Slow(Dataset[tuple[torch.Tensor, int]]):
    """Samples that take `seconds` each, in which the processor is free, as while reading a disk."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        time.sleep(self._seconds)
        return torch.randn(WIDTH), number % 10


def by_torch(data: Slow, workers: int, iterations: int, stepped: Callable[[], None]) -> None:
    """Train in the usual loop, with gradients accumulated."""
    model, optimizer = job()
    count = 0
    while True:
        for x, y in DataLoader(data, MICRO_BATCH, shuffle=True, num_workers=workers):
            (nn.functional.cross_entropy(model(x), y) / STEP_EVERY).backward()
            count += 1
            if count % STEP_EVERY == 0:
                optimizer.step()
                optimizer.zero_grad()
                stepped()
            if count == STEP_EVERY * iterations:
                return


def by_trainer(data: Slow, workers: int, iterations: int, stepped: Callable[[], None]) -> None:
    """Train as the README has it, alone on this device."""
    from edgeagent import Trainer

    model, optimizer = job()
    size = STEP_EVERY * MICRO_BATCH
    trainer = Trainer(model, optimizer, size, micro_batch=MICRO_BATCH, steps=iterations)
    for x, y in trainer.loader(data, workers=workers):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        if trainer.update(loss):
            stepped()


def job() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return what is trained."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, 10))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def main() -> None:
    """Train, and say how long it took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--loop", choices=("torch", "trainer"), required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--sample-ms", type=float, required=True)
    parser.add_argument("--iterations", type=int, required=True)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", "This DataLoader will create")
    torch.set_num_threads(1)
    ends: list[float] = []
    loop = by_torch if args.loop == "torch" else by_trainer
    loop(
        Slow(args.sample_ms / 1000),
        args.workers,
        args.iterations,
        lambda: ends.append(time.monotonic()),
    )
    ends = ends[WARM - 1 :]
    samples = (len(ends) - 1) * STEP_EVERY * MICRO_BATCH
    print(json.dumps({"samples": samples, "seconds": ends[-1] - ends[0]}), flush=True)


if __name__ == "__main__":
    main()
