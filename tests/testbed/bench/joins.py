"""What a join costs those who train, with gradients as large as real models have.

Real agents of the synthetic job train on links between them of one rate, and a device joins whose
links to them have other rates. Joiners copy beside the training or while the others hold their
update, in turns. What is reported for each size of the gradients:

- *pull*: from the joiner's first request to the last part of what it copied. Its bound is what its
  links allow together, minus what the updates of the running rounds take of them meanwhile.
- *step while it joins*, the median and the longest: of a member, from the moment at which the
  joiner's trainer has loaded everything to its entry. Their bound is the usual step before. While
  Python and torch load they take a processor from the members, which no other device would do.
- *mean*: the same steps, so all that members were held up, beside the usual step.
- *first steps together*: the longest of the first three, in which the joiner takes part.
- *started to member*: from the moment at which the joiner's trainer has loaded everything to its
  entry. Its bound is the longer one of the pull and its bound, with three usual steps and 0.5 s.
- *to the first step together*: to the end of the first step in which it takes part, beside the same
  bound.

The whole state changes in each step, unless `--frozen`: then it is a base that never changes, of
which no copy is taken. `--limit-mbit` is what the joiner receives at most, from all together. With
`--midway` its links change their rates with each other once, when half of the state is there; with
`--redraw-s N` they do so every N seconds.
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
from tests.testbed.bench import dilation
from tests.testbed.bench.ground import Busy, calibrated, say, turns, why
from tests.testbed.bench.report import Run, write
from tests.testbed.bench.trial import JOINER
from tests.testbed.calibrate import TCP_SHARE
from tests.testbed.lab import Lab
from tests.testbed.network import MBIT, Limit, Link, Network, both

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HELP = "joins: what a join costs the others, beside the training and with a pause"
WAYS = ("log", "pause")
JOIN_S = 240.0
MEGA = 1e6
FIRST_STEPS = 3  # together
PROMISED_STEPS, PROMISED_S = 3, 0.5  # beside the pull, from being ready to being a member


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
    add("--midway", action="store_true", help="rates change once, in the middle of the pull")
    add("--frozen", action="store_true", help="the state beside the gradients' part never changes")
    add("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="how newcomers copy (both)")
    add("--repeats", type=int, default=2, help="times each is measured (2)")
    dilation.add_option(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, write and print; return 0 if all runs ended."""
    runs: list[Run] = []
    busy = Busy.now()
    members = tuple(f"n{k}" for k in range(len(args.mbit)))
    mbit, delay_s = args.scale * MBIT / args.dilate, args.delay_ms / 1e3 * args.dilate
    between = Link(args.between_mbit * mbit, delay_s)
    most = args.limit_mbit * mbit if args.limit_mbit else None
    limits = {JOINER: Limit(down=most)} if most else {}
    with Network((*members, JOINER), default=between, limits=limits) as net:
        rates = {}
        for name, wanted in zip(members, args.mbit, strict=True):
            link = Link(wanted * mbit, delay_s)
            rates[name, JOINER] = rates[JOINER, name] = link
        net.set_links(rates)
        towards = {a: link.rate for (a, b), link in calibrated(net).items() if b == JOINER}
        rate = sum(towards.values()) * TCP_SHARE
        rate = (min(rate, most * TCP_SHARE) if most else rate) * args.dilate
        for repeat in range(args.repeats):
            for gradient in args.gradient_mb:
                for way in turns(args.ways, repeat):
                    links = JoinerLinks(net, members, repeat)
                    runs += measured(args, links, gradient, way, rate)
    settings = {k: v for k, v in vars(args).items() if isinstance(v, int | float | str | list)}
    about: dict[str, Any] = {"settings": settings, "busy": Busy.now().since(busy)}
    write(args.out, "joins", about, runs, {})
    print((args.out / "joins.md").read_text())
    print(f"processors {100 * about['busy']:.0f} % busy")
    return 0 if all(r.seconds is not None for r in runs) else 1


def measured(
    args: argparse.Namespace, links: JoinerLinks, gradient: float, way: str, rate: float
) -> list[Run]:
    """Return what one join costs; `rate`: what the joiner's links carry together, in bytes/s, with
    processors as fast as they are played."""
    state, payload = args.state_mb * args.scale, gradient * args.scale
    case = f"{state:g} MB of state, {payload:g} MB of gradients"
    sizes = ("--state-mb", f"{state:g}", "--gradient-mb", f"{payload:g}")
    kind = () if args.frozen else ("--moving",)
    job = (*sizes, "--compute-ms", f"{args.compute_ms * args.dilate:g}", *kind)
    midway = links.change if args.midway else None
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            Lab(links.net, Path(folder), job) as lab,
            links.changing(args.redraw_s * args.dilate),
        ):
            found = _join(lab, links.members, way, args.settle_s, args.dilate, midway)
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
        Run(f"{case}: started to member", way, found["member"], bound_s=promised),
        Run(f"{case}: to the first step together", way, found["entry"], bound_s=promised),
    ]


def _join(
    lab: Lab,
    members: tuple[str, ...],
    way: str,
    settle_s: float,
    dilate: float,
    midway: Callable[[], None] | None,
) -> dict[str, float]:
    """Let a device join members that train, and call `midway` in the middle of its pull; return the
    times in seconds, divided by `dilate`."""
    how, settle_s, join_s = dilation.started(dilate), settle_s * dilate, JOIN_S * dilate
    agents = [lab.start(name, "--join", way, **how) for name in members]
    lab.wait_together(*members, seconds=join_s)
    first = agents[0]
    begun = first.wait("step", members=len(members))["t"]
    first.wait_until("steps", lambda: first.all("step")[-1]["t"] > begun + settle_s, join_s)
    began = first.all("step")[-1]["t"]
    joiner = lab.start(JOINER, "--join", way, **how)
    joiner.wait_ready()
    ready = time.time()
    if midway is not None:
        lab.wait("half of the state", lambda: _half_is_here(lab))
        midway()
    joined = joiner.wait("joined", join_s)
    together = len(members) + 1

    def of_all() -> list[dict[str, Any]]:
        return [e for e in first.all("step") if e["members"] == together]

    first.wait_until("steps together", lambda: len(of_all()) >= FIRST_STEPS, join_s)
    steps = [(e["t"] - before["t"], e) for before, e in pairwise(first.all("step"))]
    before = [took for took, e in steps if began - settle_s < e["t"] <= began]
    meanwhile = [took for took, e in steps if e["t"] - took > ready and e["members"] < together]
    assert meanwhile, "the join was over before a whole step had passed; make steps shorter"
    after = [took for took, e in steps if e["members"] == together][:FIRST_STEPS]
    times = {
        "usual": statistics.median(before),
        "pull": float(joined["seconds"]),
        "median": statistics.median(meanwhile),
        "mean": statistics.mean(meanwhile),
        "longest": max(meanwhile),
        "first": max(after),
        "member": float(joined["t"]) - ready,
        "entry": float(of_all()[0]["t"]) - ready,
    }
    return {name: seconds / dilate for name, seconds in times.items()}


class JoinerLinks:
    """The links between the joiner and `members`, which can change their rates with each other, so
    that what they carry together stays the same. `seed` says who gets which rate."""

    def __init__(self, net: Network, members: tuple[str, ...], seed: int) -> None:
        self.net, self.members = net, members
        self._before = [net.links[name, JOINER] for name in members]
        self._now = list(self._before)
        self._chance = random.Random(seed)

    def change(self) -> None:
        """Change the rates."""
        self._chance.shuffle(self._now)
        self._set(self._now)

    @contextlib.contextmanager
    def changing(self, every_s: float) -> Iterator[None]:
        """While the block runs, change the rates every so many seconds, unless that is 0; after it,
        each link has the rate again that it had first."""
        over = threading.Event()

        def change() -> None:
            while every_s and not over.wait(every_s):
                self.change()

        thread = threading.Thread(target=change)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self._set(self._before)

    def _set(self, links: list[Link]) -> None:
        pairs = zip(self.members, links, strict=True)
        self.net.set_links(both({(name, JOINER): link for name, link in pairs}))


def _half_is_here(lab: Lab) -> bool:
    """Whether the joiner has copied half of the state."""
    pull = lab.status(JOINER)["joining"]
    return pull is not None and 2 * pull["bytes"] >= pull["total_bytes"] > 0
