"""What a device with a slow link costs those who train, and what standby spares them.

Real agents of the synthetic job train on fast links, and one more has a slow one. In turns it may
stand by (`--standby auto`) and may not (`--standby never`). What happens, and what is reported:

- *it comes*: the device starts while the others train. Their samples/s from its start on, and
  once it has been there for a while.
- *its link becomes good*: the seconds until it is a member.
- *its link becomes slow*: it is a member, and its link falls. The others' samples/s from then on,
  and the longest step; the seconds until they are back at nine tenths of what they had alone.

Samples/s are parts of what the others reach alone, measured in the same run just before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeagent.errors import EdgeAgentError
from tests.testbed.bench.ground import Busy, calibrated, say, turns, why
from tests.testbed.lab import Lab
from tests.testbed.network import MBIT, Link, Network, both

if TYPE_CHECKING:
    from tests.scenarios.cluster import Agent

HELP = "standby: what a slow link costs the others if its device stands by, and if it may not"
WAYS = ("auto", "never")
SLOW = "tortoise"
BACK = 0.9  # of what the others reach alone
OVER_STEPS = 5  # the rate is taken over so many steps
JOIN_S = 400.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run. Rates are parts of `alone`, the others' samples/s without the device; times are in
    seconds, None for what did not happen. Without figures it failed, for the reason `why`."""

    way: str
    alone: float = 0.0
    coming: float = 0.0  # from the start of its process until it stands by or is a member
    there: float = 0.0  # then
    member_after_s: float | None = None  # it has a good link
    fallen: float = 0.0  # from the moment at which its link falls
    longest_s: float = 0.0  # step since then
    back_after_s: float | None = None
    why: str = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
    add = parser.add_argument
    add("--others", type=int, default=3, help="devices with fast links (3)")
    add("--mbit", type=float, default=100.0, help="of fast links (100)")
    add("--slow-mbit", type=float, default=2.0, help="of the slow ones (2)")
    add("--slow-delay-ms", type=float, default=80.0, help="of the slow ones, one way (80)")
    add("--state-mb", type=float, default=8.0, help="what a joiner copies (8)")
    add("--gradient-mb", type=float, default=2.0, help="payload (2)")
    add("--compute-ms", type=float, default=20.0, help="of one micro-batch (20)")
    add("--seconds", type=float, default=20.0, help="of each measurement (20)")
    add("--repeats", type=int, default=2, help="times each is measured (2)")


def run(args: argparse.Namespace) -> int:
    """Measure, write and print; return 0 if all runs ended."""
    outcomes: list[Outcome] = []
    busy = Busy.now()
    others = tuple(f"n{k}" for k in range(args.others))
    with Network((*others, SLOW), default=Link(args.mbit * MBIT, 1e-3)) as net:
        calibrated(net)
        for repeat in range(args.repeats):
            for way in turns(WAYS, repeat):
                try:
                    outcome = measured(args, net, others, way)
                except (AssertionError, EdgeAgentError) as error:
                    outcome = Outcome(way, why=why(error))
                outcomes.append(outcome)
                say(f"{way}: {asdict(outcome)}")
    settings = {k: v for k, v in vars(args).items() if isinstance(v, int | float | str)}
    worked = Busy.now().since(busy)
    args.out.mkdir(parents=True, exist_ok=True)
    whole = {"settings": settings, "busy": worked, "runs": [asdict(o) for o in outcomes]}
    (args.out / "standby.json").write_text(json.dumps(whole, indent=1) + "\n")
    (args.out / "standby.md").write_text(table(outcomes))
    print(table(outcomes))
    print(f"processors {100 * worked:.0f} % busy")
    return 1 if any(o.why for o in outcomes) else 0


def measured(args: argparse.Namespace, net: Network, others: tuple[str, ...], way: str) -> Outcome:
    """Return what happens in one run; the network is whole again afterwards."""
    good = Link(args.mbit * MBIT, 1e-3)
    bad = Link(args.slow_mbit * MBIT, args.slow_delay_ms / 1e3)
    slow = both({(name, SLOW): bad for name in others})
    fast = both({(name, SLOW): good for name in others})
    sizes = ("--state-mb", f"{args.state_mb:g}", "--gradient-mb", f"{args.gradient_mb:g}")
    job = (*sizes, "--compute-ms", f"{args.compute_ms:g}")
    net.set_links(slow)
    try:
        with tempfile.TemporaryDirectory() as folder, Lab(net, Path(folder), job) as lab:
            first, *_ = [lab.start(name, "--standby", way) for name in others]
            lab.wait_together(*others)
            time.sleep(args.seconds / 4)
            alone = _rate(first, time.time(), args.seconds)
            began = time.time()
            device = lab.start(SLOW, "--standby", way)
            arrived = "standby" if way == "auto" else "joined"
            here = device.wait(arrived, JOIN_S)["t"]
            coming = _between(first, began, here)
            there = _rate(first, here, args.seconds)
            net.set_links(fast)
            good_since = time.time()
            device.wait("joined", JOIN_S)
            entered = device.all("joined")[0]["t"]
            first.wait_until("steps together", lambda: _together(first, len(others) + 1), JOIN_S)
            time.sleep(args.seconds / 4)
            net.set_links(slow)
            fell = time.time()
            fallen = _rate(first, fell, 2 * args.seconds)
            steps = [(a, b) for a, b in pairwise(_steps(first)) if b["t"] > fell]
            return Outcome(
                way,
                alone,
                coming / alone,
                there / alone,
                max(0.0, entered - good_since) if way == "auto" else None,
                fallen / alone,
                max(b["t"] - a["t"] for a, b in steps),
                _back_after(first, fell, BACK * alone),
            )
    finally:
        net.set_links(fast)


def _steps(agent: Agent) -> list[dict[str, Any]]:
    return agent.all("step")


def _together(agent: Agent, members: int) -> bool:
    return len([e for e in _steps(agent) if e["members"] == members]) >= OVER_STEPS


def _rate(agent: Agent, since: float, seconds: float) -> float:
    """Wait for so many seconds from `since` on; return the samples/s in that time."""
    time.sleep(max(0.0, since + seconds - time.time()))
    return _between(agent, since, since + seconds)


def _between(agent: Agent, since: float, until: float) -> float:
    samples: int = sum(e["samples"] for e in _steps(agent) if since < e["t"] <= until)
    return samples / (until - since)


def _back_after(agent: Agent, since: float, rate: float) -> float | None:
    """Return after how many seconds from `since` on the agent's steps begin to reach `rate`."""
    for window in _windows([e for e in _steps(agent) if e["t"] >= since]):
        took = window[-1]["t"] - window[0]["t"]
        if sum(e["samples"] for e in window[1:]) >= rate * took:
            return float(window[0]["t"] - since)
    return None


def _windows(steps: Sequence[dict[str, Any]]) -> Iterator[Sequence[dict[str, Any]]]:
    for first in range(len(steps) - OVER_STEPS):
        yield steps[first : first + OVER_STEPS + 1]


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as Markdown: one row for each figure, medians, with the range of all
    runs."""
    rows = ["| | `--standby auto` | `--standby never` |", "|---|---|---|"]
    rows += [
        _row("the others alone, samples/s", outcomes, "alone", "{:.0f}"),
        _row("it comes: their samples/s until it is there", outcomes, "coming", "{:.2f} x"),
        _row("their samples/s then", outcomes, "there", "{:.2f} x"),
        _row("its link becomes good: a member after", outcomes, "member_after_s", "{:.1f} s"),
        _row("its link falls: their samples/s from then on", outcomes, "fallen", "{:.2f} x"),
        _row("longest step since then", outcomes, "longest_s", "{:.1f} s"),
        _row("back at nine tenths after", outcomes, "back_after_s", "{:.1f} s"),
    ]
    failed = [f"- {o.way}: failed: {o.why}" for o in outcomes if o.why]
    return "\n".join(rows + failed) + "\n"


def _row(title: str, outcomes: Sequence[Outcome], name: str, form: str) -> str:
    cells = [title]
    for way in WAYS:
        found = [getattr(o, name) for o in outcomes if o.way == way and not o.why]
        known = sorted(value for value in found if value is not None)
        if not known:
            cells.append("-")
            continue
        ends = f" ({form.format(known[0])} to {form.format(known[-1])})" if len(known) > 1 else ""
        cells.append(form.format(statistics.median(known)) + ends)
    return "| " + " | ".join(cells) + " |"
