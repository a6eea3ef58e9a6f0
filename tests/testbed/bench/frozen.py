"""What a step takes while most of the model is frozen, as in fine-tuning with a low-rank adapter.

Such steps are short, and the state is large, so whatever an agent does with the whole state shows.
One device trains alone, without a network; torch alone runs the same loop. Several checkouts of
edgeagent may be compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeagent.launch import module_command
from tests.scenarios.cluster import TOKEN, Cluster
from tests.testbed.bench.ground import say, turns
from tests.testbed.bench.trouble_stage import check_tree
from tests.testbed.namespaces import TestbedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HELP = "frozen: what a step takes while most of the model is frozen"
JOB = Path(__file__).with_name("frozen_job.py")
ROOT = Path(__file__).resolve().parents[3]
RUN_S = 600.0
WARM = 20  # steps that are not counted
TORCH = "torch alone"


class Checkout(Cluster):
    """Agents that run the code of `tree`."""

    def __init__(self, folder: Path, tree: Path, job: Path = JOB) -> None:
        super().__init__(folder, job=str(job))
        self.tree = tree

    def environment(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of what is started, which finds the package in `tree`."""
        return {**super().environment(settings), "PYTHONPATH": str(self.tree)}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
    parser.add_argument("--millions", type=float, default=200.0, metavar="N", help="parameters")
    parser.add_argument("--milliseconds", type=float, default=20.0, metavar="MS")
    parser.add_argument("--steps", type=int, default=200, metavar="N")
    parser.add_argument("--repeat", type=int, default=3, metavar="N")
    parser.add_argument(
        "--tree", type=Path, nargs="+", default=[ROOT], metavar="PATH", help="checkouts (this one)"
    )


def run(args: argparse.Namespace) -> int:
    """Measure, write and print; return 0. Raises `TestbedError` if a run fails."""
    trees = {f"edgeagent, {tree.name}": tree.resolve() for tree in args.tree}
    for tree in trees.values():
        check_tree(tree)
    names, steps = [TORCH, *trees], {name: list[float]() for name in [TORCH, *trees]}
    for count in range(args.repeat):
        for name in turns(names, count):
            steps[name] += _steps(args, trees.get(name))
            say(f"{name}: {1000 * statistics.mean(steps[name]):.1f} ms a step")
    size = f"{4 * args.millions / 1000:.1f} GB frozen, {args.milliseconds:g} ms of computing"
    rows = [f"| {size} | mean | median | longest |", "|---" * 4 + "|"]
    found: dict[str, Any] = {"case": size, "steps_s": steps}
    for name, several in steps.items():
        figures = statistics.mean(several), statistics.median(several), max(several)
        rows.append(f"| {name} | " + " | ".join(f"{1000 * s:.1f} ms" for s in figures) + " |")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "frozen.json").write_text(json.dumps(found, indent=1) + "\n")
    (args.out / "frozen.md").write_text("\n".join(rows) + "\n")
    print("\n".join(rows))
    return 0


def _steps(args: argparse.Namespace, tree: Path | None) -> list[float]:
    """Return the seconds of the steps of one run, by torch alone if `tree` is None."""
    with tempfile.TemporaryDirectory() as folder, Checkout(Path(folder), tree or ROOT) as cluster:
        file = Path(folder) / "times.json"
        numbers = [str(args.millions), str(args.milliseconds), str(args.steps), str(file)]
        if tree is None:
            command: Sequence[str] = [sys.executable, str(JOB), "torch", *numbers]
        else:
            agent = ["run", str(JOB), "--no-mdns", "--listen", "127.0.0.1:0", "--no-save"]
            more = ["--threads", "1", "--", "trainer", *numbers]
            command = [*module_command("edgeagent"), *agent, *more]
        ended = cluster.launch("alone", command, {"EDGEAGENT_TOKEN": TOKEN})
        if ended.wait_exit(RUN_S) != 0:
            raise TestbedError(f"a run failed: {ended.log[-500:]}")
        over = json.loads(file.read_text())
        return [b - a for a, b in pairwise(over[WARM:])]
