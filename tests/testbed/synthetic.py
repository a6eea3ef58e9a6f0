"""A training script with chosen costs: size of the state, size of the gradients, time to compute.

Usage: edgeagent run tests/testbed/synthetic.py -- [--state-mb N] [--gradient-mb N] [--compute-ms N]
                                                  [--moving] [--chunks-of-mb N]
                                                  [--load FILE] [--steps-file NAME]
                                                  [--wait-for FILE]

Everything except the arithmetic is real: a micro-batch sleeps for its time, and the tensors have
the shapes of a transformer of the size that is asked for. What of the state has no gradient is
frozen weights or, with `--moving`, a tensor that changes in each step, as an optimizer's memory
does. While the working folder has a file `slowdown` with a factor in it, micro-batches take that
many times as long. Frozen tensors in the file of `--load` are read and kept, but are no part of the
training state: every device starts with that file, and nobody pulls them. With `--chunks-of-mb N`
the gradients have as many chunks as N MB of them would: where rates and sizes are scaled down
together, a chunk then takes as long on its link as it does unscaled. `--steps-file` gets a
line for each iteration that `update()` has completed: its number, and the time in unix seconds by
this process's clock. With `--wait-for FILE` the script makes a file `ready` once everything is
loaded, and asks for an agent when FILE exists, so that several can begin at one moment.

The devices of one machine share nothing: each has its own copy of the state, frozen tensors
included, which its agent and its trainer share, and of the 16 KB of samples.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from edgeagent import Trainer
from edgeagent.trainer import gradients

MB = 1_000_000
FLOAT_BYTES = 4
SAMPLES = 4096
SLOWDOWN = Path("slowdown")
READY = Path("ready")
LEAST = 64  # trainable numbers at least
BLOCKS = 1  # blocks of the trainable transformer; few, as each tensor costs time at every step
FROZEN_BLOCKS = 4
WIDTH_UNIT = 16  # widths are multiples of it: no padding between tensors
BLOCK_PART = 2 / 3  # the part of all numbers that are in blocks; the others are in the embedding

Shape = tuple[int, ...]


def shapes(numbers: int, blocks: int) -> list[Shape]:
    """Return the shapes of a small transformer's tensors that hold exactly so many numbers.

    That is an embedding, the matrices, biases and norms of `blocks` blocks, and the bias of the
    head, which takes what is left. Too few numbers for that are one vector, none are none.
    """
    width = math.isqrt(int(BLOCK_PART * numbers / (12 * blocks)))
    width -= width % WIDTH_UNIT if width > WIDTH_UNIT else 0
    if width < 1 or (left := numbers - blocks * _size(_block(width))) < width:
        return [(numbers,)] if numbers else []
    words, bias = divmod(left, width)
    found = [(words, width), *(shape for _ in range(blocks) for shape in _block(width))]
    return [*found, (bias,)] if bias else found


def _block(width: int) -> list[Shape]:
    inner = 4 * width
    attention = [(3 * width, width), (3 * width,), (width, width), (width,)]
    norms = [(width,)] * 4  # weight and bias of two
    return [*attention, (inner, width), (inner,), (width, inner), (width,), *norms]


def _size(found: list[Shape]) -> int:
    return sum(math.prod(shape) for shape in found)


class Synthetic(nn.Module):
    """Trainable tensors of `gradient_bytes` in all, and frozen ones that fill the state up to
    `state_bytes`. Each process has other frozen ones, because a joiner would not pull what it has
    already, and pulls of the whole state are to be measured."""

    def __init__(self, state_bytes: int, gradient_bytes: int, *, moving: bool = False) -> None:
        """`moving`: what would be frozen is the tensor `moving`, which is no part of the model."""
        super().__init__()
        trained = max(LEAST, gradient_bytes // FLOAT_BYTES)
        frozen = max(0, state_bytes // FLOAT_BYTES - trained)
        layers = (nn.Parameter(torch.zeros(shape)) for shape in shapes(trained, BLOCKS))
        self.layers = nn.ParameterList(layers)
        chance = torch.Generator().manual_seed(random.SystemRandom().getrandbits(62))
        still = 0 if moving else frozen
        noise = (
            nn.Parameter(torch.rand(shape, generator=chance), False)
            for shape in shapes(still, FROZEN_BLOCKS)
        )
        self.moving = torch.rand(frozen, generator=chance) if moving and frozen else None
        self.frozen = nn.ParameterList(noise)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one number whose gradient is dense in every trainable tensor."""
        total = sum(layer.sum() for layer in self.layers)
        return (torch.as_tensor(total) * x.mean() - 1.0) ** 2

    def load(self, tensors: dict[str, torch.Tensor]) -> None:
        """Take the trainable tensors over from a checkpoint of this job."""
        with torch.no_grad():
            for k, layer in enumerate(self.layers):
                layer.copy_(tensors[f"model.layers.{k}"])


def change(moving: torch.Tensor, _model: nn.Module) -> None:
    """Make the step of the tensor that changes: one number does, but nobody can know that."""
    moving[0] += 1.0


@contextlib.contextmanager
def notes(path: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that writes the line of an iteration to the file, or does nothing if `path`
    is empty."""
    if not path:
        yield lambda iteration: None
        return
    with open(path, "w", buffering=1, encoding="ascii") as file:
        yield lambda iteration: print(iteration, f"{time.time():.6f}", file=file)


def divide_like(payload_bytes: int) -> None:
    """Divide the gradients, whatever their size, into as many chunks as those of another size."""
    usual = gradients.chunk_elements_for
    full = payload_bytes // FLOAT_BYTES

    def chunk_elements(elements: int, most: int, step: int = gradients.ELEMENT_STEP) -> int:
        aim = elements * usual(full, most, step) // full
        return min(most, max(step, aim - aim % step))

    gradients.chunk_elements_for = chunk_elements


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state-mb", type=float, default=1.0)
    parser.add_argument("--gradient-mb", type=float, default=0.5)
    parser.add_argument("--compute-ms", type=float, default=5.0, help="of one micro-batch")
    parser.add_argument("--moving", action="store_true", help="nothing is frozen")
    parser.add_argument("--load", metavar="FILE", help="a checkpoint of this job")
    parser.add_argument("--steps-file", metavar="NAME", default="", help="gets when steps ended")
    parser.add_argument("--wait-for", metavar="FILE", default="", help="begin when it exists")
    parser.add_argument("--chunks-of-mb", type=float, default=0.0, help="have so many chunks")
    args = parser.parse_args()
    if args.chunks_of_mb:
        divide_like(int(args.chunks_of_mb * MB))
    state = 0 if args.load else int(args.state_mb * MB)
    model = Synthetic(state, int(args.gradient_mb * MB), moving=args.moving)
    loaded = load_file(args.load) if args.load else {}
    if loaded:
        model.load(loaded)
    optimizer = torch.optim.SGD(model.layers.parameters(), lr=1e-9)
    data = torch.utils.data.TensorDataset(torch.linspace(0, 1, SAMPLES).unsqueeze(1))
    if args.wait_for:
        READY.touch()
        while not Path(args.wait_for).exists():
            time.sleep(0.01)
    trainer = Trainer(model, optimizer, global_batch=256)
    if (moving := model.moving) is not None:
        trainer.replicate("moving", {"moving": moving}, update=partial(change, moving))
    with notes(args.steps_file) as note:
        for (x,) in trainer.loader(data):
            factor = float(SLOWDOWN.read_text()) if SLOWDOWN.exists() else 1.0
            time.sleep(args.compute_ms * 1e-3 * factor)
            loss = model(x)
            loss.backward()
            if trainer.update(loss):
                note(trainer.iteration)


if __name__ == "__main__":
    main()
