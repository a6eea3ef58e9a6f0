"""`scripts/bench scale-out`: one more node joins; how long until it has the training state.

All contenders of a repeat get the same random rates, which are calibrated, and take turns, each
with processes of its own. The order of turns changes with every repeat. A pull is compared with the
fluid bound over the joiner's neighbours. The figures are:

- *admit*: from the joiner's process being ready to its first request
- *pull*: from there to the last shard verified
- *enter*: from there to the first step of all members
- *warm*: these three together (for contenders that stop all members: stopping, carrying the file,
  and joining once all processes are ready)
- *total*: the same with the start of processes
- *idle*: how long the mean member was held up

Whatever goes wrong in a turn is a failed line of the table.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

from tests.testbed.bench import programs, stop_resume, strategies
from tests.testbed.bench.ground import calibrated, say, turns, why
from tests.testbed.bench.report import Run, table, write
from tests.testbed.bench.trial import JOINER, Outcome, Trial
from tests.testbed.calibrate import TCP_SHARE
from tests.testbed.namespaces import TestbedError
from tests.testbed.network import MBIT, Link, Network

HELP = "one more node joins a cluster that trains; ours, other strategies and real peers"
OURS = "greedy (ours)"
LOW, HIGH = 20 * MBIT, 200 * MBIT
CASES = {
    "pull": "pull",
    "admit": "admit",
    "enter": "enter",
    "warm": "total once processes run",
    "total": "total",
    "idle": "each member idle",
}
PICTURED = CASES["pull"]

CONTENDERS: dict[str, Callable[[Trial], Outcome]] = {
    OURS: partial(strategies.join, strategy="greedy"),
    "optimum": partial(strategies.join, strategy="optimum"),
    "even": partial(strategies.join, strategy="even"),
    "fastest (EDL+)": partial(strategies.join, strategy="fastest"),
    "multi-hop (Autoscaling)": programs.multi_hop,
    "stop, resume (Pollux)": stop_resume.stop_resume,
    "hivemind": programs.hivemind,
    "torchft": programs.torchft,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
    add = parser.add_argument
    add("--members", type=int, nargs="+", default=[6, 11], metavar="N", help="before the join")
    add("--neighbours", type=int, default=4, metavar="N", help="of the joiner")
    add("--repeats", type=int, default=5, metavar="N", help="each with rates drawn anew")
    add("--state-mb", type=float, default=60.0)
    add("--gradient-mb", type=float, default=0.1)
    add("--compute-ms", type=float, default=10.0, help="of one micro-batch")
    add("--delay-ms", type=float, default=1.0, help="of every link, one way")
    add("--settle-s", type=float, default=3.0, help="of training before the join")
    add("--seed", type=int, default=1)
    add("--only", nargs="+", metavar="TEXT", help="contenders whose name holds one of these texts")
    add("--hivemind-python", default=sys.executable, help="an interpreter that has hivemind")
    add("--torchft-python", default=sys.executable, help="an interpreter that has torchft")


@dataclass(slots=True)
class Results:
    """What has been measured so far."""

    runs: list[Run] = field(default_factory=list)
    bounds: dict[str, list[float]] = field(default_factory=dict)
    turns: list[dict[str, Any]] = field(default_factory=list)


def run(args: argparse.Namespace) -> int:
    """Measure, write the results, print the table; return the exit status."""
    results = Results()
    try:
        for count in args.members:
            _scale_out(args, count, results)
    finally:
        if results.runs:
            bounds = {case: statistics.median(each) for case, each in results.bounds.items()}
            cases = dict.fromkeys(r.case for r in results.runs)
            pictured = [case for case in cases if case.endswith(PICTURED)]
            measured = about(args, results)
            found = write(args.out, "scale-out", measured, results.runs, bounds, pictured)
            print(table(found, bounds))
    mine = [r for r in results.runs if r.contender == OURS]
    return 0 if all(r.seconds is not None for r in mine) else 1


def about(args: argparse.Namespace, results: Results) -> dict[str, Any]:
    """Return what the JSON contains in addition to the times."""
    chosen = {k: v for k, v in vars(args).items() if isinstance(v, int | float | str | list)}
    return {
        "options": chosen,
        "rates": "each direction of each pair drawn from 20 to 200 Mbit/s, anew each repeat",
        "turns": results.turns,
    }


def draw(
    dice: random.Random, members: Sequence[str], neighbours: int, delay_s: float
) -> tuple[dict[tuple[str, str], Link], tuple[str, ...]]:
    """Return the links of all directed pairs, and the joiner's neighbours."""
    pairs = permutations((*members, JOINER), 2)
    links = {pair: Link(rate=dice.uniform(LOW, HIGH), delay_s=delay_s) for pair in pairs}
    return links, tuple(sorted(dice.sample(list(members), min(neighbours, len(members)))))


def chosen(only: Sequence[str] | None) -> list[str]:
    """Return the contenders that are asked for; raise `TestbedError` if there is none."""
    names = [n for n in CONTENDERS if not only or any(text in n for text in only)]
    if not names:
        raise TestbedError(f"no contender is called like that: {', '.join(CONTENDERS)}")
    return names


def _scale_out(args: argparse.Namespace, count: int, results: Results) -> None:
    members = tuple(f"n{k}" for k in range(count))
    dice = random.Random(f"{args.seed} {count}")
    names = chosen(args.only)
    with Network((*members, JOINER), default=Link(rate=LOW, delay_s=args.delay_ms / 1e3)) as net:
        for repeat in range(args.repeats):
            links, neighbours = draw(dice, members, args.neighbours, args.delay_ms / 1e3)
            net.set_links(links)
            found = _towards_joiner(net)
            for name in turns(names, repeat):
                with tempfile.TemporaryDirectory() as folder:
                    trial = Trial(
                        net,
                        Path(folder),
                        members,
                        neighbours,
                        found,
                        args.state_mb,
                        args.gradient_mb,
                        args.compute_ms,
                        args.settle_s,
                        {"hivemind": args.hivemind_python, "torchft": args.torchft_python},
                    )
                    _turn(trial, name, repeat, results)


def _towards_joiner(net: Network) -> dict[str, tuple[float, float]]:
    """Return each member's goodput (bytes/s) and delay (s) towards the joiner."""
    towards = {a: link for (a, b), link in calibrated(net).items() if b == JOINER}
    return {name: (link.rate * TCP_SHARE, link.delay_s) for name, link in towards.items()}


def _turn(trial: Trial, name: str, repeat: int, results: Results) -> None:
    """Let one contender run once."""
    grows = f"{len(trial.members)} -> {len(trial.members) + 1} nodes"
    cases = {part: f"{grows}, {said}" for part, said in CASES.items()}
    bound = trial.bound_s
    results.bounds.setdefault(cases["pull"], []).append(bound)
    turn = {"case": grows, "repeat": repeat, "contender": name, "bound_s": bound}
    turn |= {"neighbours_mbit_s": {n: trial.truth[n][0] / MBIT for n in trial.neighbours}}
    try:
        outcome = CONTENDERS[name](trial)
    except Exception as error:
        results.runs.append(Run(cases["pull"], name, None, why(error)))
        results.turns.append({**turn, "failed": why(error)})
        say(f"{grows}, {name}: failed: {why(error)}")
        return
    for part in CASES:
        if part in outcome.parts:
            of = bound if part == "pull" else None
            results.runs.append(Run(cases[part], name, outcome.parts[part], bound_s=of))
    results.turns.append({**turn, "parts_s": outcome.parts, **outcome.notes})
    took = ", ".join(f"{part} {seconds:.3f}" for part, seconds in outcome.parts.items())
    say(f"{grows}, {name}: {took} s (bound {bound:.3f})")
