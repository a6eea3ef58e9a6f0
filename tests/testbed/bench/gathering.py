"""How long devices need to come together whose links are slow beside their gradients.

One device trains alone, the others start at one moment. Each pair has a link of its own, whose rate
is drawn for each direction. What is measured begins when the last device has started: until all are
members, until the plan has the links between all of them, and the rounds after that.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.testbed.bench import topologies
from tests.testbed.bench.ground import Busy, say
from tests.testbed.lab import Lab

HELP = "gathering: how long devices with slow links need to come together"
MB = 1_000_000
MOST_S = 900.0
ROUNDS = 5  # that are measured when all are there


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
    add = parser.add_argument
    add("--nodes", type=int, default=6, help="devices, 2 to 12 (6)")
    add("--seed", type=int, default=1, help="of the network's rates (1)")
    add("--mb", type=float, default=1.5, help="of gradients, and of the state (1.5)")
    add("--mbit", type=float, nargs=2, default=(0.6, 4.65), help="rates, Mbit/s (0.6 4.65)")
    add("--delay-ms", type=float, default=30.0, help="of each link, one way (30)")
    add("--compute-ms", type=float, default=0.0, help="of a micro-batch, one a device (0)")
    add("--repeats", type=int, default=3, help="runs (3)")


def run(args: argparse.Namespace) -> int:
    """Measure, write and print; return the exit status."""
    runs: list[dict[str, Any]] = []
    for number in range(args.repeats):
        runs.append(_run(args))
        say(f"{number + 1} of {args.repeats}: {runs[-1]}")
    args.out.mkdir(parents=True, exist_ok=True)
    about = {name: getattr(args, name) for name in ("nodes", "seed", "mb", "mbit", "compute_ms")}
    (args.out / "gathering.json").write_text(json.dumps({**about, "runs": runs}, indent=1))
    text = table(runs)
    (args.out / "gathering.md").write_text(text)
    print(text)
    return 0


def _run(args: argparse.Namespace) -> dict[str, Any]:
    plan = topologies.draw(args.nodes, args.seed, tuple(args.mbit), 0.0, args.delay_ms / 1e3)
    sizes = ("--gradient-mb", str(args.mb), "--state-mb", "0.1")
    job = (*sizes, "--compute-ms", str(args.compute_ms))
    options = ("--global-batch", str(args.nodes), "--micro-batch", "1")
    first, *others = plan.nodes
    with (
        plan.network() as net,
        tempfile.TemporaryDirectory() as folder,
        Lab(net, Path(folder), job) as lab,
    ):
        lab.start(first, *options).wait("joined", MOST_S)
        for node in others:
            lab.start(node, *options)
        for node in others:
            lab.agents[node].wait("started", MOST_S)
        began, before = time.monotonic(), Busy.now()
        lab.wait_together(*plan.nodes, seconds=MOST_S)
        members_s = time.monotonic() - began
        pairs = args.nodes * (args.nodes - 1) // 2
        lab.wait("all links", lambda: len(lab.status(first)["mesh"]) == pairs, MOST_S)
        links_s = time.monotonic() - began
        agent = lab.agents[first]
        at = agent.iteration + 1
        agent.wait_until("its rounds", lambda: agent.iteration >= at + ROUNDS, MOST_S)
        rounds = [e["sync_s"] for e in agent.all("step") if at < e["iteration"] <= at + ROUNDS]
    return {
        "members_s": round(members_s, 1),
        "links_s": round(links_s, 1),
        "round_s": round(statistics.median(rounds), 2),
        "bound_s": round(max(topologies.lower_bounds(plan, args.mb * MB).values()), 2),
        "processors_worked": round(Busy.now().since(before), 2),
    }


def table(runs: list[dict[str, Any]]) -> str:
    """Return what was measured as text."""
    lines = [
        "| run | all are members after | all links in the plan after | a round then | its bound"
        " | processors |",
        "|---|---|---|---|---|---|",
    ]
    for number, found in enumerate(runs, 1):
        lines.append(
            f"| {number} | {found['members_s']} s | {found['links_s']} s | {found['round_s']} s"
            f" | {found['bound_s']} s | {found['processors_worked']:.0%} |"
        )
    return "\n".join(lines) + "\n"
