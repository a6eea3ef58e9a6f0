"""A scenario: which network, which job, and what happens when. Read from a TOML file, strictly.

Rates are Mbit/s, delays milliseconds and times seconds in the file; bytes/s and seconds in what
comes out. scenarios/README.md lists the fields.

Everything that the file contains is used, and what makes no sense is refused with one line that
names the file and the field. Random draws are made here, from the scenario's seed, so that a
scenario is the same in every run.
"""

from __future__ import annotations

import math
import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import Any

from edgeagent.launch import BUILT_IN_JOBS
from tests.testbed.namespaces import NODE_NAME, TestbedError
from tests.testbed.network import SWITCH, Pair
from tests.testbed.shaping import MBIT, UNSHAPED, Limit, Link

NODE_ACTIONS = ("join", "ctrl-c", "kill", "stop", "cont")
PAIR_ACTIONS = ("cut", "restore", "rate", "delay")
ACTIONS = (*NODE_ACTIONS, *PAIR_ACTIONS, "partition", "heal")
LINK_FIELDS = ("rate", "delay_ms", "jitter_ms", "loss")
SYNTHETIC = Path(__file__).resolve().with_name("synthetic.py")  # the job of this name
MAX_SECONDS = 24 * 3600.0

Changes = dict[str, float]  # values of some fields of a `Link`


@dataclass(frozen=True, slots=True)
class Job:
    """What every agent runs."""

    name: str  # a built-in job, or a script's absolute path
    steps: int
    options: tuple[str, ...] = ()  # further options of `edgeagent run`
    arguments: tuple[str, ...] = ()  # arguments of the script


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the timeline; `at_s` counts from the moment at which all starters train."""

    at_s: float
    do: str
    node: str = ""
    pairs: tuple[Pair, ...] = ()
    groups: tuple[tuple[str, ...], ...] = ()
    changes: dict[Pair, Changes] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """A few words for people."""
        if self.node:
            return f"{self.do} {self.node}"
        if self.groups:
            return "partition " + " | ".join(",".join(group) for group in self.groups)
        pairs = self.pairs or tuple(self.changes)
        if len(pairs) > 2:
            return f"{self.do} of {len(pairs)} links"
        if pairs:
            a, b = pairs[0]
            return f"{self.do} {a} {'-' if len(pairs) == 2 else '>'} {b}"
        return self.do


@dataclass(frozen=True, slots=True)
class Scenario:
    """A whole scenario; `timeline` is in the order of time."""

    name: str
    nodes: tuple[str, ...]
    starters: tuple[str, ...]
    end_s: float
    seed: int
    job: Job
    default: Link | None
    links: dict[Pair, Link]
    limits: dict[str, Limit]
    medium: float
    congestion: str
    timeline: tuple[Event, ...]

    @property
    def may_fork(self) -> bool:
        """Whether agents may rightly go on apart for a while: if some are cut off from others, are
        asleep, have no link to another one, or start when no other one is there."""
        if any(event.do in ("cut", "partition", "stop") for event in self.timeline):
            return True
        running = dict.fromkeys(self.starters)
        for event in self.timeline:
            if event.do == "join":
                running[event.node] = None
            elif event.node:
                running.pop(event.node, None)
            if not running:
                return True
        return not all(map(self.linked, permutations(self.nodes, 2)))

    def linked(self, pair: Pair) -> bool:
        """Whether packets pass from one node to the other while nothing is cut."""
        return self.default is not None or pair in self.links

    def cuts_after(self, cuts: Mapping[Pair, None], event: Event) -> dict[Pair, None]:
        """Return the pairs that are cut after a line of the timeline; `cuts`: those before it."""
        if event.do == "cut":
            return {**cuts, **dict.fromkeys(event.pairs)}
        if event.do == "partition":
            part = {node: -k for k, node in enumerate(self.nodes, 1)}  # each one alone
            part |= {node: k for k, group in enumerate(event.groups) for node in group}
            apart = [(a, b) for a, b in permutations(self.nodes, 2) if part[a] != part[b]]
            return {**cuts, **dict.fromkeys(apart)}
        if event.do == "heal":
            return {}
        healed = event.pairs if event.do == "restore" else ()
        return {pair: None for pair in cuts if pair not in healed}

    def one_at_end(self, nodes: Sequence[str]) -> bool:
        """Whether the network connects these nodes, directly or over each other, at the end."""
        cuts: dict[Pair, None] = {}
        for event in self.timeline:
            cuts = self.cuts_after(cuts, event)
        reached, left = list(nodes[:1]), list(nodes[1:])
        for a in reached:  # this list grows in the loop
            near = [b for b in left if all(self._open(p, cuts) for p in ((a, b), (b, a)))]
            reached += near
            left = [b for b in left if b not in near]
        return not left

    def _open(self, pair: Pair, cuts: Mapping[Pair, None]) -> bool:
        return self.linked(pair) and pair not in cuts


class Table:
    """One table of the file, from which fields are taken; its name is for error messages."""

    def __init__(self, where: str, values: Any) -> None:
        """`where`: the file and the name of the table, for error messages."""
        self.where = where
        if not isinstance(values, dict):
            raise TestbedError(f"{where} must be a table")
        self.values = dict(values)

    def wrong(self, name: str, why: str) -> TestbedError:
        """Return the error about one field."""
        place = f"{self.where}{name}".rstrip(".")
        return TestbedError(f"{place}: {why}")

    def has(self, *names: str) -> bool:
        """Whether one of these fields is there and has not been taken."""
        return any(name in self.values for name in names)

    def _take(self, name: str, default: Any) -> Any:
        if name in self.values:
            return self.values.pop(name)
        if default is ...:
            raise self.wrong(name, "is missing")
        return default

    def number(
        self, name: str, default: Any = ..., low: float = 0.0, high: float = MAX_SECONDS
    ) -> float:
        """Take a number."""
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, "must be a number")
        if not low <= value <= high:
            raise self.wrong(name, f"must be from {low:g} to {high:g}")
        return float(value)

    def whole(self, name: str, default: Any = ..., low: int = 0) -> int:
        """Take a whole number."""
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise self.wrong(name, f"must be a whole number, at least {low}")
        return value

    def text(self, name: str, default: Any = ...) -> str:
        """Take a string."""
        value = self._take(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, "must be a string")
        return value

    def texts(self, name: str, default: Any = ...) -> tuple[str, ...]:
        """Take a list of strings."""
        value = self._take(name, default)
        if not isinstance(value, list | tuple) or not all(isinstance(x, str) for x in value):
            raise self.wrong(name, "must be a list of strings")
        return tuple(value)

    def table(self, name: str) -> Table:
        """Take a table; an empty one if it is not there."""
        return Table(f"{self.where}{name}.", self._take(name, {}))

    def tables(self, name: str) -> list[Table]:
        """Take a list of tables."""
        value = self._take(name, [])
        if not isinstance(value, list):
            raise self.wrong(name, "must be a list of tables")
        return [Table(f"{self.where}{name}[{k}].", entry) for k, entry in enumerate(value, 1)]

    def done(self) -> None:
        """Refuse the table if fields are left that nobody has taken."""
        for name in self.values:
            raise self.wrong(name, "is not known here")


def load(path: Path) -> Scenario:
    """Read a scenario; raise `TestbedError` if there is anything wrong with it."""
    try:
        with path.open("rb") as file:
            values = tomllib.load(file)
    except OSError as error:
        raise TestbedError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TestbedError(f"{path}: {error}") from None
    return parse(values, str(path), path.stem, path.resolve().parent)


def parse(values: Mapping[str, Any], where: str, name: str, folder: Path = Path()) -> Scenario:
    """Return the scenario that `values` describe; a script's path is relative to `folder`."""
    top = Table(f"{where}: ", dict(values))
    nodes = _nodes(top)
    seed = top.whole("seed", 1)
    end_s = top.number("end_s", low=1.0)
    job = _job(top.table("job"), folder)
    network = top.table("network")
    congestion = network.text("congestion", "")
    medium = _rate(network, "medium", UNSHAPED)
    default = _link(network, Link()) if network.has(*LINK_FIELDS) else None
    network.done()
    links = _links(top, nodes, default)
    limits = _limits(top, nodes)
    there = [pair for pair in permutations(nodes, 2) if default is not None or pair in links]
    draws = _draws(top, there, end_s, random.Random(seed))
    if draws:
        base = default or Link()
        drawn = {pair: replace(links.get(pair, base), **c) for pair, c in draws[0].changes.items()}
        links |= drawn
    events = [_event(table, nodes, links, default) for table in top.tables("event")]
    starters = top.texts("start", ()) or _starters(nodes, events)
    for node in starters:
        _known(top, "start", node, nodes)
    if top.has("poisson"):
        if any(event.node for event in events):
            raise top.wrong(
                "poisson", "decides alone who joins and leaves: no such event beside it"
            )
        events += _poisson(top.table("poisson"), nodes, starters, end_s, random.Random(f"{seed} p"))
    top.done()
    timeline = tuple(sorted([*draws[1:], *events], key=lambda event: event.at_s))
    _check_order(where, starters, timeline, end_s)
    return Scenario(
        name,
        nodes,
        starters,
        end_s,
        seed,
        job,
        default,
        links,
        limits,
        medium,
        congestion,
        timeline,
    )


def _nodes(top: Table) -> tuple[str, ...]:
    nodes = top.texts("nodes")
    for node in nodes:
        if not NODE_NAME.fullmatch(node) or node == SWITCH:
            raise top.wrong("nodes", f"{node!r} is no name for a node")
    if len(set(nodes)) < len(nodes) or not nodes:
        raise top.wrong("nodes", "must name at least one node, each once")
    return nodes


def _job(table: Table, folder: Path) -> Job:
    name = table.text("name")
    if name not in BUILT_IN_JOBS:
        script = SYNTHETIC if name == SYNTHETIC.stem else (folder / name).resolve()
        if not script.is_file():
            jobs = ", ".join((*BUILT_IN_JOBS, SYNTHETIC.stem))
            raise table.wrong("name", f"must be one of {jobs}, or a script: there is no {script}")
        name = str(script)
    job = Job(
        name,
        table.whole("steps", low=1),
        table.texts("options", ()),
        table.texts("arguments", ()),
    )
    table.done()
    return job


def _known(table: Table, name: str, node: str, nodes: Sequence[str]) -> str:
    if node not in nodes:
        raise table.wrong(name, f"there is no node {node!r}")
    return node


def _rate(table: Table, name: str, default: float | None) -> float:
    """Take a rate; it has to be there if there is no default."""
    usual = ... if default is None else default / MBIT
    return table.number(name, usual, low=0.01, high=UNSHAPED / MBIT) * MBIT


def _link(table: Table, base: Link) -> Link:
    rate = _rate(table, "rate", base.rate)
    delay_s = table.number("delay_ms", base.delay_s * 1e3) / 1e3
    jitter_s = table.number("jitter_ms", base.jitter_s * 1e3) / 1e3
    loss = table.number("loss", base.loss, high=1.0)
    try:
        return Link(rate, delay_s, jitter_s, loss)
    except TestbedError as error:
        raise table.wrong("", str(error)) from None


def _pairs(table: Table, nodes: Sequence[str]) -> tuple[Pair, ...]:
    """Take `between = [A, B]` (both directions) or `from` and `to`."""
    if table.has("between"):
        names = table.texts("between")
        if len(names) != 2 or names[0] == names[1]:
            raise table.wrong("between", "must name two nodes")
        a, b = (_known(table, "between", name, nodes) for name in names)
        return (a, b), (b, a)
    a = _known(table, "from", table.text("from"), nodes)
    b = _known(table, "to", table.text("to"), nodes)
    if a == b:
        raise table.wrong("to", "must be another node")
    return ((a, b),)


def _links(top: Table, nodes: Sequence[str], default: Link | None) -> dict[Pair, Link]:
    links: dict[Pair, Link] = {}
    for table in top.tables("link"):
        pairs = _pairs(table, nodes)
        link = _link(table, default or Link())
        for pair in pairs:
            if pair in links:
                raise table.wrong("", f"{pair[0]} > {pair[1]} is described twice")
            links[pair] = link
        table.done()
    if default is None and not links and len(nodes) > 1:
        raise top.wrong("network", "gives no rate or delay, and there is no link: nothing passes")
    return links


def _limits(top: Table, nodes: Sequence[str]) -> dict[str, Limit]:
    limits: dict[str, Limit] = {}
    for table in top.tables("limit"):
        node = _known(table, "node", table.text("node"), nodes)
        limits[node] = Limit(_rate(table, "up", UNSHAPED), _rate(table, "down", UNSHAPED))
        table.done()
    return limits


def _draws(top: Table, there: Sequence[Pair], end_s: float, chance: random.Random) -> list[Event]:
    """Return the changes of rates that are drawn at random for the existing pairs, the first ones
    at the start and then at a fixed interval."""
    if not top.has("redraw"):
        return []
    table = top.table("redraw")
    every_s = table.number("every_s", low=1.0)
    low, high = _rate(table, "from", 100 * MBIT), _rate(table, "to", 1000 * MBIT)
    each = table.text("each", "pair")
    if high < low:
        raise table.wrong("to", "must not be less than from")
    if each not in ("pair", "direction"):
        raise table.wrong("each", 'must be "pair" or "direction"')
    table.done()
    draws = []
    for k in range(math.ceil(end_s / every_s)):
        changes: dict[Pair, Changes] = {}
        for a, b in there:
            if each == "pair" and (b, a) in changes:
                changes[a, b] = changes[b, a]
            else:
                changes[a, b] = {"rate": chance.uniform(low, high)}
        draws.append(Event(k * every_s, "redraw", changes=changes))
    return draws


def _poisson(
    table: Table,
    nodes: Sequence[str],
    starters: Sequence[str],
    end_s: float,
    chance: random.Random,
) -> list[Event]:
    """Return joins and leaves at the moments of a Poisson process.

    At each moment one of the actions that are possible then is drawn by its weight, and a node for
    it. Nothing is done to a node for a while after an action, so that it has time to join or leave.
    """
    every_s = table.number("every_s", low=0.1)
    first_s = table.number("first_s", 5.0)
    last_s = table.number("last_s", end_s, high=end_s)
    rest_s = table.number("rest_s", 10.0)
    least = table.whole("least", 2, low=1)
    weights = {do: table.number(do, 1.0) for do in ("join", "ctrl-c", "kill")}
    table.done()
    running = set(starters)
    free_at = dict.fromkeys(nodes, 0.0)
    events: list[Event] = []
    at_s = first_s + chance.expovariate(1 / every_s)
    while at_s <= last_s:
        rested = [node for node in nodes if free_at[node] <= at_s]
        come = [node for node in rested if node not in running]
        go = [node for node in rested if node in running] if len(running) > least else []
        can = {"join": come, "ctrl-c": go, "kill": go}
        open_to = [do for do in weights if weights[do] and can[do]]
        if open_to:
            (do,) = chance.choices(open_to, [weights[each] for each in open_to])
            node = chance.choice(can[do])
            events.append(Event(round(at_s, 3), do, node))
            running.symmetric_difference_update((node,))
            free_at[node] = at_s + rest_s
        at_s += chance.expovariate(1 / every_s)
    return events


def _event(
    table: Table, nodes: Sequence[str], links: Mapping[Pair, Link], default: Link | None
) -> Event:
    at_s = table.number("at_s")
    do = table.text("do")
    if do not in ACTIONS:
        raise table.wrong("do", f"must be one of {', '.join(ACTIONS)}")
    event = Event(at_s, do)
    if do in NODE_ACTIONS:
        event = replace(event, node=_known(table, "node", table.text("node"), nodes))
    elif do in PAIR_ACTIONS:
        pairs = _pairs(table, nodes)
        if default is None and any(pair not in links for pair in pairs):
            raise table.wrong("do", f"{pairs[0][0]} and {pairs[0][1]} have no link")
        event = replace(event, pairs=pairs)
        if do == "rate":
            change = {"rate": _rate(table, "rate", None)}
            event = replace(event, pairs=(), changes=dict.fromkeys(pairs, change))
        elif do == "delay":
            change = {"delay_s": table.number("delay_ms") / 1e3}
            change["jitter_s"] = table.number("jitter_ms", 0.0) / 1e3
            change["loss"] = table.number("loss", 0.0, high=1.0)
            try:
                Link(**change)
            except TestbedError as error:
                raise table.wrong("", str(error)) from None
            event = replace(event, pairs=(), changes=dict.fromkeys(pairs, change))
    elif do == "partition":
        event = replace(event, groups=_groups(table, nodes))
    table.done()
    return event


def _groups(table: Table, nodes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    groups = table.values.pop("groups", None)
    if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        raise table.wrong("groups", "must be a list of lists of nodes")
    flat = [_known(table, "groups", node, nodes) for group in groups for node in group]
    if len(set(flat)) < len(flat) or not flat:
        raise table.wrong("groups", "must name nodes, none of them twice")
    return tuple(tuple(group) for group in groups)


def _starters(nodes: Sequence[str], events: Sequence[Event]) -> tuple[str, ...]:
    """Return the nodes that run from the start: those for which the timeline has no join first."""
    first: dict[str, str] = {}
    for event in sorted(events, key=lambda event: event.at_s):
        if event.node:
            first.setdefault(event.node, event.do)
    return tuple(node for node in nodes if first.get(node) != "join")


def _check_order(
    where: str, starters: Sequence[str], timeline: Sequence[Event], end_s: float
) -> None:
    """Refuse a timeline in which a node joins that is there already, or leaves that is not."""
    state = dict.fromkeys(starters, "running")
    after = {"join": "running", "ctrl-c": "gone", "kill": "gone"}
    after |= {"stop": "stopped", "cont": "running"}
    needed = {"join": ("gone",), "ctrl-c": ("running",), "kill": ("running", "stopped")}
    needed |= {"stop": ("running",), "cont": ("stopped",)}
    if not starters:
        raise TestbedError(f"{where}: start: somebody has to begin")
    for event in timeline:
        if event.at_s > end_s:
            raise TestbedError(f"{where}: event: {event.text!r} is after end_s")
        if event.node:
            now = state.get(event.node, "gone")
            if now not in needed[event.do]:
                when = f"at {event.at_s:g} s"
                raise TestbedError(f"{where}: event: {event.text!r} {when}: {event.node} is {now}")
            state[event.node] = after[event.do]
