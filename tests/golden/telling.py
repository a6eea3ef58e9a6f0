"""Writes down what happens in a simulated history, in lines for people.

There is one line for each control message that arrives, each link that opens or ends, each report
to users, and each change of a device's state. Measurements, bulk frames, undisturbed rounds, and
messages that are repeated a moment later are left out, because they would hide the rest.
"""

from __future__ import annotations

import textwrap
from collections import deque
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from protocols import events
from protocols.cluster.policy import Policy
from protocols.cluster.view import Member
from protocols.member.cycle_table import CycleState
from protocols.wire import messages as m
from tests.simulation.faults import Intensities
from tests.simulation.harsh import HarshWorld
from tests.simulation.world import World

if TYPE_CHECKING:
    from protocols.effects import Report
    from tests.simulation.host import Host

LEFT_OUT = (m.Measured, m.Ping, m.Pong, m.StatePieces)
REPORTS_LEFT_OUT = ("delay", "digest")
REPEATED = 12  # a message that is equal to one of so many last ones is not written down again
WIDTH = 100
CALM = Intensities(*[0.0] * len(fields(Intensities)))


class Tale:
    """The lines of one history."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._known: dict[bytes, dict[str, str]] = {}  # device -> its state as written down last
        self._told: dict[bytes, int] = {}  # device -> how many of its reports are written down
        self._heard: dict[bytes, deque[str]] = {}  # device -> its last messages, as written down

    def say(self, world: World, host: Host | None, text: str) -> None:
        """Add a line about a device, or about all devices if `host` is None."""
        name = host.me.name if host is not None else ""
        iteration = host.node.context.iteration if host is not None and host.node else ""
        head = f"{world.now:8.3f}  {name:3} {iteration!s:>3}  "
        self.lines += textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * 23)

    def title(self, text: str) -> None:
        """Add a line about what the history makes happen next."""
        self.lines += ["", f"# {text}"]

    def handled(self, world: World, host: Host, event: events.Event) -> None:
        """Write down what changed when `host` took an event."""
        match event:
            case events.Received(peer, envelope) if not isinstance(envelope.message, LEFT_OUT):
                origin = envelope.tags.origin
                via = "" if origin == peer else f" through {name_of(world, peer)}"
                said = f"< {name_of(world, origin)}{via}: {shown(world, envelope.message)}"
                heard = self._heard.setdefault(host.me.node, deque(maxlen=REPEATED))
                if said not in heard:
                    self.say(world, host, said)
                heard.append(said)
            case events.LinkUp(who):
                self.say(world, host, f"link to {who.name} is open")
            case events.LinkDown(node, why):
                self.say(world, host, f"link to {name_of(world, node)} has ended: {why.value}")
            case events.LeaveWanted():
                self.say(world, host, "its user wants it to leave")
        for report in host.reports[self._told.get(host.me.node, 0) :]:
            self._tell(world, host, report)
        self._told[host.me.node] = len(host.reports)
        self._changes(world, host)

    def _tell(self, world: World, host: Host, report: Report) -> None:
        if report.event not in REPORTS_LEFT_OUT and not report.event.startswith("link_"):
            values = ", ".join(f"{k} {short(v)}" for k, v in report.values.items())
            self.say(world, host, f'tells "{report.event}": {values}')

    def _changes(self, world: World, host: Host) -> None:
        now = standing(world, host)
        before = self._known.get(host.me.node, {})
        changes = [f"{k} {before.get(k, '-')} -> {v}" for k, v in now.items() if before.get(k) != v]
        self._known[host.me.node] = now
        if changes and before:
            self.say(world, host, "; ".join(changes))


class ToldWorld(World):
    """A world that is written down, with no other faults than those that the history makes."""

    def __init__(self, seed: int, *, steps: int) -> None:
        super().__init__(seed, steps=steps)
        self.most_delay = 0.01
        self.tale = Tale()

    def handled(self, host: Host, event: events.Event) -> None:
        """Write it down."""
        super().handled(host, event)
        self.tale.handled(self, host, event)

    def departed(self, host: Host, why: str) -> None:
        """Write it down."""
        self.tale.say(self, host, f'departs: "{why}"')
        super().departed(host, why)


class ToldSearch(HarshWorld):
    """The same, with devices that look for each other themselves."""

    def __init__(self, seed: int, *, steps: int) -> None:
        super().__init__(seed, CALM, micro_batches=8, steps=steps)
        self.most_delay, self.most_compute = 0.01, 0.1
        self.tale = Tale()

    def handled(self, host: Host, event: events.Event) -> None:
        """Write it down."""
        super().handled(host, event)
        self.tale.handled(self, host, event)

    def ended(self, host: Host, why: str) -> None:
        """Write it down."""
        self.tale.say(self, host, f'ends: "{why}"')
        super().ended(host, why)


def standing(world: World, host: Host) -> dict[str, str]:
    """Return the state of a device as it is written down: everything except the iteration."""
    node = host.node
    if node is None:
        return {}
    context = node.context
    policy, joining = context.policy, node.joining
    frozen = node.context.freeze.holds or node.cycle.state is CycleState.FROZEN
    scheduler = name_of(world, context.election.scheduler)
    return {
        "join": joining.state.value if joining is not None else "founded",
        "term": f"{context.election.term} of {scheduler}",
        "policy": f"{policy.key[0]}.{policy.key[1]}" if policy is not None else "none",
        "round": "frozen" if frozen else "runs",
        "lineage": context.lineage.hex()[:4] or "none",
    }


def name_of(world: World, node: bytes) -> str:
    """Return the name of a device."""
    host = world.hosts.get(node)
    return host.me.name if host is not None else (node.hex()[:6] or "all")


def short(value: object) -> str:
    """Return a value of a report as a short text."""
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value)


def shown(world: World, record: Any) -> str:
    """Return a message, or a part of one, in a form for people."""
    known = world.hosts
    match record:
        case Policy():
            names = " ".join(member.name for member in record.view.members)
            pulls = "".join(f", {p.joiner.name} pulls" for p in record.pulls)
            return f"policy {record.key[0]}.{record.key[1]} ({names}{pulls})"
        case Member():
            return record.name
        case m.Restart():
            what = "keep the sum of" if record.applied else "sum again"
            then = f"attempt {record.redo} under {shown(world, record.policy)}"
            return f"{what} iteration {record.iteration}, then {then}"
        case bytes() if record in known:
            return name_of(world, record)
        case bytes():
            return record.hex() if len(record) <= 4 else f"{record.hex()[:4]}.."
        case tuple():
            return f"[{' '.join(shown(world, item) for item in record)}]"
        case bool():
            return "yes" if record else "no"
        case float():
            return f"{record:.3f}"
    if not is_dataclass(record):
        return str(record)
    said = []
    for field in fields(record):
        value = getattr(record, field.name)
        if field.name == "join":  # its upper half is the term, the lower a number in the term
            said.append(f"join {value >> 32}.{value & 0xFFFFFFFF}")
        elif isinstance(value, Policy | m.Restart):
            said.append(shown(world, value))
        else:
            said.append(f"{field.name} {shown(world, value)}")
    return f"{type(record).__name__} {', '.join(said)}".rstrip()
