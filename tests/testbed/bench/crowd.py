"""Several devices join at once: some exchange what they have copied, and some do not.

The members are few, and what each device sends and receives in all is limited, so the members alone
would need the longer the more devices come. Joiners exchange shards, or they copy from the members
alone (`--neighbours` with a number gives a joiner no other links than those), in turns. The scripts
of all joiners are loaded before the first one looks for the cluster. Reported for each number of
joiners:

- *longest pull*: of any joiner, from its first request to the last part of what it copied. Its
  bound is what a joiner can receive, less the updates that reach it meanwhile if it copies beside
  the training.
- *all in*: from the first joiner's first request until the last joiner is a member.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeagent.errors import EdgeAgentError
from tests.testbed.bench import dilation
from tests.testbed.bench.ground import Busy, say, turns, why
from tests.testbed.bench.report import Run, write
from tests.testbed.calibrate import TCP_SHARE
from tests.testbed.lab import Lab
from tests.testbed.network import MBIT, Limit, Link, Network
from tests.testbed.synthetic import READY

if TYPE_CHECKING:
    from tests.scenarios.cluster import Agent

HELP = "crowd: several devices join at once, with and without an exchange between them"
WAYS = {"exchange": (), "members alone": ("--neighbours",)}
JOIN_S = 300.0
GO = "go"  # the file for which a script waits, in its own folder
MEGA = 1e6


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
    add = parser.add_argument
    add("--members", type=int, default=1, help="devices that train (1)")
    add("--joiners", type=int, nargs="+", default=[1, 2, 4, 8], help="at once (1 2 4 8)")
    add(
        "--limit",
        type=float,
        default=20.0,
        help="of what a device sends, and receives, Mbit/s (20)",
    )
    add("--delay-ms", type=float, default=1.0, help="of every link, one way (1)")
    add("--state-mb", type=float, default=12.0, help="what a joiner copies (12)")
    add("--gradient-mb", type=float, default=0.1, help="payload (0.1)")
    add("--compute-ms", type=float, default=200.0, help="of one micro-batch (200)")
    add("--join", default="log", choices=("log", "pause", "auto"), help="how they copy (log)")
    add("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="(both)")
    add("--repeats", type=int, default=2, help="times each is measured (2)")
    dilation.add_option(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, write and print; return 0 if all runs ended."""
    runs: list[Run] = []
    busy = Busy.now()
    members = tuple(f"m{k}" for k in range(args.members))
    joiners = tuple(f"j{k}" for k in range(max(args.joiners)))
    rate = args.limit * MBIT / args.dilate
    limit, link = Limit(rate, rate), Link(rate, args.delay_ms / 1e3 * args.dilate)
    every = (*members, *joiners)
    with Network(every, default=link, limits=dict.fromkeys(every, limit)) as net:
        for repeat in range(args.repeats):
            for count in args.joiners:
                for way in turns(tuple(args.ways), repeat):
                    runs += measured(args, net, members, joiners[:count], way)
    settings = {k: v for k, v in vars(args).items() if isinstance(v, int | float | str | list)}
    about: dict[str, Any] = {"settings": settings, "busy": Busy.now().since(busy)}
    write(args.out, "crowd", about, runs, {})
    print((args.out / "crowd.md").read_text())
    print(f"processors {100 * about['busy']:.0f} % busy")
    return 0 if all(r.seconds is not None for r in runs) else 1


def job(state_mb: float, gradient_mb: float, compute_ms: float) -> tuple[str, ...]:
    """Return the arguments of the synthetic job, whose scripts wait for `begin`."""
    sizes = ("--state-mb", f"{state_mb:g}", "--gradient-mb", f"{gradient_mb:g}")
    return (*sizes, "--compute-ms", f"{compute_ms:g}", "--wait-for", GO)


def begin(agents: list[Agent]) -> None:
    """Let the scripts of all `agents` go on at one moment, once all are loaded."""
    for agent in agents:
        agent.wait_until("loaded", (agent.home / READY).exists, JOIN_S)
    for agent in agents:
        (agent.home / GO).touch()


def bound(state_mb: float, limit_mbit_s: float, updates_mb_s: float = 0.0) -> float:
    """Return the seconds in which all joiners can have the state at best. No device receives faster
    than it could send, and joiners send, too: it is the time that one joiner needs, which receives
    `updates_mb_s` of updates meanwhile. Infinite if these take all that it can receive."""
    rate = limit_mbit_s * MBIT * TCP_SHARE - updates_mb_s * MEGA
    return state_mb * MEGA / rate if rate > 0 else math.inf


def measured(
    args: argparse.Namespace,
    net: Network,
    members: tuple[str, ...],
    joiners: tuple[str, ...],
    way: str,
) -> list[Run]:
    """Return how long it takes until `joiners` have the state, and until they are members."""
    case = f"{len(joiners)} join {len(members)}"
    arguments = job(args.state_mb, args.gradient_mb, args.compute_ms * args.dilate)
    how = dilation.started(args.dilate)
    options = [*WAYS[way], f"{len(members)}"] if WAYS[way] else []
    try:
        with tempfile.TemporaryDirectory() as folder, Lab(net, Path(folder), arguments) as lab:
            begin([lab.start(name, "--join", args.join, **how) for name in members])
            lab.wait_together(*members)
            came = [lab.start(name, "--join", args.join, *options, **how) for name in joiners]
            begin(came)
            joined = [agent.wait("joined", JOIN_S * args.dilate) for agent in came]
            ends = [float(event["t"]) for event in lab.agents[members[0]].all("step")]
    except (AssertionError, EdgeAgentError) as error:
        say(f"{case}, {way}: failed: {why(error)}")
        return [Run(f"{case}: longest pull", way, None, why(error))]
    pulls = [float(event["seconds"]) / args.dilate for event in joined]
    begun, ended = min(e["t"] - e["seconds"] for e in joined), max(e["t"] for e in joined)
    steps = [b - a for a, b in pairwise(ends) if a >= begun and b <= ended]
    beside = args.join != "pause" and steps
    updates = args.gradient_mb / (statistics.median(steps) / args.dilate) if beside else 0.0
    least = bound(args.state_mb, args.limit, updates)
    from_members = sum(s["bytes"] for e in joined for s in e["sources"] if s["node"] in members)
    part = from_members / sum(e["bytes"] for e in joined)
    all_in = (ended - begun) / args.dilate
    say(f"{case}, {way}: pulls {pulls} s, bound {least:.3f} s, all in {all_in:.3f} s")
    say(f"of all bytes {100 * part:.0f} % came from members, {1e3 * updates:.1f} kB/s of updates")
    return [
        Run(f"{case}: longest pull", way, max(pulls), bound_s=least),
        Run(f"{case}: all in", way, all_in, bound_s=least),
    ]
