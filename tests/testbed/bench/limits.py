"""What limits devices, and how fast their links are: is it found, and how soon do plans follow?

All pairs of devices are linked, and each device sends and receives no more than a limit of its own,
as by a radio or a line to the internet, which is below what its links carry together. After a
while all limits are dealt out anew among the devices. What the agents have found is compared with
what the testbed was told, three rounds after that and at the end; a round's time with the optimum
of the linear program that knows links and limits.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

from tests.bounds.packing import packing
from tests.testbed.bench.ground import Busy, say
from tests.testbed.lab import Lab
from tests.testbed.network import MBIT, Limit, Link, Network

HELP = "limits: whether the limits of devices are found, and what rounds take then"
MB = 1_000_000
TOGETHER_S = 300.0
ROUNDS_AFTER = 3  # after which the figures are read
TCP_SHARE = 0.955  # of a rate on the wire that is payload


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
    add = parser.add_argument
    add(
        "--limits",
        type=float,
        nargs="+",
        default=[60.0, 60.0, 24.0, 24.0, 15.0],
        metavar="MBIT",
        help="of each device, both ways (60 60 24 24 15)",
    )
    add("--link", type=float, default=30.0, metavar="MBIT", help="of each link alone (30)")
    add("--delay-ms", type=float, default=2.0, help="of each link, one way (2)")
    add("--mb", type=float, default=2.0, help="of gradients (2)")
    add("--compute-ms", type=float, default=200.0, help="of a micro-batch, one a step (200)")
    add("--changes", type=int, default=2, help="how often the limits are dealt out anew (2)")
    add("--rounds", type=int, default=20, help="between two changes (20)")


def run(args: argparse.Namespace) -> int:
    """Measure, write and print; return the exit status."""
    nodes = tuple("abcdefghijkl"[: len(args.limits)])
    phases: list[dict[str, Any]] = []
    limits = dict(zip(nodes, args.limits, strict=True))
    links = {
        pair: Link(rate=args.link * MBIT, delay_s=args.delay_ms / 1e3)
        for pair in permutations(nodes, 2)
    }
    both = {node: Limit(mbit * MBIT, mbit * MBIT) for node, mbit in limits.items()}
    job = ("--gradient-mb", str(args.mb), "--state-mb", "0.1", "--compute-ms", str(args.compute_ms))
    options = ("--global-batch", str(len(nodes)), "--micro-batch", "1")
    with (
        Network(nodes, links, limits=both) as net,
        tempfile.TemporaryDirectory() as folder,
        Lab(net, Path(folder), job) as lab,
    ):
        for node in nodes:
            lab.start(node, *options)
        lab.wait_together(*nodes, seconds=TOGETHER_S)
        for change in range(args.changes + 1):
            if change:
                limits = dict(
                    zip(nodes, [*list(limits.values())[1:], limits[nodes[0]]], strict=True)
                )
                for node, mbit in limits.items():
                    net.set_limit(node, Limit(mbit * MBIT, mbit * MBIT))
            phases.append(_phase(args, lab, limits))
            say(_in_words(phases[-1]))
    args.out.mkdir(parents=True, exist_ok=True)
    about = {"link_mbit": args.link, "mb": args.mb, "compute_ms": args.compute_ms}
    (args.out / "limits.json").write_text(json.dumps({**about, "phases": phases}, indent=1))
    text = table(phases)
    (args.out / "limits.md").write_text(text)
    print(text)
    return 0


def _phase(args: argparse.Namespace, lab: Lab, limits: Mapping[str, float]) -> dict[str, Any]:
    """Watch rounds under these limits."""
    first = next(iter(lab.agents.values()))
    began, at, before = time.monotonic(), first.iteration, Busy.now()
    policy = lab.status(first.name)["policy"]
    first.wait_iteration(at + 1 + ROUNDS_AFTER)  # the running round has begun before
    soon_s, soon = time.monotonic() - began, _found(lab)
    first.wait_until(
        "its rounds", lambda: first.iteration >= at + args.rounds, seconds=60.0 * args.rounds
    )
    status = lab.status(first.name)
    steps = [e for e in first.all("step") if e["iteration"] > at + 1]
    numbers = [e["iteration"] for e in steps]
    goodput = [[0.0] * len(limits) for _ in limits]
    for k, m in permutations(range(len(limits)), 2):
        goodput[k][m] = args.link * MBIT * TCP_SHARE
    most = [mbit * MBIT * TCP_SHARE for mbit in limits.values()]
    return {
        "limits_mbit": dict(limits),
        "read_after_s": round(soon_s, 1),
        "found_after_three": soon,
        "found_at_the_end": _found(lab),
        "policies": status["policy"] - policy,
        "rounds_s": [round(e["sync_s"], 3) for e in steps],
        "lost_steps": numbers[-1] - numbers[0] + 1 - len(numbers),
        "bound_s": round(args.mb * MB / packing(goodput, up=most, down=most).rate, 3),
        "processors_worked": round(Busy.now().since(before), 2),
        "reason": status["reason"],
    }


def _found(lab: Lab) -> dict[str, dict[str, float | None]]:
    """Return what the first agent knows of each member: Mbit/s out and in, and of its links."""
    status = lab.status(next(iter(lab.agents)))
    rates: dict[str, list[float]] = {}
    for pair in status["mesh"]:
        for node, rate in ((pair["a"], pair["there_mbit_s"]), (pair["b"], pair["back_mbit_s"])):
            if rate is not None:
                rates.setdefault(node, []).append(rate)
    return {
        m["name"]: {
            "out": m.get("most_out_mbit_s"),
            "in": m.get("most_in_mbit_s"),
            "links": round(statistics.median(rates[m["name"]]), 2) if m["name"] in rates else None,
        }
        for m in status["members"]
    }


def _in_words(phase: Mapping[str, Any]) -> str:
    found = ", ".join(
        f"{node} {mbit:g}: {phase['found_at_the_end'].get(node)}"
        for node, mbit in phase["limits_mbit"].items()
    )
    return (
        f"rounds {statistics.median(phase['rounds_s']):.2f} s (bound {phase['bound_s']:.2f} s),"
        f" {phase['policies']} policies, {found}"
    )


def table(phases: list[dict[str, Any]]) -> str:
    """Return what was found as text."""
    lines = [
        "| change | device | limit, Mbit/s | sends, three rounds later | at the end"
        " | receives, three rounds later | at the end |",
        "|---|---|---|---|---|---|---|",
    ]
    for number, phase in enumerate(phases):
        for node, mbit in phase["limits_mbit"].items():
            soon, end = (
                phase[key].get(node, {}) for key in ("found_after_three", "found_at_the_end")
            )
            cells = [soon.get("out"), end.get("out"), soon.get("in"), end.get("in")]
            words = ["none" if x is None else f"{x:.1f}" for x in cells]
            lines.append(f"| {number} | {node} | {mbit:g} | {' | '.join(words)} |")
    lines += [
        "",
        "| change | three rounds, s | round, s, median | the last five | bound, s | over it"
        " | policies | steps lost | processors |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for number, phase in enumerate(phases):
        rounds = phase["rounds_s"]
        last = statistics.median(rounds[-5:])
        lines.append(
            f"| {number} | {phase['read_after_s']} | {statistics.median(rounds):.3f} | {last:.3f}"
            f" | {phase['bound_s']:.3f} | {last / phase['bound_s']:.2f} | {phase['policies']}"
            f" | {phase['lost_steps']} | {phase['processors_worked']:.0%} |"
        )
    return "\n".join(lines) + "\n"
