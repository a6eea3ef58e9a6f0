"""How much of the all-reduce takes place during `backward()`, on links of one rate.

Real agents train `tests/scenarios/scripts/layered.py`, in which each layer's backward pass sleeps,
so that the links and not the processors are measured. First nothing sleeps and gradients leave at
the end: that is the round. Then computing takes as long as the round, and gradients leave at the
end or early, in turns. Each node has one micro-batch a step. What is reported is a step of the
first node, and how many times as long it takes as the longer of computing and round.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeagent.errors import EdgeAgentError
from tests.scenarios.processes import kill_session
from tests.testbed.agents import Launcher
from tests.testbed.bench.ground import Busy, calibrated, say, turns, why
from tests.testbed.bench.report import Run, write
from tests.testbed.network import MBIT, Link, Network

if TYPE_CHECKING:
    from tests.scenarios.cluster import Agent

HELP = "overlap: a step with gradients that leave during backward, and without"
SCRIPT = Path(__file__).resolve().parents[2] / "scenarios" / "scripts" / "layered.py"
SETTLE_STEPS = 12  # in which links are measured and the script is watched
WAIT_S = 240.0
FLOAT_BYTES = 4
ROUND, APART, EARLY = "round alone", "computing, then the round", "early"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
    parser.add_argument("--nodes", type=int, default=3, help="devices, 2 to 6 (3)")
    parser.add_argument("--mbit", type=float, default=40.0, help="rate of each link (40)")
    parser.add_argument("--delay-ms", type=float, default=2.0, help="of each link, one way (2)")
    parser.add_argument("--gradient-mb", type=float, default=4.0, help="payload, MB (4)")
    parser.add_argument("--layers", type=int, default=20, help="of the model (20)")
    parser.add_argument("--steps", type=int, default=15, help="that are measured (15)")
    parser.add_argument("--repeat", type=int, default=2, help="times each is measured (2)")


def measured(args: argparse.Namespace, net: Network, computing: float, *options: str) -> float:
    """Return how long a step takes in seconds, median, if backward takes `computing` seconds."""
    elements = int(args.gradient_mb * 1e6 / FLOAT_BYTES / args.layers)
    script = ("-", args.layers, elements, computing / args.layers)
    batch = ("--global-batch", str(args.nodes), "--micro-batch", "1")
    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher(net, Path(folder), "lab", str(SCRIPT), tuple(map(str, script)))
        agents: list[Agent] = []
        try:
            for node in net.nodes:
                agents.append(launcher.start(node, (*batch, *options)))
            for agent in agents:
                agent.wait_members(*net.nodes)
            first = agents[0]
            last = first.iteration + SETTLE_STEPS + args.steps + 1
            first.wait_until("steps", lambda: first.iteration >= last, WAIT_S)
            times = [float(e["t"]) for e in first.all("step")][-args.steps - 1 :]
            return statistics.median(b - a for a, b in pairwise(times))
        finally:
            for agent in agents:
                kill_session(net.session(agent.process))
                agent.process.wait()


def run(args: argparse.Namespace) -> int:
    """Measure, write and print; return 0 if all runs ended."""
    runs: list[Run] = []
    steps: dict[str, list[float]] = {ROUND: [], APART: [], EARLY: []}
    case = f"{args.nodes} nodes, {args.gradient_mb:g} MB, {args.mbit:g} Mbit/s"
    busy = Busy.now()

    def take(name: str, net: Network, computing: float) -> None:
        option = "--overlap" if name == EARLY else "--no-overlap"
        try:
            steps[name].append(measured(args, net, computing, option))
            runs.append(Run(case, name, steps[name][-1]))
            say(f"{name}: {steps[name][-1]:.3f} s")
        except (AssertionError, EdgeAgentError) as error:
            runs.append(Run(case, name, None, why(error)))
            say(f"{name} failed: {why(error)}")

    nodes = tuple("abcdef"[: args.nodes])
    with Network(nodes, default=Link(args.mbit * MBIT, args.delay_ms / 1e3)) as net:
        calibrated(net)
        for _ in range(args.repeat):
            take(ROUND, net, 0.0)
        alone = statistics.median(steps[ROUND]) if steps[ROUND] else 0.0
        for k in range(args.repeat if alone else 0):
            for name in turns((APART, EARLY), k):
                take(name, net, alone)
    settings = {k: v for k, v in vars(args).items() if isinstance(v, (int, float, str))}
    about: dict[str, Any] = {"settings": settings, "busy": Busy.now().since(busy)}
    write(args.out, "overlap", about, runs, {case: alone} if alone else {})
    print((args.out / "overlap.md").read_text())
    print(f"computing {alone:.3f} s; processors {100 * about['busy']:.0f} % busy")
    return 0 if all(r.seconds is not None for r in runs) else 1
