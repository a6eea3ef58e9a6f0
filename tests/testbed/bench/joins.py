"""What a join costs those who train, with gradients as large as real models have.

Real agents of the synthetic job train on links between them of one rate, and a device joins whose
links to them have other rates. Joiners copy beside the training or while the others hold their
update, in turns. What is reported for each size of the gradients:

- *pull*: from the joiner's first request to the last part of what it copied. Its bound is what its
  links allow together, minus what the updates of the running rounds take of them meanwhile.
- *step while it joins*, the median and the longest: of a member, from the start of the joiner's
  process to its entry. Their bound is the usual step before.
- *mean*: the same steps, so all that members were held up, beside the usual step.
- *first steps together*: the longest of the first three, in which the joiner takes part.
- *to the first step together*: from the moment at which the joiner's trainer has loaded everything
  to the end of that step. Its bound is the longer one of the pull and its bound, with three usual
  steps and 0.5 s.

The whole state changes in each step, unless `--frozen`: then it is a base that never changes, of
which no copy is taken. `--limit-mbit` is what the joiner receives at most, from all together. With
`--redraw-s N` its links change their rates with each other every N seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeagent.errors import EdgeAgentError
from tests.testbed.bench.ground import Busy, calibrated, say, turns, why
from tests.testbed.bench.report import Run, write
from tests.testbed.bench.trial import JOINER
from tests.testbed.calibrate import TCP_SHARE
from tests.testbed.lab import Lab
from tests.testbed.network import MBIT, Limit, Link, Network, both

if TYPE_CHECKING:
    from collections.abc import Iterator

HELP = "joins: what a join costs the others, beside the training and with a pause"
WAYS = ("log", "pause")
JOIN_S = 240.0
MEGA = 1e6
FIRST_STEPS = 3  # together
PROMISED_STEPS, PROMISED_S = 3, 0.5  # beside the pull, from being ready to a step together


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
    add = parser.add_argument
    rates = [12.0, 25.0, 50.0, 100.0, 150.0]
    add("--mbit", type=float, nargs="+", default=rates, help="of the joiner's links (12 to 150)")
    add("--between-mbit", type=float, default=200.0, help="between two members (200)")
    add("--delay-ms", type=float, default=1.0, help="of every link, one way (1)")
    add("--state-mb", type=float, default=60.0, help="what a joiner copies (60)")
    add("--gradient-mb", type=float, nargs="+", default=[6.0, 20.0], help="payloads (6 20)")
    add("--compute-ms", type=float, default=70.0, help="of one micro-batch (70)")
    add("--scale", type=float, default=0.2, help="factor of all rates and sizes (0.2)")
    add("--settle-s", type=float, default=15.0, help="of training before the join (15)")
    add("--limit-mbit", type=float, help="that the joiner receives at most (no limit)")
    add("--redraw-s", type=float, default=0.0, help="time between changes of rates (never)")
    add("--frozen", action="store_true", help="the state beside the gradients' part never changes")
    add("--repeats", type=int, default=2, help="times each is measured (2)")


def run(args: argparse.Namespace) -> int:
    """Measure, write and print; return 0 if all runs ended."""
    runs: list[Run] = []
    busy = Busy.now()
    members = tuple(f"n{k}" for k in range(len(args.mbit)))
    between = Link(args.between_mbit * args.scale * MBIT, args.delay_ms / 1e3)
    most = args.limit_mbit * args.scale * MBIT if args.limit_mbit else None
    limits = {JOINER: Limit(down=most)} if most else {}
    with Network((*members, JOINER), default=between, limits=limits) as net:
        links = {}
        for name, mbit in zip(members, args.mbit, strict=True):
            link = Link(mbit * args.scale * MBIT, args.delay_ms / 1e3)
            links[name, JOINER] = links[JOINER, name] = link
        net.set_links(links)
        towards = {a: link.rate for (a, b), link in calibrated(net).items() if b == JOINER}
        rate = sum(towards.values()) * TCP_SHARE
        rate = min(rate, most * TCP_SHARE) if most else rate
        for repeat in range(args.repeats):
            for gradient in args.gradient_mb:
                for way in turns(WAYS, repeat):
                    runs += measured(args, net, members, gradient, way, rate)
    settings = {k: v for k, v in vars(args).items() if isinstance(v, int | float | str | list)}
    about: dict[str, Any] = {"settings": settings, "busy": Busy.now().since(busy)}
    write(args.out, "joins", about, runs, {})
    print((args.out / "joins.md").read_text())
    print(f"processors {100 * about['busy']:.0f} % busy")
    return 0 if all(r.seconds is not None for r in runs) else 1


def measured(
    args: argparse.Namespace,
    net: Network,
    members: tuple[str, ...],
    gradient: float,
    way: str,
    rate: float,
) -> list[Run]:
    """Return what one join costs; `rate`: what the joiner's links carry together, in bytes/s."""
    state, payload = args.state_mb * args.scale, gradient * args.scale
    case = f"{state:g} MB of state, {payload:g} MB of gradients"
    sizes = ("--state-mb", f"{state:g}", "--gradient-mb", f"{payload:g}")
    kind = () if args.frozen else ("--moving",)
    job = (*sizes, "--compute-ms", f"{args.compute_ms:g}", *kind)
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            Lab(net, Path(folder), job) as lab,
            redrawn(net, members, args.redraw_s),
        ):
            found = _join(lab, members, way, args.settle_s)
    except (AssertionError, EdgeAgentError) as error:
        say(f"{case}, {way}: failed: {why(error)}")
        return [Run(f"{case}: pull", way, None, why(error))]
    usual, taken = found["usual"], payload * MEGA / found["median"]
    bound = state * MEGA / (rate - taken) if rate > taken else None
    # Updates that have come late are applied after the last shard, so a pull may be shorter than
    # its bound, which counts them, too.
    promised = max(found["pull"], bound or 0.0) + PROMISED_STEPS * usual + PROMISED_S
    said = ", ".join(f"{name} {seconds:.3f}" for name, seconds in found.items())
    say(f"{case}, {way}: {said} s (bound of the pull {bound or 0:.3f})")
    return [
        Run(f"{case}: pull", way, found["pull"], bound_s=bound),
        Run(f"{case}: step while it joins, median", way, found["median"], bound_s=usual),
        Run(f"{case}: step while it joins, mean", way, found["mean"], bound_s=usual),
        Run(f"{case}: step while it joins, longest", way, found["longest"], bound_s=usual),
        Run(f"{case}: first steps together, longest", way, found["first"], bound_s=usual),
        Run(f"{case}: to the first step together", way, found["entry"], bound_s=promised),
    ]


def _join(lab: Lab, members: tuple[str, ...], way: str, settle_s: float) -> dict[str, float]:
    """Let a device join members that train; return the times in seconds."""
    agents = [lab.start(name, "--join", way) for name in members]
    lab.wait_together(*members)
    first = agents[0]
    begun = first.wait("step", members=len(members))["t"]
    first.wait_until("steps", lambda: first.all("step")[-1]["t"] > begun + settle_s, JOIN_S)
    began = first.all("step")[-1]["t"]
    joiner = lab.start(JOINER, "--join", way)
    joiner.wait_ready()
    ready = time.time()
    joined = joiner.wait("joined", JOIN_S)
    together = len(members) + 1

    def of_all() -> list[dict[str, Any]]:
        return [e for e in first.all("step") if e["members"] == together]

    first.wait_until("steps together", lambda: len(of_all()) >= FIRST_STEPS, JOIN_S)
    steps = [(e["t"] - before["t"], e) for before, e in pairwise(first.all("step"))]
    before = [took for took, e in steps if began - settle_s < e["t"] <= began]
    meanwhile = [took for took, e in steps if e["t"] > began and e["members"] < together]
    after = [took for took, e in steps if e["members"] == together][:FIRST_STEPS]
    return {
        "usual": statistics.median(before),
        "pull": float(joined["seconds"]),
        "median": statistics.median(meanwhile),
        "mean": statistics.mean(meanwhile),
        "longest": max(meanwhile),
        "first": max(after),
        "entry": float(of_all()[0]["t"]) - ready,
    }


@contextlib.contextmanager
def redrawn(net: Network, members: tuple[str, ...], every_s: float) -> Iterator[None]:
    """While the block runs, let the joiner's links change their rates with each other every so many
    seconds, so that what they carry together stays the same; never with 0."""
    if not every_s:
        yield
        return
    chance, over = random.Random(1), threading.Event()
    links = [net.links[name, JOINER] for name in members]

    def redraw() -> None:
        while not over.wait(every_s):
            chance.shuffle(links)
            pairs = zip(members, links, strict=True)
            net.set_links(both({(name, JOINER): link for name, link in pairs}))

    before = list(links)
    thread = threading.Thread(target=redraw)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        pairs = zip(members, before, strict=True)
        net.set_links(both({(name, JOINER): link for name, link in pairs}))
