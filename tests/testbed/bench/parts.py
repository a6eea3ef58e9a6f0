"""What a divided optimizer (`--shard-optimizer`) costs on links: real agents with AdamW.

- `links`: steps over uneven links. A whole optimizer along packed ways; a divided one, whose owners
  are where the ways meet; and a divided one whose owners are equal and have a star each, as without
  a plan (`--trees one`).
- `copies`: what copies cost those who train. Steps where computing takes most of the time (a
  micro-batch sleeps), and the bytes that all devices send in a step. The sum of each part goes to
  each of its k copies, so the devices together send k times the gradient more; what they send of
  that is counted apart, without headers, encryption and probes.
- `changes`: a device joins and one is killed. Steps before, while parts are learned, and after.
- `decisions`: eight devices join one after another, and one is killed. How long the scheduler takes
  to decide who is to hold which part, on processors that all of them share.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from edgeagent.errors import EdgeAgentError
from tests.testbed.bench.divided import JOB, SETTLED_S, is_complete
from tests.testbed.bench.ground import Busy, say, why
from tests.testbed.lab import Lab
from tests.testbed.network import MBIT, Limit, Link, Network, both

HELP = "parts: a divided optimizer's steps over uneven links, its copies, and what changes cost"
NODES = ("a", "b", "c", "d")
MANY = ("a", "b", "c", "d", "e", "f", "g", "h")
TIMED = "tests.testbed.bench.timed_agent"
COUNTING = "tests.testbed.bench.counting_agent"
FLOAT_BYTES = 4
SMALL = 500_000  # parameters, so that two cores carry eight agents and their trainers
WARM_STEPS = 4  # that pass before any is measured, with all copies there
PLANNED_S = 15.0  # from then on: rates are measured, and ways searched for
DELAY_S = 0.002
DIVIDED = ("--shard-optimizer", "--copies", "1")
WAYS = {
    "whole": (),
    "divided": DIVIDED,
    "divided, stars": (*DIVIDED, "--trees", "one"),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: seconds of each measured step, and the bytes that all devices sent in one, in
    multiples of the gradient. `sums`: of these, the payload of sums on their way to copies.
    `learned_s`: how long parts were learned, 0 if that was not measured. Without steps it failed,
    for the reason `why`."""

    what: str
    case: str
    way: str
    steps: tuple[float, ...] = ()
    sent: float = 0.0
    sums: float = 0.0
    learned_s: float = 0.0
    why: str = ""

    @property
    def step_s(self) -> float:
        """The median step."""
        return statistics.median(self.steps)


@dataclass(slots=True)
class Ground:
    """Where a case runs: the links, and options of all agents."""

    net: Callable[[], Network]
    job: tuple[str, ...]
    options: tuple[str, ...]
    nodes: tuple[str, ...] = field(default=NODES)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
    add = parser.add_argument
    add("--what", nargs="+", choices=sorted(PARTS), default=list(PARTS), help="(all)")
    add("--layouts", nargs="+", metavar="NAME", help="those of `links` whose name has this (all)")
    add("--parameters", type=int, default=4_000_000, metavar="N", help="of the model (4000000)")
    add("--mbit", type=float, default=40.0, help="of a usual link (40)")
    add("--steps", type=int, default=8, help="that are measured in a run (8)")
    add("--compute-ms", type=float, default=400.0, help="of a micro-batch, for `copies` (400)")
    add("--sizes", type=int, nargs="+", default=[1_000_000, 4_000_000], help="for `copies`")
    add("--copies", type=int, nargs="+", default=[0, 1, 2], help="for `copies` (0 1 2)")
    add("--trees", default="packed", help="along which sums travel, for `copies` (packed)")


def run(args: argparse.Namespace) -> int:
    """Measure, write and print; return 0 if all runs ended."""
    outcomes: list[Outcome] = []
    before = Busy.now()
    for what in args.what:
        for outcome in PARTS[what](args):
            outcomes.append(outcome)
            say(_row(outcome, outcome))
            _write(args, outcomes, Busy.now().since(before))
    print((args.out / "parts.md").read_text())
    return 0 if all(o.steps for o in outcomes) else 1


# --- what is measured -----------------------------------------------------------------------------


def _layouts(usual: float) -> dict[str, Callable[[], Network]]:
    """Return name -> links between four devices. `usual`: bytes/s."""
    link = Link(usual, DELAY_S)
    # Not between a and b: the first newcomer copies the state along that link alone.
    slow = both({("c", "d"): Link(usual / 8, DELAY_S)})
    rates = (2.0, 1.6, 0.8, 0.4, 0.6, 1.2)
    pairs = [(a, b) for a in NODES for b in NODES if a < b]
    uneven = {p: Link(usual * rate, DELAY_S) for p, rate in zip(pairs, rates, strict=True)}
    limit = Limit(up=usual, down=3 * usual)
    return {
        "equal links": lambda: Network(NODES, default=link),
        "one link of an eighth": lambda: Network(NODES, slow, default=link),
        "links of 0.4 to 2": lambda: Network(NODES, both(uneven)),
        "one device sends a third": lambda: Network(NODES, default=link, limits={"a": limit}),
    }


def _links(args: argparse.Namespace) -> Iterator[Outcome]:
    job = ("--parameters", str(args.parameters))
    for case, net in _layouts(args.mbit * MBIT).items():
        if args.layouts and not any(name in case for name in args.layouts):
            continue
        for way, options in WAYS.items():
            yield _steps("links", case, way, args, Ground(net, job, options))


def _copies(args: argparse.Namespace) -> Iterator[Outcome]:
    for size in args.sizes:
        job = ("--parameters", str(size), "--compute-ms", str(args.compute_ms))
        for copies in args.copies:
            # Steps are long, so that joins which wait for the end of some would take minutes.
            together = ("--wait-for", str(len(NODES)))
            along = ("--trees", args.trees)
            options = ("--shard-optimizer", "--copies", str(copies), *along, *together)
            ground = Ground(_fast, job, options)
            case, way = f"{size / 1e6:g} million parameters", f"{copies} copies"
            yield _steps("copies", case, way, args, ground)


def _fast() -> Network:
    return Network(NODES, default=Link(1000 * MBIT, DELAY_S))


def _changes(args: argparse.Namespace) -> Iterator[Outcome]:
    """A fourth device joins three that train, and is killed when all is level."""
    job = ("--parameters", str(args.parameters))
    link = Link(args.mbit * MBIT, DELAY_S)
    case = f"{args.parameters / 1e6:g} million parameters, {args.mbit:g} Mbit/s"
    ground = Ground(lambda: Network(NODES, default=link), job, DIVIDED, NODES[:3])
    try:
        with _laboratory(ground) as (net, lab):
            _settle(lab)
            yield _measured("changes", case, "before", args, net, lab)
            lab.start(NODES[3], "--threads", "1", *DIVIDED)
            _wait_members(lab, NODES)
            yield _while_learning(case, "a device has joined", args, lab)
            yield _measured("changes", case, "four devices", args, net, lab)
            lab.agents[NODES[3]].signal(signal.SIGKILL)
            del lab.agents[NODES[3]]
            _wait_members(lab, NODES[:3])
            yield _while_learning(case, "a device was killed", args, lab)
            yield _measured("changes", case, "after", args, net, lab)
    except (AssertionError, EdgeAgentError) as error:
        yield Outcome("changes", case, "", why=why(error))


def _decisions(args: argparse.Namespace) -> Iterator[Outcome]:
    """Eight devices join, and one of them is killed; the `steps` of the outcome are decisions."""
    job = ("--parameters", str(min(args.parameters, SMALL)))
    ground = Ground(lambda: Network(MANY, default=Link(100 * MBIT, DELAY_S)), job, DIVIDED, MANY)
    case = f"{len(MANY)} devices"
    try:
        with tempfile.TemporaryDirectory() as folder:
            told = Path(folder, "decisions")
            with _laboratory(ground, TIMED, {"DECISIONS": str(told)}) as (_, lab):
                _settle(lab)
                yield Outcome("decisions", case, "while they join", _seconds_in(told))
                told.write_text("")
                lab.agents[MANY[-1]].signal(signal.SIGKILL)
                del lab.agents[MANY[-1]]
                _wait_members(lab, MANY[:-1])
                lab.wait("all copies", lambda: is_complete(lab, 1), SETTLED_S)
                yield Outcome("decisions", case, "one was killed", _seconds_in(told))
    except (AssertionError, EdgeAgentError) as error:
        yield Outcome("decisions", case, "", why=why(error))


def _seconds_in(told: Path) -> tuple[float, ...]:
    return tuple(float(line) for line in told.read_text().splitlines())


PARTS = {"links": _links, "copies": _copies, "changes": _changes, "decisions": _decisions}


# --- how it is measured ---------------------------------------------------------------------------


@contextmanager
def _laboratory(
    ground: Ground, module: str = "edgeagent", variables: Mapping[str, str] | None = None
) -> Iterator[tuple[Network, Lab]]:
    """Start the agents one after another; each start takes the processors for a while. With
    `--wait-for` the training begins once all are there."""
    with (
        ground.net() as net,
        tempfile.TemporaryDirectory() as folder,
        Lab(net, Path(folder), ground.job, str(JOB)) as lab,
    ):
        for count, node in enumerate(ground.nodes, 1):
            options = ("--threads", "1", *ground.options)
            lab.start(node, *options, module=module, variables=variables)
            if "--wait-for" not in ground.options:
                _wait_members(lab, ground.nodes[:count])
        _wait_members(lab, ground.nodes)
        yield net, lab


def _wait_members(lab: Lab, nodes: Sequence[str]) -> None:
    """Wait until these are the members; over slow links that takes minutes."""
    wanted = sorted(nodes)
    lab.wait(
        "members", lambda: all(lab.agents[node].members == wanted for node in nodes), SETTLED_S
    )


def _settle(lab: Lab, copies: int = 1) -> None:
    """Wait until each part has its copies and some steps have passed."""
    lab.wait("all copies", lambda: is_complete(lab, copies), SETTLED_S)
    _pass(lab, WARM_STEPS)


def _pass(lab: Lab, steps: int) -> None:
    first = next(iter(lab.agents.values()))
    begun = first.iteration
    lab.wait("steps", lambda: first.iteration >= begun + steps, SETTLED_S)


def _steps(what: str, case: str, way: str, args: argparse.Namespace, ground: Ground) -> Outcome:
    """Train once with these options; return what steps took."""
    try:
        with (
            tempfile.TemporaryDirectory() as counts,
            _laboratory(ground, COUNTING, {"SENT": counts}) as (net, lab),
        ):
            if "--shard-optimizer" in ground.options:
                place = ground.options.index("--copies")
                _settle(lab, int(ground.options[place + 1]))
            else:
                _pass(lab, WARM_STEPS)
            begun = _times(lab)[-1]
            lab.wait("plans", lambda: _times(lab)[-1] - begun > PLANNED_S, SETTLED_S)
            return _measured(what, case, way, args, net, lab, Path(counts))
    except (AssertionError, EdgeAgentError) as error:
        return Outcome(what, case, way, why=why(error))


def _times(lab: Lab) -> list[float]:
    return [float(e["t"]) for e in next(iter(lab.agents.values())).all("step")]


def _measured(
    what: str,
    case: str,
    way: str,
    args: argparse.Namespace,
    net: Network,
    lab: Lab,
    counts: Path | None = None,
) -> Outcome:
    """Measure some steps from now on. `counts`: the folder of what agents have sent."""
    before, sent = len(_times(lab)), sum(net.counters().values())
    begun = next(iter(lab.agents.values())).iteration
    lab.wait("steps", lambda: len(_times(lab)) > before + args.steps, SETTLED_S)
    whole = sum(net.counters().values()) - sent
    times = _times(lab)[before:]
    steps = tuple(b - a for a, b in pairwise(times))
    size = int(lab.job[lab.job.index("--parameters") + 1])
    gradient = FLOAT_BYTES * size
    last = begun + args.steps - 1  # some agents may not have noted the one after it yet
    sums = _sums(counts, begun + 1, last) / gradient if counts is not None else 0.0
    return Outcome(what, case, way, steps, whole / len(times) / gradient, sums)


def _sums(counts: Path, first: int, last: int) -> float:
    """Return how many bytes of sums all agents have sent to copies in an iteration, the mean of
    those from `first` to `last`."""
    lines = [
        json.loads(line) for file in counts.iterdir() for line in file.read_text().splitlines()
    ]
    found = [line.get("SUM", 0) for line in lines if first <= line["iteration"] <= last]
    return float(sum(found)) / (last - first + 1)


def _while_learning(case: str, way: str, args: argparse.Namespace, lab: Lab) -> Outcome:
    """Return the steps from now until all parts have their copies again."""
    before = max(1, len(_times(lab)))
    begun = _times(lab)[-1]
    lab.wait("all copies", lambda: is_complete(lab, 1), SETTLED_S)
    learned = _times(lab)[-1] - begun
    _pass(lab, 1)
    steps = tuple(b - a for a, b in pairwise(_times(lab)[before - 1 :]))
    return Outcome("changes", case, way, steps, learned_s=learned)


# --- what is told ---------------------------------------------------------------------------------


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as Markdown; steps are compared to the first run of their case."""
    head = [
        "what",
        "case",
        "way",
        "step",
        "of the first",
        "longest step",
        "gradients sent",
        "of these sums to copies",
        "learned",
    ]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    first: dict[tuple[str, str], Outcome] = {}
    for outcome in outcomes:
        reference = first.setdefault((outcome.what, outcome.case), outcome)
        rows.append(_row(outcome, reference))
    return "\n".join(rows) + "\n"


def _row(outcome: Outcome, first: Outcome) -> str:
    if not outcome.steps:
        return (
            f"| {outcome.what} | {outcome.case} | {outcome.way} | failed: {outcome.why} | | | | | |"
        )
    ratio = f"{outcome.step_s / first.step_s:.3f}" if first.steps else ""
    cells = [outcome.what, outcome.case, outcome.way, f"{outcome.step_s:.3f} s", ratio]
    cells += [f"{max(outcome.steps):.3f} s", f"{outcome.sent:.2f}" if outcome.sent else ""]
    cells.append(f"{outcome.sums:.4f}" if outcome.sums else "")
    cells.append(f"{outcome.learned_s:.1f} s" if outcome.learned_s else "")
    return "| " + " | ".join(cells) + " |"


def _write(args: argparse.Namespace, outcomes: Sequence[Outcome], busy: float) -> None:
    settings: dict[str, Any] = {k: v for k, v in vars(args).items() if k not in ("do", "out")}
    args.out.mkdir(parents=True, exist_ok=True)
    runs = [{name: getattr(o, name) for name in Outcome.__slots__} for o in outcomes]
    whole = {"settings": settings, "busy": busy, "runs": runs}
    (args.out / "parts.json").write_text(json.dumps(whole, indent=1) + "\n")
    (args.out / "parts.md").write_text(table(outcomes))
