"""What it costs to learn if the model is divided into subnets anew only after several rounds.

Four trainers, as scripts have them, train independent subnets of a net of three linear layers on
the digits. A fake agent deals out the same cells in each round, equal ones or as for devices that
are 1, 1.93, 3.5 and 2.85 times as slow, so that nothing depends on time and a device keeps its part
for a whole period. After each round the whole model is judged by the test pictures. Each contender
begins with the same weights and sees the same samples.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from edgeagent.planner.shares import ShareRule, measured_shares
from edgeagent.trainer.subnets import fully_connected
from models.digits import Digits
from tests.testbed.bench.ground import say
from tests.testbed.bench.subnets import LOCAL_STEPS, SLOW
from tests.unit.trainer.replicas import run_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgeagent.trainer import Trainer

    Make = Callable[[], tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]]

HELP = "periods: learning if subnets are drawn anew in each round or after several"
BATCH, HIDDEN, RATE = 32, 128, 3e-3
CELLS = 64
LAST = 5  # so many judgements at the end count together
EQUAL, UNEQUAL = KINDS = ("equal parts", "unequal parts")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The part of the test pictures that the whole model told right after each round, and its loss
    there."""

    kind: str
    period: int
    seed: int
    accuracies: tuple[float, ...]
    losses: tuple[float, ...]

    @property
    def end(self) -> float:
        """The accuracy at the end."""
        return statistics.mean(self.accuracies[-LAST:])

    @property
    def loss(self) -> float:
        """The loss at the end."""
        return statistics.mean(self.losses[-LAST:])

    def reached(self, accuracy: float) -> int | None:
        """Return after how many rounds this accuracy was there, None for never."""
        return next((k for k, a in enumerate(self.accuracies, 1) if a >= accuracy), None)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
    parser.add_argument("--rounds", type=int, default=60, help="of each run (60)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each contender (3)")
    parser.add_argument(
        "--periods", type=int, nargs="+", default=[1, 5, 20, 60], metavar="N", help="rounds"
    )
    parser.add_argument("--accuracy", type=float, default=0.9, help="part told right (0.9)")


def shares_of(kind: str) -> list[int]:
    """Return how many cells each device has."""
    if kind == EQUAL:
        return [CELLS // len(SLOW)] * len(SLOW)
    net = network()
    speeds = {bytes([k]): slow for k, slow in enumerate(SLOW.values())}
    rule = ShareRule(fully_connected(net).cost(net))
    return list(measured_shares(tuple(speeds), CELLS, (), speeds, rule=rule).shares)


def network() -> nn.Module:
    """Return the net, with weights by torch's present seed."""
    layers = (nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(HIDDEN, 10))


def job(period: int, seed: int) -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
    """Return the model, the optimizer and the other arguments of `Trainer`."""
    torch.manual_seed(seed)
    model = network()
    settings = {"global_batch": BATCH, "local_steps": LOCAL_STEPS, "seed": seed}
    parts = {"subnets": fully_connected(model), "subnet_period": period}
    return model, torch.optim.AdamW(model.parameters(), lr=RATE), {**settings, **parts}


def judged(out: Path, trainer: Trainer, model: nn.Module, dataset: Any) -> None:
    """The loop of a script. Writes accuracies and losses into `out`, on all devices the same."""
    test = Digits(train=False)
    found: tuple[list[float], list[float]] = ([], [])
    with contextlib.redirect_stderr(io.StringIO()):  # what each trainer says at its beginning
        for x, y in trainer.loader(dataset):
            loss = nn.functional.cross_entropy(trainer.model(x), y)
            loss.backward()
            if trainer.update(loss):
                with torch.no_grad():
                    output = model(test.images)
                right = output.argmax(dim=1) == test.labels
                found[0].append(float(right.float().mean()))
                found[1].append(float(nn.functional.cross_entropy(output, test.labels)))
    own = out.with_suffix(f".{os.getpid()}")
    own.write_text(json.dumps(found))
    own.replace(out)


def trained(make: Make, kind: str, rounds: int) -> tuple[list[float], list[float]]:
    """Train the job that `make` makes with parts of this kind; return accuracies and losses of the
    test pictures after each round."""
    shares = shares_of(kind)
    how: dict[str, Any] = {"shares": lambda _round, _active: shares, "reads": lambda _round: False}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        loop = partial(judged, out)
        run_cluster(make, len(SLOW), rounds, Digits, how, loop)
        accuracies, losses = json.loads(out.read_text())
    return accuracies, losses


def table(outcomes: Sequence[Outcome], accuracy: float) -> str:
    """Return accuracy and loss at the end (mean and range) and when `accuracy` was reached (median)
    in a table in Markdown."""
    until = f"rounds until {accuracy:.0%}"
    lines = [
        f"| | period | runs | accuracy at the end | loss at the end | {until} |",
        "|---|---|---|---|---|---|",
    ]
    for kind, period in dict.fromkeys((o.kind, o.period) for o in outcomes):
        runs = [o for o in outcomes if (o.kind, o.period) == (kind, period)]
        ends, losses = [100 * o.end for o in runs], [o.loss for o in runs]
        reached = [o.reached(accuracy) for o in runs]
        known = sorted(r for r in reached if r is not None)
        # A run that never came there counts as later than all others.
        middle = known[len(runs) // 2] if len(known) > len(runs) // 2 else "never"
        accurate = f"{statistics.mean(ends):.1f} % ({min(ends):.1f} to {max(ends):.1f})"
        lost = f"{statistics.mean(losses):.3f} ({min(losses):.3f} to {max(losses):.3f})"
        lines.append(f"| {kind} | {period} | {len(runs)} | {accurate} | {lost} | {middle} |")
    return "\n".join(lines) + "\n"


def run(args: argparse.Namespace) -> int:
    """Measure, write and print; return 0."""
    outcomes: list[Outcome] = []
    for seed in range(1, args.seeds + 1):
        for kind in KINDS:
            for period in args.periods:
                found = trained(partial(job, period, seed), kind, args.rounds)
                accuracies, losses = map(tuple, found)
                outcomes.append(Outcome(kind, period, seed, accuracies, losses))
                say(f"{kind}, period {period}, seed {seed}: {outcomes[-1].end:.3f}")
    args.out.mkdir(parents=True, exist_ok=True)
    whole = [asdict(o) for o in outcomes]
    (args.out / "periods.json").write_text(json.dumps(whole, indent=1) + "\n")
    (args.out / "periods.md").write_text(table(outcomes, args.accuracy))
    print((args.out / "periods.md").read_text())
    return 0
