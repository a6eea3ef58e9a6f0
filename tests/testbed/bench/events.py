"""How long training stands still when a device or a link comes or goes, and when nothing happens.

Real agents with synthetic computation (a sleep) on equal links. A stall is the longest time between
two steps around an event, less the median of the quiet steps just before it. Beside each stand the
noise floor, the same figure over as many quiet steps (`QUIET_STEPS` at most), and for joins the
idle time: what all steps between the joiner's first link and its first step took above the median.

Law: one node that nothing happens to is looked at; members step together. Micro-batches are so many
that the largest share is the same with and without the one that comes and goes. An event that does
not come to its end is a failure with its reason; the others go on in a fresh cluster.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeagent.errors import EdgeAgentError
from edgeagent.local.api import ask_for_link, fetch_change
from tests.scenarios.processes import kill_session
from tests.testbed.bench.report import Run, write
from tests.testbed.calibrate import calibrate
from tests.testbed.lab import Lab
from tests.testbed.network import MBIT, Link, Network

if TYPE_CHECKING:
    from tests.scenarios.cluster import Agent

HELP = "events: the stall when a device or a link comes or goes, beside the noise"
JOIN, LEAVE, KILL = "scale-out", "scale-in", "kill -9"
CONNECT, DISCONNECT = "connect-link", "disconnect-link"
KINDS = (JOIN, LEAVE, CONNECT, DISCONNECT, KILL)
QUIET_STEPS = 30
SETTLE_S = 1.5  # after an event: links open, the policy follows
WAIT_S = 60.0
POLL_S = 0.05
MAX_FAILURES = 3  # then no fresh cluster is tried
MAX_NODES = 12
CERTAINTY = 0.95  # of intervals
SHARE = 2  # the most micro-batches of a node


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what the command line takes."""
    parser.add_argument("--nodes", type=int, default=8, help="devices, 3 to 12 (8)")
    parser.add_argument("--events", type=int, default=20, help="of each kind, at least (20)")
    parser.add_argument(
        "--links", type=int, default=4, help="links cut and made again for each that leaves (4)"
    )
    parser.add_argument("--mbit", type=float, default=100.0, help="rate of each link (100)")
    parser.add_argument("--delay-ms", type=float, default=1.0, help="of each link, one way (1)")
    parser.add_argument("--compute-ms", type=float, default=10.0, help="a micro-batch (10)")
    parser.add_argument("--gradient-mb", type=float, default=0.1, help="payload, MB (0.1)")
    parser.add_argument("--state-mb", type=float, default=1.0, help="training state, MB (1)")
    parser.add_argument("--seed", type=int, default=1, help="of who and which link (1)")


# --- arithmetic -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seen:
    """One event: `began`, `ended` in unix seconds, the rest in seconds. `floor`: the stall where
    nothing happened."""

    kind: str
    began: float
    ended: float
    usual: float
    stall: float
    floor: float
    idle: float


def seen(
    kind: str, ends: Sequence[float], began: float, ended: float, quiet_until: float = math.inf
) -> Seen:
    """Return what an event between these times cost, from the times at which steps ended.

    quiet_until: when something began to disturb, if that was before the event. Raises ValueError
    without `QUIET_STEPS` steps before it, or if none ended after it began.
    """
    gaps = [(a, b, b - a) for a, b in pairwise(ends)]
    quiet = [gap for _, b, gap in gaps if b <= min(began, quiet_until)][-QUIET_STEPS:]
    around = [gap for a, b, gap in gaps if b > began and a < ended]
    if len(quiet) < QUIET_STEPS or not around:
        raise ValueError(f"{len(quiet)} steps before the event, {len(around)} around it")
    usual = statistics.median(quiet)
    return Seen(
        kind,
        began,
        ended,
        usual,
        max(around) - usual,
        max(quiet[-len(around) :]) - usual,
        sum(max(0.0, gap - usual) for gap in around),
    )


def quantile(values: Sequence[float], part: float) -> float:
    """Return the smallest value that at least this part of them does not exceed."""
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)]


def interval(values: Sequence[float], part: float) -> tuple[float | None, float | None]:
    """Return the values between which the quantile lies with `CERTAINTY`, whatever the
    distribution; None where there are too few values to say."""
    ordered, count = sorted(values), len(values)
    tail = (1 - CERTAINTY) / 2
    below = list(accumulate(_exactly(k, count, part) for k in range(count)))
    low = max((k for k in range(count) if below[k] <= tail), default=None)
    high = min((k for k in range(count) if below[k] >= 1 - tail), default=None)
    return (None if low is None else ordered[low], None if high is None else ordered[high])


def _exactly(many: int, count: int, part: float) -> float:
    """Return the chance of so many hits in `count` tries, each with chance `part`."""
    ways = math.lgamma(count + 1) - math.lgamma(many + 1) - math.lgamma(count - many + 1)
    return math.exp(ways + many * math.log(part) + (count - many) * math.log1p(-part))


# --- events ---------------------------------------------------------------------------------------


class Herd:
    """A cluster that loses and regains members and links; the first node is the observer."""

    def __init__(
        self, lab: Lab, nodes: Sequence[str], dice: random.Random, batch: int, found: list[Seen]
    ) -> None:
        """`found`: where its events go."""
        self.lab = lab
        self.nodes = tuple(nodes)
        self.dice = dice
        self.options = ("--global-batch", str(batch), "--micro-batch", "1")
        self.found = found

    @property
    def observer(self) -> Agent:
        """The agent whose steps are timed."""
        return self.lab.agents[self.nodes[0]]

    def gather(self) -> None:
        """Start all and wait until they train together."""
        for node in self.nodes:
            self.lab.start(node, *self.options)
        self.lab.wait_together(*self.nodes)

    def cycle(self, links: int) -> None:
        """Cut and make so many links, have one leave and one killed, and both come back."""
        for _ in range(links):
            a, b = self._some_link()
            self.link(DISCONNECT, a, b)
            self.link(CONNECT, a, b)
        for end in (self.leave, self.kill):
            victim = self.dice.choice(self.nodes[1:])
            end(victim)
            self.join(victim)

    def _some_link(self) -> tuple[str, str]:
        links = [(p["a"], p["b"]) for p in self.lab.status(self.nodes[0])["mesh"]]
        return self.dice.choice(sorted(links))

    def _quiet(self) -> None:
        """Wait until the cluster has settled and enough quiet steps are behind us."""
        time.sleep(SETTLE_S)
        self.observer.wait_steps(QUIET_STEPS + 2)

    def _done(self, kind: str, began: float, ended: float, quiet_until: float = math.inf) -> None:
        """Take note of an event once a step after it is over."""
        self.lab.wait("step after it", lambda: self._ends()[-1] > ended, WAIT_S)
        self.found.append(seen(kind, self._ends(), began, ended, quiet_until))

    def _ends(self) -> list[float]:
        return [float(e["t"]) for e in self.observer.all("step")]

    def _happens(self, event: str, since: float, node: str) -> Callable[[], Any]:
        def look() -> Any:
            found = (e for e in self.observer.all(event) if e["t"] >= since and e["node"] == node)
            return next(found, None)

        return look

    def link(self, kind: str, a: str, b: str) -> None:
        """Have `a` ask for, or give up, its link to `b`."""
        self._quiet()
        (path,) = self.lab.agents[a].home.rglob("agent.sock")
        began = time.time()
        change = ask_for_link(str(path), b, kind == CONNECT)
        while change["state"] == "pending":
            assert time.time() < began + WAIT_S, f"{kind}: pending for {WAIT_S:g} s"
            time.sleep(POLL_S)
            change = fetch_change(str(path), change["number"])
        assert change["state"] == "done", f"{kind}: {change['text']}"
        self._done(kind, began, time.time())

    def leave(self, node: str) -> None:
        """Have a node leave as Ctrl+C does."""
        self._quiet()
        began = time.time()
        self.lab.agents[node].signal(signal.SIGINT)
        left = self.lab.wait("member_left", self._happens("member_left", began, node), WAIT_S)
        self._done(LEAVE, began, float(left["t"]))
        assert self.lab.agents[node].wait_exit() == 0, "the one that left failed"

    def kill(self, node: str) -> None:
        """Kill a node's agent."""
        self._quiet()
        began = time.time()
        self.lab.agents[node].signal(signal.SIGKILL)
        left = self.lab.wait("member_left", self._happens("member_left", began, node), WAIT_S)
        self._done(KILL, began, float(left["t"]))

    def join(self, node: str) -> None:
        """Start the agent of a node that is gone, and wait for its first step."""
        gone = self.lab.agents[node]
        kill_session(gone.process.pid)
        gone.process.wait()
        shutil.rmtree(gone.home)
        self._quiet()
        started = time.time()  # its process keeps the machine busy before it joins
        agent = self.lab.start(node, *self.options)
        agent.wait("joined", WAIT_S)
        entered = float(agent.wait("step", WAIT_S)["t"])
        self._done(JOIN, float(agent.all("link_up")[0]["t"]), entered, started)
        self.lab.wait_together(*self.nodes)


# --- results --------------------------------------------------------------------------------------


def summary(found: Sequence[Seen]) -> list[dict[str, Any]]:
    """Return a line for each kind: medians and 99th percentiles with their intervals, seconds."""
    rows = []
    for kind in KINDS:
        mine = [s for s in found if s.kind == kind]
        if not mine:
            continue
        row: dict[str, Any] = {"event": kind, "count": len(mine)}
        for name in ("stall", "floor", "idle"):
            values = [float(getattr(s, name)) for s in mine]
            row[name] = {
                "median": statistics.median(values),
                "median_interval": interval(values, 0.5),
                "p99": quantile(values, 0.99),
                "p99_interval": interval(values, 0.99),
            }
        row["usual_s"] = statistics.median(s.usual for s in mine)
        row["lasts_s"] = statistics.median(s.ended - s.began for s in mine)
        rows.append(row)
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the lines as Markdown, in milliseconds."""
    lines = [
        "| event | count | stall, median | stall, p99 | noise, median | noise, p99 | usual step |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            _cell(row[name], part) for name in ("stall", "floor") for part in ("median", "p99")
        ]
        usual = f"{row['usual_s'] * 1e3:.1f}"
        lines.append(f"| {row['event']} | {row['count']} | {' | '.join(cells)} | {usual} |")
    text = "\n".join([*lines, "", "(milliseconds; in brackets the interval of 95 %)"])
    for row in rows:
        if row["event"] == JOIN:
            idle = f"{_cell(row['idle'], 'median')} ms, p99 {_cell(row['idle'], 'p99')} ms"
            text += f"\n\nIdle time of the members during a scale-out: median {idle}."
    return text


def _cell(values: dict[str, Any], part: str) -> str:
    low, high = ("?" if end is None else f"{end * 1e3:.1f}" for end in values[f"{part}_interval"])
    return f"{values[part] * 1e3:.1f} ({low} to {high})"


def say(text: str) -> None:
    """Tell how far it is."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def measure(args: argparse.Namespace, net: Network, found: list[Seen], failures: list[str]) -> None:
    """Add all events to `found`, and to `failures` why clusters had to be given up."""
    dice = random.Random(args.seed)
    job = ["--state-mb", str(args.state_mb), "--gradient-mb", str(args.gradient_mb)]
    job += ["--compute-ms", str(args.compute_ms)]
    while len(failures) < MAX_FAILURES and _least(found) < args.events:
        with tempfile.TemporaryDirectory() as folder, Lab(net, Path(folder), job) as lab:
            herd = Herd(lab, net.nodes, dice, SHARE * (len(net.nodes) - 1), found)
            try:
                herd.gather()
                while _least(found) < args.events:
                    herd.cycle(args.links)
                    say(f"{_least(found)} of {args.events} events of each kind")
            except (AssertionError, EdgeAgentError, ValueError) as error:
                failures.append(" ".join(str(error).split("\n", 1)[0].split()))
                say(f"failed: {failures[-1]}")


def _least(found: Sequence[Seen]) -> int:
    return min(sum(s.kind == kind for s in found) for kind in KINDS)


def run(args: argparse.Namespace) -> int:
    """Measure, write, print; return 0 if all events came to their end. What was measured before
    Ctrl+C is written, too."""
    if not 3 <= args.nodes <= MAX_NODES:
        sys.exit(f"bench: 3 to {MAX_NODES} nodes, not {args.nodes}")
    if args.events < 1 or args.links < 1:
        sys.exit("bench: --events and --links are 1 at least")
    nodes = tuple("abcdefghijkl"[: args.nodes])
    found: list[Seen] = []
    failures: list[str] = []
    try:
        with Network(nodes, default=Link(args.mbit * MBIT, args.delay_ms / 1e3)) as net:
            calibrate(net)
            measure(args, net, found, failures)
    finally:
        if found or failures:
            report(args, found, failures)
    return 0 if not failures else 1


def report(args: argparse.Namespace, found: Sequence[Seen], failures: Sequence[str]) -> None:
    """Write the results and print the table."""
    rows = summary(found)
    case = f"stall, {args.nodes} nodes"
    runs: list[Run] = []
    for kind in dict.fromkeys(s.kind for s in found):
        mine = [s for s in found if s.kind == kind]
        runs += [Run(case, kind, s.stall) for s in mine]
        runs += [Run(case, f"noise beside {kind}", s.floor) for s in mine]
    runs += [Run(case, "failures", None, why) for why in failures]
    settings = {k: v for k, v in vars(args).items() if isinstance(v, (int, float, str))}
    about = {
        "settings": settings,
        "summary": rows,
        "events": [asdict(s) for s in found],
        "failures": list(failures),
    }
    write(args.out, "events", about, runs, {})
    text = table(rows) + "".join(f"\n\nfailed: {why}" for why in failures)
    (args.out / "events.md").write_text(text + "\n")
    print(text)
