"""What a divided optimizer state (`--shard-optimizer`) saves in memory, and what its steps cost.

Real agents train the same model with Adam, each with a whole optimizer or each with a part of one,
over links of one rate. Memory is what the kernel counts of the regions that an agent and its
trainer share, in which weights, slots and sums lie, per parameter; and, apart from that, what the
agent process has to itself. It is measured once every copy is there and some steps have passed.
What all of that should be follows from the number of devices n and of copies k:

    whole optimizer:    4 weights + 8 slots + 4 own sum + 8 sums of two iterations
    divided optimizer:  4 weights + 4 own sum + 4 new weights + (8 slots + 4 sums) (1 + k) / n

A step's bound is not given: `scripts/bench all-reduce` has that of the sums.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeagent.errors import EdgeAgentError
from edgeagent.memory import usage
from tests.scenarios.processes import living
from tests.testbed.bench.ground import Busy, say, why
from tests.testbed.lab import Lab
from tests.testbed.network import MBIT, Link, Network

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


HELP = "divided: memory and steps with an optimizer's state divided among the devices, and whole"
JOB = Path(__file__).resolve().parent / "divided_job.py"
REGION = "memfd:edgeagent"  # how the kernel names what an agent and its trainer share
SETTLED_S = 600.0
STEPS = 12  # that are measured, and that must pass after the last copy has come
WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run. `shared` are bytes a parameter, of each device; `own` bytes that each agent has to
    itself. Without `shared` it failed, for the reason `why`."""

    devices: int
    way: str
    formula: float
    shared: tuple[float, ...] = ()
    own: tuple[int, ...] = ()
    step_s: float = 0.0
    why: str = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
    add = parser.add_argument
    add("--nodes", type=int, nargs="+", default=[2, 3, 4, 6, 8], help="devices (2 3 4 6 8)")
    add("--copies", type=int, nargs="+", default=[1], metavar="K", help="of each part (1)")
    add("--parameters", type=int, default=4_000_000, metavar="N", help="of the model (4000000)")
    add("--mbit", type=float, default=1000.0, help="of each link (1000)")
    add("--delay-ms", type=float, default=1.0, help="of each link, one way (1)")


def formula(devices: int, copies: int | None) -> float:
    """Return the bytes a parameter that a device should hold. `copies`: None for a whole
    optimizer."""
    if copies is None:
        return 24.0
    return 12.0 + 12.0 * min(devices, 1 + copies) / devices


def shared_bytes(pids: Iterable[int]) -> float:
    """Return the bytes of shared regions that are in memory on account of these processes."""
    total, counts = 0, False
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            first = line.split(" ", 1)[0]
            if "-" in first:  # the line with which a mapping begins
                counts = REGION in line
            elif first == "Pss:" and counts:
                total += 1024 * int(line.split()[1])
    return float(total)


def run(args: argparse.Namespace) -> int:
    """Measure, write and print; return 0 if all runs ended."""
    outcomes: list[Outcome] = []
    before = Busy.now()
    for count in args.nodes:
        nodes = tuple("abcdefghijklmnop"[:count])
        for copies in (None, *(k for k in args.copies if k < count)):
            way = WHOLE if copies is None else f"{copies} copies"
            with Network(nodes, default=Link(args.mbit * MBIT, args.delay_ms / 1e3)) as net:
                try:
                    outcome = measured(args, net, copies, way)
                except (AssertionError, EdgeAgentError) as error:
                    outcome = Outcome(count, way, formula(count, copies), why=why(error))
            outcomes.append(outcome)
            say(_row(outcome))
            _write(args, outcomes, Busy.now().since(before))
    print((args.out / "divided.md").read_text())
    return 0 if all(o.shared for o in outcomes) else 1


def measured(args: argparse.Namespace, net: Network, copies: int | None, way: str) -> Outcome:
    """Train once; return what it took."""
    options = ["--threads", "1"]
    if copies is not None:
        options += ["--shard-optimizer", "--copies", str(copies)]
    arguments = ("--parameters", str(args.parameters))
    with (
        tempfile.TemporaryDirectory() as folder,
        Lab(net, Path(folder), arguments, str(JOB)) as lab,
    ):
        for count, node in enumerate(net.nodes, 1):  # one after another: each start takes a while
            lab.start(node, *options)
            lab.wait_together(*net.nodes[:count])
        if copies is not None:
            lab.wait("all copies", lambda: is_complete(lab, copies), SETTLED_S)
        first = lab.agents[net.nodes[0]]
        begun = first.iteration
        lab.wait("steps", lambda: first.iteration > begun + STEPS, SETTLED_S)
        times = [float(e["t"]) for e in first.all("step")][-STEPS:]
        shared, own = [], []
        for agent in lab.agents.values():
            leader = net.session(agent.process)
            pids = [p.pid for p in living() if p.session == leader]
            shared.append(shared_bytes(pids) / args.parameters)
            # Of an agent and its trainer, which has torch, the agent takes less.
            found = [taken.own for pid in pids if (taken := usage(pid)) is not None]
            own.append(min(found, default=0))
    step = statistics.median(b - a for a, b in pairwise(times))
    devices = len(net.nodes)
    return Outcome(devices, way, formula(devices, copies), tuple(shared), tuple(own), step)


def is_complete(lab: Lab, copies: int) -> bool:
    """Whether each part has its copies, and all devices have about equally many."""
    divided = lab.status(next(iter(lab.agents)))["divided"]
    if divided is None or divided["learning"] or divided["survives"] < copies:
        return False
    held = divided["held"].values()
    return len(held) == len(lab.agents) and max(held) - min(held) <= 1


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as Markdown."""
    head = [
        "devices",
        "optimizer",
        "bytes a parameter",
        "formula",
        "over it",
        "of the agent",
        "step",
    ]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*rows, *map(_row, outcomes)]) + "\n"


def _row(outcome: Outcome) -> str:
    if not outcome.shared:
        return f"| {outcome.devices} | {outcome.way} | failed: {outcome.why} | | | | |"
    most = max(outcome.shared)
    cells = [str(outcome.devices), outcome.way, f"{min(outcome.shared):.2f} to {most:.2f}"]
    cells += [f"{outcome.formula:.2f}", f"{100 * (most / outcome.formula - 1):+.1f} %"]
    cells += [f"{max(outcome.own) / 1e6:.0f} MB", f"{outcome.step_s:.2f} s"]
    return "| " + " | ".join(cells) + " |"


def _write(args: argparse.Namespace, outcomes: Sequence[Outcome], busy: float) -> None:
    settings: dict[str, Any] = {k: v for k, v in vars(args).items() if k not in ("do", "out")}
    args.out.mkdir(parents=True, exist_ok=True)
    whole = {"settings": settings, "busy": busy, "runs": [asdict(o) for o in outcomes]}
    (args.out / "divided.json").write_text(json.dumps(whole, indent=1) + "\n")
    (args.out / "divided.md").write_text(table(outcomes))
