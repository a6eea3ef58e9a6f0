"""How the output of a layer that is cut into subnets is best scaled, by optimizer and parts.

Trainers, nets and samples are those of `periods`. Each contender scales what is there of a layer by
the inverse of its part, by the root of that, or not at all (`subnet_scale`), since which is best
depends on the optimizer: with plain SGD a larger output makes larger steps, with Adam it does not.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from edgeagent.config import SUBNET_SCALES
from edgeagent.trainer.subnets import fully_connected
from tests.testbed.bench.ground import say
from tests.testbed.bench.periods import BATCH, KINDS, LAST, network, trained
from tests.testbed.bench.subnets import LOCAL_STEPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Parameters = Iterable[torch.nn.Parameter]

HELP = "scales: learning by how the outputs of divided layers are scaled, and by optimizer"
OPTIMIZERS: dict[str, Callable[[Parameters], torch.optim.Optimizer]] = {
    "SGD, rate 0.1, momentum 0.5": partial(torch.optim.SGD, lr=0.1, momentum=0.5),
    "SGD, rate 0.03": partial(torch.optim.SGD, lr=0.03),
    "AdamW, rate 0.003": partial(torch.optim.AdamW, lr=0.003),
    "AdamW, rate 0.001": partial(torch.optim.AdamW, lr=0.001),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The part of the test pictures that the whole model told right after each round."""

    optimizer: str
    scale: str
    kind: str
    seed: int
    accuracies: tuple[float, ...]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
    parser.add_argument("--rounds", type=int, default=60, help="of each run (60)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each contender (3)")
    parser.add_argument("--accuracy", type=float, default=0.9, help="part told right (0.9)")


def job(
    optimizer: str, scale: str, seed: int
) -> tuple[torch.nn.Module, torch.optim.Optimizer, dict[str, Any]]:
    """Return the model, the optimizer and the other arguments of `Trainer`."""
    torch.manual_seed(seed)
    model = network()
    settings = {"global_batch": BATCH, "local_steps": LOCAL_STEPS, "seed": seed}
    parts = {"subnets": fully_connected(model), "subnet_scale": scale}
    return model, OPTIMIZERS[optimizer](model.parameters()), {**settings, **parts}


def table(outcomes: Sequence[Outcome], accuracy: float) -> str:
    """Return Markdown: for each optimizer, scale and kind of parts the mean accuracy at the end,
    its range, and after how many rounds `accuracy` was reached (the median)."""
    columns = list(dict.fromkeys((o.scale, o.kind) for o in outcomes))
    head = ["optimizer", *(f"{scale}, {kind}" for scale, kind in columns)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for optimizer in dict.fromkeys(o.optimizer for o in outcomes):
        cells = [optimizer]
        for column in columns:
            runs = [o for o in outcomes if (o.optimizer, o.scale, o.kind) == (optimizer, *column)]
            cells.append(_cell(runs, accuracy))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(runs: Sequence[Outcome], accuracy: float) -> str:
    ends = [100 * statistics.mean(o.accuracies[-LAST:]) for o in runs]
    reached = [
        next((k for k, a in enumerate(o.accuracies, 1) if a >= accuracy), None) for o in runs
    ]
    known = sorted(k for k in reached if k is not None)
    # A run that never came there counts as later than all others.
    middle = known[len(runs) // 2] if len(known) > len(runs) // 2 else "never"
    return f"{statistics.mean(ends):.0f} % ({min(ends):.0f} to {max(ends):.0f}; {middle})"


def run(args: argparse.Namespace) -> int:
    """Measure, write and print; return 0."""
    outcomes: list[Outcome] = []
    args.out.mkdir(parents=True, exist_ok=True)
    for seed in range(1, args.seeds + 1):
        for optimizer in OPTIMIZERS:
            for scale in SUBNET_SCALES:
                for kind in KINDS:
                    make = partial(job, optimizer, scale, seed)
                    right, _ = trained(make, kind, args.rounds)
                    outcomes.append(Outcome(optimizer, scale, kind, seed, tuple(right)))
                    say(f"{optimizer}, {scale}, {kind}, seed {seed}: {right[-1]:.3f}")
        whole = [asdict(o) for o in outcomes]
        (args.out / "scales.json").write_text(json.dumps(whole, indent=1) + "\n")
        (args.out / "scales.md").write_text(table(outcomes, args.accuracy))
    print((args.out / "scales.md").read_text())
    return 0
