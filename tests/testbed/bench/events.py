"""How long training stops when a device or a link comes or goes, beside a control without an event.

Real agents with synthetic computation (a sleep) run on equal links. The observer's training script
says by its own clock when a step was complete; the agent's step events must agree
(`MOST_APART_S`). The *window* of an event consists of all steps that touch the time between its
beginning and its end. Its *control* consists of as many steps directly before the window, in which
nothing happens and which are waited for in the same way. The *stall* is the longest step of the
window, and the *noise* (floor) that of the control, each less the median of the `QUIET_STEPS` steps
before the control. The *idle* time is how much longer than that median all steps of the window, or
of the control, took together.

A window begins with the signal or the request; that of a scale-out begins with the joiner's first
link, so that the cost of starting a process on a shared machine is left out (its control is before
that start). It ends when the observer has seen the member leave, when the link is there or gone, or
with the joiner's first step.

Only one node is observed, to which nothing happens: of its links only those to nodes that leave or
come back do so, too. That is enough, because members step together. The number of micro-batches is
such that the largest share is the same with and without the node that comes and goes. An event that
does not end is a failure with its reason; the others go on in a fresh cluster.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeagent.errors import EdgeAgentError
from edgeagent.local.api import ask_for_link, fetch_change
from tests.scenarios.failure_times import without
from tests.scenarios.processes import kill_session
from tests.testbed.bench.event_parts import Parts, parts_of_longest
from tests.testbed.bench.event_parts import table as parts_table
from tests.testbed.bench.ground import calibrated, say, why
from tests.testbed.bench.report import Run, write
from tests.testbed.lab import Lab
from tests.testbed.network import MBIT, Link, Network

if TYPE_CHECKING:
    from tests.scenarios.cluster import Agent

HELP = "events: the stall when a device or a link comes or goes, beside the noise"
JOIN, LEAVE, KILL = "scale-out", "scale-in", "kill -9"
CONNECT, DISCONNECT = "connect-link", "disconnect-link"
KINDS = (JOIN, LEAVE, CONNECT, DISCONNECT, KILL)
QUIET_STEPS = 30  # the median of these steps is the usual step
CONTROL_STEPS = 12  # steps waited for before an event; longer controls begin while links settle
MOST_APART_S = 0.02  # by which the agent's and the script's times of a step may differ, median
STEPS_FILE = "steps.txt"
SETTLE_S = 1.5  # after an event, in which links open and the policy follows
WAIT_S = 60.0
POLL_S = 0.05
MAX_FAILURES = 3  # after so many no fresh cluster is tried
MAX_NODES = 12
CERTAINTY = 0.95  # with which a quantile lies in its interval
PICTURE_INCHES = (9.0, 4.5)
METHOD = {
    "times": "seconds; steps were complete when the observer's training script says so, by its own "
    "clock; apart is how far from that the agent's step events are, median",
    "stall": "longest step of the event's window less the usual step",
    "floor": "longest of as many steps directly before, where nothing happens, less the usual one",
    "difference": "stall less floor, event by event",
    "idle": "sum of what the window's steps took above the usual one; floor_idle: the control's",
    "usual": f"median of the {QUIET_STEPS} steps before the control",
    "decision": "kill -9 until the last survivor's event `restarted`",
    "window of a scale-out": "begins at the joiner's first link_up, after its process has started; "
    "the control is before that start; ends with the joiner's first step",
}
SHARE = 2  # the most micro-batches of a node


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
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
    """What was measured of one event. `began` and `ended` are in unix seconds, the rest in seconds.
    `floor` and `floor_idle`: stall and idle time of its control. `apart`: by how much the agent's
    and the script's times of steps differ, median. `decision`: from a kill until the last survivor
    had decided to go on. `parts`: of the longest step, over the usual ones."""

    kind: str
    began: float
    ended: float
    usual: float
    steps: int
    stall: float
    floor: float
    idle: float
    floor_idle: float
    apart: float = 0.0
    decision: float | None = None
    parts: Parts | None = None

    @property
    def difference(self) -> float:
        """The stall less that of the control."""
        return self.stall - self.floor

    @property
    def idle_difference(self) -> float:
        """The idle time less that of the control."""
        return self.idle - self.floor_idle


def seen(
    kind: str, ends: Sequence[float], began: float, ended: float, quiet_until: float = math.inf
) -> Seen:
    """Return the cost of an event between these times, computed from the ends of steps.

    ends: of all steps since the cluster was left alone, up to the first one after the event.
    quiet_until: when the disturbance began, if that was before the event. Raises ValueError if no
    step touches the event, or if there are too few steps for a control and `QUIET_STEPS` steps
    before it.
    """
    gaps = [(a, b, b - a) for a, b in pairwise(ends)]
    window = [gap for a, b, gap in gaps if b > began and a < ended]
    quiet = [gap for _, b, gap in gaps if b <= min(began, quiet_until)]
    if not window or not ends[-1] > ended or len(quiet) < QUIET_STEPS + len(window):
        raise ValueError(f"{kind}: {len(window)} steps around it, only {len(quiet)} before it")
    before, control = quiet[: -len(window)], quiet[-len(window) :]
    usual = statistics.median(before[-QUIET_STEPS:])
    return Seen(
        kind,
        began,
        ended,
        usual,
        len(window),
        max(window) - usual,
        max(control) - usual,
        sum(max(0.0, gap - usual) for gap in window),
        sum(max(0.0, gap - usual) for gap in control),
    )


def apart(outside: Sequence[tuple[int, float]], own: Mapping[int, float]) -> float:
    """Return by how much the agent's times of steps differ from the script's, median.

    outside: iterations and times of the script. own: times of the agent by iteration. Raises
    ValueError if the difference is more than `MOST_APART_S`, if too few steps are in both, or if a
    step is missing in the script's.
    """
    numbers = [number for number, _ in outside]
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise ValueError(f"the script's steps are not one after the other: {numbers}")
    both = [abs(t - own[number]) for number, t in outside if number in own]
    if len(both) < QUIET_STEPS:
        raise ValueError(f"only {len(both)} steps are in both the agent's events and the script's")
    median = statistics.median(both)
    if median > MOST_APART_S:
        raise ValueError(
            f"the agent's own times of steps are {median * 1e3:.1f} ms from those seen from outside"
        )
    return median


def quantile(values: Sequence[float], part: float) -> float:
    """Return the smallest of the values that is not exceeded by at least this part of them."""
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)]


def interval(values: Sequence[float], part: float) -> tuple[float | None, float | None]:
    """Return the values between which the quantile lies with `CERTAINTY`, for any distribution;
    None for an end for which there are too few values."""
    ordered, count = sorted(values), len(values)
    tail = (1 - CERTAINTY) / 2
    below = list(accumulate(_exactly(k, count, part) for k in range(count)))
    low = max((k for k in range(count) if below[k] <= tail), default=None)
    high = min((k for k in range(count) if below[k] >= 1 - tail), default=None)
    return (None if low is None else ordered[low], None if high is None else ordered[high])


def _exactly(many: int, count: int, part: float) -> float:
    """Return the probability of exactly `many` hits in `count` tries, each of probability
    `part`."""
    ways = math.lgamma(count + 1) - math.lgamma(many + 1) - math.lgamma(count - many + 1)
    return math.exp(ways + many * math.log(part) + (count - many) * math.log1p(-part))


# --- events ---------------------------------------------------------------------------------------


class Steps:
    """The file in which a training script notes its steps, read as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._lines: list[tuple[int, float]] = []

    def since(self, began: float) -> list[tuple[int, float]]:
        """Return iterations and times of all steps so far that were complete after `began`."""
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for number, t in map(bytes.split, whole.splitlines()):
            self._lines.append((int(number), float(t)))
        return [line for line in self._lines if line[1] > began]


def links_without(mesh: Sequence[Mapping[str, Any]], observer: str) -> list[tuple[str, str]]:
    """Return the links in a status that do not end at the observer, in a fixed order."""
    links = [(str(link["a"]), str(link["b"])) for link in mesh]
    return sorted(link for link in links if observer not in link)


class Herd:
    """A cluster that loses and regains members and links; the first node is the observer."""

    def __init__(
        self, lab: Lab, nodes: Sequence[str], dice: random.Random, batch: int, found: list[Seen]
    ) -> None:
        """`found`: the list to which its events are added."""
        self.lab = lab
        self.nodes = tuple(nodes)
        self.dice = dice
        self.options = ("--global-batch", str(batch), "--micro-batch", "1")
        self.found = found
        self._alone = 0.0  # since when nothing was done to the cluster

    @property
    def observer(self) -> Agent:
        """The agent whose steps are timed."""
        return self.lab.agents[self.nodes[0]]

    @cached_property
    def _steps(self) -> Steps:
        return Steps(self.observer.home / STEPS_FILE)

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
        """Return a link that is not the observer's: the first one in a fixed order, once links have
        opened after the last join."""

        def look() -> list[tuple[str, str]]:
            return links_without(self.lab.status(self.nodes[0])["mesh"], self.nodes[0])

        links = self.lab.wait("link that is not the observer's", look, WAIT_S)
        chosen: tuple[str, str] = self.dice.choice(links)
        return chosen

    def _quiet(self) -> None:
        """Wait until the cluster has settled, then as for an event's end for enough quiet steps."""
        self._alone = time.time()
        time.sleep(SETTLE_S)
        last = self.observer.iteration + QUIET_STEPS + CONTROL_STEPS + 2
        self.lab.wait("quiet steps", lambda: self.observer.iteration >= last, WAIT_S)

    def _done(
        self,
        kind: str,
        began: float,
        ended: float,
        quiet_until: float = math.inf,
        decision: float | None = None,
    ) -> None:
        """Measure an event once a step after it is over, and note it."""
        self.lab.wait("step after it", lambda: self._steps.since(ended), WAIT_S)
        steps = self._steps.since(self._alone)
        events = {e["iteration"]: e for e in self.observer.all("step")}
        own = {number: float(e["t"]) for number, e in events.items()}
        found = seen(kind, [t for _, t in steps], began, ended, quiet_until)
        parts = parts_of_longest(steps, events, began, ended, QUIET_STEPS)
        found = replace(found, apart=apart(steps, own), decision=decision, parts=parts)
        self.found.append(found)

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
        """Kill a node's agent; the event ends when the last survivor has decided to go on."""
        self._quiet()
        began = time.time()
        self.lab.agents[node].signal(signal.SIGKILL)
        left = self.lab.wait("member_left", self._happens("member_left", began, node), WAIT_S)
        decided = [
            float(self.lab.wait("decision", partial(without, agent, began, [node]), WAIT_S)["t"])
            for name, agent in self.lab.agents.items()
            if name != node
        ]
        self._done(KILL, began, float(left["t"]), decision=max(decided) - began)

    def join(self, node: str) -> None:
        """Start the agent of a node that is gone, and wait for its first step."""
        gone = self.lab.agents[node]
        kill_session(gone.process.pid)
        gone.process.wait()
        shutil.rmtree(gone.home)
        self._quiet()
        started = time.time()  # from here on its process keeps the machine busy
        agent = self.lab.start(node, *self.options)
        agent.wait("joined", WAIT_S)
        entered = float(agent.wait("step", WAIT_S)["t"])
        self._done(JOIN, float(agent.all("link_up")[0]["t"]), entered, started)
        self.lab.wait_together(*self.nodes)


# --- results --------------------------------------------------------------------------------------


FIGURES = ("stall", "floor", "difference", "idle", "floor_idle", "idle_difference", "decision")


def summary(found: Sequence[Seen]) -> list[dict[str, Any]]:
    """Return a line for each kind of event: medians and 99th percentiles with their intervals, in
    seconds."""
    rows = []
    for kind in KINDS:
        mine = [s for s in found if s.kind == kind]
        if not mine:
            continue
        row: dict[str, Any] = {"event": kind, "count": len(mine)}
        for name in FIGURES:
            values = [float(x) for s in mine if (x := getattr(s, name)) is not None]
            if values:
                row[name] = {
                    "median": statistics.median(values),
                    "median_interval": interval(values, 0.5),
                    "p99": quantile(values, 0.99),
                    "p99_interval": interval(values, 0.99),
                }
        row["usual_s"] = statistics.median(s.usual for s in mine)
        row["lasts_s"] = statistics.median(s.ended - s.began for s in mine)
        row["steps"] = statistics.median(s.steps for s in mine)
        row["apart_s"] = statistics.median(s.apart for s in mine)
        rows.append(row)
    return rows


COLUMNS = (
    ("stall", "median"),
    ("stall", "p99"),
    ("floor", "median"),
    ("floor", "p99"),
    ("difference", "median"),
)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the lines as Markdown, in milliseconds."""
    lines = [
        "| event | count | stall, median | stall, p99 | noise, median | noise, p99 "
        "| stall less its noise, median | usual step |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [_cell(row[name], part) for name, part in COLUMNS]
        usual = f"{row['usual_s'] * 1e3:.1f}"
        lines.append(f"| {row['event']} | {row['count']} | {' | '.join(cells)} | {usual} |")
    text = "\n".join([*lines, "", "(milliseconds; in brackets the interval of 95 %)"])
    for row in rows:
        if row["event"] == JOIN:
            text += f"\n\nIdle time of the members during a scale-out: {_both(row['idle'])}; "
            text += f"where nothing happens: {_both(row['floor_idle'])}; the one less the other: "
            text += f"median {_cell(row['idle_difference'], 'median')} ms."
        if "decision" in row:
            text += f"\n\nFrom `kill -9` to the last survivor's decision: {_both(row['decision'])}."
    return text


def _both(values: dict[str, Any]) -> str:
    return f"median {_cell(values, 'median')} ms, p99 {_cell(values, 'p99')} ms"


def _cell(values: dict[str, Any], part: str) -> str:
    low, high = ("?" if end is None else f"{end * 1e3:.1f}" for end in values[f"{part}_interval"])
    return f"{values[part] * 1e3:.1f} ({low} to {high})"


def draw(rows: Sequence[dict[str, Any]], title: str, path: Path) -> bool:
    """Draw medians as dots with a line to the 99th percentile; return False without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return False
    figure = Figure(figsize=PICTURE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, label, colour, above in (
        ("stall", "stall", "#b03030", -0.15),
        ("floor", "noise (where nothing happens)", "#4878a8", 0.15),
    ):
        at = [k + above for k in range(len(rows))]
        medians = [row[name]["median"] * 1e3 for row in rows]
        worst = [row[name]["p99"] * 1e3 for row in rows]
        axes.hlines(at, medians, worst, color=colour, linewidth=1, alpha=0.6)
        axes.plot(medians, at, "o", color=colour, label=f"{label}, median")
        axes.plot(worst, at, "|", color=colour, markersize=12, label=f"{label}, 99th percentile")
    axes.set_yticks(range(len(rows)), [f"{row['event']} ({row['count']})" for row in rows])
    axes.invert_yaxis()
    axes.axvline(0, color="#888888", linewidth=0.7)
    axes.set_xlabel("milliseconds beyond the usual step")
    axes.set_title(title)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)
    return True


def measure(args: argparse.Namespace, net: Network, found: list[Seen], failures: list[str]) -> None:
    """Add all events to `found`, and to `failures` why clusters had to be given up."""
    dice = random.Random(args.seed)
    job = ["--state-mb", str(args.state_mb), "--gradient-mb", str(args.gradient_mb)]
    job += ["--compute-ms", str(args.compute_ms), "--steps-file", STEPS_FILE]
    while len(failures) < MAX_FAILURES and _least(found) < args.events:
        with tempfile.TemporaryDirectory() as folder, Lab(net, Path(folder), job) as lab:
            herd = Herd(lab, net.nodes, dice, SHARE * (len(net.nodes) - 1), found)
            try:
                herd.gather()
                while _least(found) < args.events:
                    herd.cycle(args.links)
                    say(f"{_least(found)} of {args.events} events of each kind")
            except (AssertionError, EdgeAgentError, ValueError) as error:
                failures.append(why(error))
                say(f"failed: {failures[-1]}")


def _least(found: Sequence[Seen]) -> int:
    return min(sum(s.kind == kind for s in found) for kind in KINDS)


def run(args: argparse.Namespace) -> int:
    """Measure, write and print; return 0 if all events ended. After Ctrl+C, what was measured
    before is written, too."""
    if not 3 <= args.nodes <= MAX_NODES:
        sys.exit(f"bench: 3 to {MAX_NODES} nodes, not {args.nodes}")
    if args.events < 1 or args.links < 1:
        sys.exit("bench: --events and --links are 1 at least")
    nodes = tuple("abcdefghijkl"[: args.nodes])
    found: list[Seen] = []
    failures: list[str] = []
    try:
        with Network(nodes, default=Link(args.mbit * MBIT, args.delay_ms / 1e3)) as net:
            calibrated(net)
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
        "method": METHOD,
        "summary": rows,
        "events": [{**asdict(s), "difference": s.difference} for s in found],
        "failures": list(failures),
    }
    write(args.out, "events", about, runs, {})
    draw(rows, case, args.out / "events.png")
    kinds = {row["event"]: [s.parts for s in found if s.kind == row["event"]] for row in rows}
    known = {kind: [p for p in many if p is not None] for kind, many in kinds.items()}
    text = table(rows) + "\n\n" + parts_table({k: many for k, many in known.items() if many})
    text += "".join(f"\n\nfailed: {why}" for why in failures)
    (args.out / "events.md").write_text(text + "\n")
    print(text)
