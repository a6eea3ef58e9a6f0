"""What a step costs where gradients are small and links are fast: the work that a sum takes.

Two devices on loopback train a vector of weights with next to no computing. Several checkouts of
edgeagent may be compared, beside two processes of torch's DistributedDataParallel with gloo, whose
sums are neither checked nor encrypted.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from edgeagent.launch import package_environment
from tests.scenarios.cluster import free_ports
from tests.testbed.bench.frozen import ROOT, Checkout
from tests.testbed.bench.gpu import by_processes, median_step
from tests.testbed.bench.ground import say, turns, why
from tests.testbed.bench.report import Run, write
from tests.testbed.bench.trouble_stage import check_tree

HELP = "small: what a step with small gradients takes on fast links"
JOB = Path(__file__).with_name("small_job.py")
DDP = "DistributedDataParallel (gloo)"
START_S = 120.0
WARM = 50  # steps that are not counted
ITEM_BYTES = 4


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
    add = parser.add_argument
    add("--mb", type=float, nargs="+", default=[0.1, 1.0, 4.0], metavar="MB", help="of gradients")
    add("--steps", type=int, default=200, metavar="N", help="that are measured (200)")
    add("--repeat", type=int, default=3, metavar="N")
    add("--tree", type=Path, nargs="+", default=[ROOT], metavar="PATH", help="checkouts (this one)")


def run(args: argparse.Namespace) -> int:
    """Measure, write and print; return the exit status."""
    trees = {f"edgeagent, {tree.resolve().name}": tree.resolve() for tree in args.tree}
    for tree in trees.values():
        check_tree(tree)
    runs: list[Run] = []
    for megabytes in args.mb:
        case = f"{megabytes:g} MB of gradients"
        elements = int(megabytes * 1e6 / ITEM_BYTES)
        for repeat in range(args.repeat):
            for name in turns([DDP, *trees], repeat):
                try:
                    tree = trees.get(name)
                    seconds = _by_agents(args, tree, elements) if tree else _by_ddp(args, elements)
                except (AssertionError, OSError, subprocess.SubprocessError) as error:
                    runs.append(Run(case, name, None, why(error)))
                    say(f"{case}, {name}: {why(error)}")
                    continue
                runs.append(Run(case, name, seconds))
                say(f"{case}, {name}: {1000 * seconds:.2f} ms a step")
    write(args.out, "small", {"steps": args.steps}, runs, {})
    print((args.out / "small.md").read_text())
    return 0 if all(r.seconds is not None for r in runs if r.contender != DDP) else 1


def _by_ddp(args: argparse.Namespace, elements: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        (port,) = free_ports(1)
        shared = [sys.executable, str(JOB), "ddp", str(elements)]
        steps, file = str(args.steps + WARM), f"{folder}/times"
        commands = [[*shared, str(k), str(port), steps, f"{file}-{k}"] for k in range(2)]
        environment = {**package_environment({}), "OMP_NUM_THREADS": "1"}
        return by_processes(commands, environment, Path(f"{file}-0"), args.steps)


def _by_agents(args: argparse.Namespace, tree: Path, elements: int) -> float:
    with tempfile.TemporaryDirectory() as folder, Checkout(Path(folder), tree, JOB) as cluster:
        script = ("trainer", str(elements))
        first = cluster.start("alice", script=script)
        first.wait("joined", START_S)
        other = cluster.start("bob", peers=[first], script=script)
        other.wait("joined", START_S)
        begun = other.iteration
        wanted = begun + WARM + args.steps
        first.wait_until("steps", lambda: first.iteration >= wanted, START_S)
        steps = [e for e in first.all("step") if begun + WARM <= e["iteration"] <= wanted]
        return median_step([float(e["t"]) for e in steps], args.steps)
