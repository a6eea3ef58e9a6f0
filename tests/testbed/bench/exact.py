"""What sums of integers (`--exact`) cost: steps of built-in jobs with them and without, in turns.

Each run is one agent alone, so what is measured is the arithmetic: rounding each micro-batch to
integers, adding them, making floating-point numbers of the sum, choosing exponents. On the wire the
bytes are the same but for one mark in 256 numbers, so links make the ratio smaller.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from edgeagent.errors import EdgeAgentError
from tests.scenarios.cluster import Cluster
from tests.testbed.bench.ground import Busy, say, turns, why
from tests.testbed.bench.report import Run, write

HELP = "exact: steps with sums that do not depend on the order of addition, and without"
WARM = 10  # first steps that are left out
FLOATS, INTEGERS = "floating point", "--exact"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
    parser.add_argument("--jobs", nargs="+", default=["text", "digits"], metavar="JOB")
    parser.add_argument("--steps", type=int, default=40, help="that are measured (40)")
    parser.add_argument("--repeat", type=int, default=3, help="times each is measured (3)")
    parser.add_argument(
        "--no-overlap", action="store_true", help="gradients leave after backward() alone"
    )


def measured(args: argparse.Namespace, job: str, name: str) -> float:
    """Return how long a step takes in seconds, median."""
    options = ["--steps", str(WARM + args.steps)]
    options += ["--no-overlap"] if args.no_overlap else []
    options += ["--exact"] if name == INTEGERS else []
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder), job=job) as cluster:
        agent = cluster.start("alone", *options)
        if agent.wait_exit() != 0:
            raise EdgeAgentError(agent.describe())
        times = [float(event["t"]) for event in agent.all("step")][-args.steps :]
        return statistics.median(b - a for a, b in pairwise(times))


def run(args: argparse.Namespace) -> int:
    """Measure, write and print; return 0 if all runs ended."""
    runs: list[Run] = []
    steps: dict[tuple[str, str], list[float]] = {}
    busy = Busy.now()
    for repeat in range(args.repeat):
        for job in args.jobs:
            for name in turns((FLOATS, INTEGERS), repeat):
                try:
                    seconds = measured(args, job, name)
                except (AssertionError, EdgeAgentError) as error:
                    runs.append(Run(job, name, None, why(error)))
                    say(f"{job}, {name} failed: {why(error)}")
                    continue
                steps.setdefault((job, name), []).append(seconds)
                runs.append(Run(job, name, seconds))
                say(f"{job}, {name}: {1e3 * seconds:.1f} ms")
    usual = {
        job: statistics.median(steps[job, FLOATS]) for job in args.jobs if (job, FLOATS) in steps
    }
    settings = {k: v for k, v in vars(args).items() if isinstance(v, (int, float, str, list))}
    about: dict[str, Any] = {"settings": settings, "busy": Busy.now().since(busy)}
    write(args.out, "exact", about, runs, usual)
    print((args.out / "exact.md").read_text())
    print(f"processors {100 * about['busy']:.0f} % busy; times over those of {FLOATS}")
    return 0 if all(r.seconds is not None for r in runs) else 1
