"""What a step of an optimizer takes: as torch has it, rounded alike everywhere, and block by block.

All three make the same update from a sum of gradients over several micro-batches, so the division
of that sum is counted, too. The contenders take turns in one process with `--threads` threads.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from edgeagent.trainer.block_steps import steps_of
from edgeagent.trainer.exact_arithmetic import ExactArithmetic
from edgeagent.trainer.image import CPU
from edgeagent.trainer.mean import Mean
from edgeagent.trainer.validation import settle_implementation
from tests.testbed.bench.ground import say, turns

if TYPE_CHECKING:
    from torch.optim import Optimizer

HELP = "steps: an optimizer's step as torch has it, rounded alike everywhere, and block by block"
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=1e-6, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-6),
}
SHAPES = {"3 of 4 million": [(2048, 2048)] * 3, "200 of 64 x 64": [(64, 64)] * 200}
MEAN = Mean(4)
CONTENDERS = ("torch", "rounded alike", "block by block")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="N")
    parser.add_argument("--repeat", type=int, default=9, metavar="N")


def run(args: argparse.Namespace) -> int:
    """Measure, write and print; return 0."""
    rows = ["| optimizer | tensors | threads | " + " | ".join(CONTENDERS) + " |", "|---" * 6 + "|"]
    found: list[dict[str, Any]] = []
    for kind, make in OPTIMIZERS.items():
        for shapes, sizes in SHAPES.items():
            for threads in args.threads:
                torch.set_num_threads(threads)
                medians = _measured(make, sizes, args.repeat)
                found.append({"optimizer": kind, "tensors": shapes, "threads": threads, **medians})
                cells = [f"{1000 * medians[name]:.1f} ms" for name in CONTENDERS]
                rows.append(f"| {kind} | {shapes} | {threads} | " + " | ".join(cells) + " |")
                say(rows[-1])
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "steps.json").write_text(json.dumps(found, indent=1) + "\n")
    Path(args.out / "steps.md").write_text("\n".join(rows) + "\n")
    print("\n".join(rows))
    return 0


def _measured(
    make: Callable[[Any], Optimizer], sizes: list[tuple[int, int]], repeat: int
) -> dict[str, float]:
    """Return the median seconds of a step of each contender."""
    parameters = [torch.nn.Parameter(torch.randn(size)) for size in sizes]
    optimizer = make(parameters)
    settle_implementation(optimizer)
    totals = [torch.randn(size) for size in sizes]
    _torch(optimizer, parameters, totals)  # makes the slots
    steps = steps_of(optimizer, CPU)
    assert steps is not None, "this optimizer is not stepped block by block"

    def in_blocks() -> None:
        group = optimizer.param_groups[0]
        for parameter, total in zip(parameters, totals, strict=True):
            memory = optimizer.state[parameter]
            steps.step_parameter(parameter, total.view(-1), MEAN, memory, group)

    def rounded_alike() -> None:
        with ExactArithmetic():
            _torch(optimizer, parameters, totals)

    ways: dict[str, Callable[[], None]] = {
        "torch": lambda: _torch(optimizer, parameters, totals),
        "rounded alike": rounded_alike,
        "block by block": in_blocks,
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    with torch.no_grad():
        for count in range(repeat):
            for name in turns(CONTENDERS, count):
                began = time.perf_counter()
                ways[name]()
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(several) for name, several in times.items()}


def _torch(
    optimizer: Optimizer, parameters: list[torch.nn.Parameter], totals: list[torch.Tensor]
) -> None:
    for parameter, total in zip(parameters, totals, strict=True):
        parameter.grad = MEAN.of(total)
    optimizer.step()
