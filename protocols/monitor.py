"""What this node measures, what the others say they have measured, and when to measure again.

Law: a node measures what arrives at it, never what it sends; what it knows of itself it tells
everybody when that has changed, and again from time to time, so that every member could plan. What
is said of links and members that are gone is forgotten. A link that carries nothing is probed, so
that it is known what it would carry (NetStorm's auxiliary measurements, for the same reason).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols import limits
from protocols import messages as m
from protocols.effects import Incoming, Measured, Probe
from protocols.measures import Measures, Rate

if TYPE_CHECKING:
    from protocols.context import Context

MICRO = 1e-6
CHANGED = 0.1  # what differs by a tenth is news
CHANGED_DELAY_S = 0.002  # a delay must differ by so much, too


@dataclass(frozen=True, slots=True)
class Times:
    """A member's last iteration: `compute_s` for its share, `sync_s` waiting for the round."""

    compute_s: float
    sync_s: float


@dataclass(slots=True)
class Carried:
    """How much had been sent over a link, and since when no more than a little was added."""

    sent: int
    since: float


class Monitor:
    """The measurements that one node knows of."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._said: dict[bytes, m.Measured] = {}  # node -> its newest word, our own too
        self._told: m.Measured | None = None  # what we told the others last
        self._told_at = -math.inf
        self._carried: dict[bytes, Carried] = {}

    @property
    def measures(self) -> Measures:
        """All of it, as planners want it."""
        links: dict[tuple[bytes, bytes], Rate] = {}
        speeds: dict[bytes, float] = {}
        for node, said in sorted(self._said.items()):
            for link in said.links:
                if link.rate:
                    links[link.peer, node] = Rate(link.delay_us * MICRO, float(link.rate))
            if said.micro_batch_us:
                speeds[node] = said.micro_batch_us * MICRO
        return Measures(links, speeds)

    def incoming(self, peer: bytes) -> Rate | None:
        """What arrives here from `peer`, None while that is not measured."""
        return self.measures.links.get((peer, self._context.node))

    def times(self, node: bytes) -> Times | None:
        """How the last iteration went at `node`, None if it has not said so."""
        said = self._said.get(node)
        if said is None or not said.compute_us + said.sync_us:
            return None
        return Times(said.compute_us * MICRO, said.sync_us * MICRO)

    def link_up(self, node: bytes) -> None:
        """A link to `node` is open: measure it, each end what arrives there."""
        self._context.do(Probe(node))

    def measured(self, now: float, event: Measured) -> bool:
        """What the shell has measured at this node so far; return whether the others were told."""
        mine = m.Measured(
            tuple(
                m.LinkRate(link.node, _micro(link.delay_s), int(link.rate or 0))
                for link in event.incoming
                if link.node in self._context.links
            ),
            _micro(event.micro_batch_s),
            _micro(event.compute_s),
            _micro(event.sync_s),
        )
        self._said[self._context.node] = mine
        self._probe_idle(now, event.incoming)
        news = self._told is None or _differ(self._told, mine)
        due = now >= self._told_at + (limits.TELL_SECONDS if news else limits.TELL_AGAIN_SECONDS)
        tells = self._context.is_member and due
        if tells:
            self._told, self._told_at = mine, now
            self._context.send(m.EVERYONE, mine)
        return tells

    def heard(self, sender: bytes, message: m.Measured) -> None:
        """A node says what it has measured."""
        self._said[sender] = message
        self._forget()

    def _forget(self) -> None:
        """Keep what members and joiners say; of others there is nothing to plan."""
        policy = self._context.policy
        if policy is not None:
            known = (self._context.node, *policy.view.nodes, *(p.joiner.node for p in policy.pulls))
            self._said = {n: said for n, said in self._said.items() if n in known}

    def _probe_idle(self, now: float, links: tuple[Incoming, ...]) -> None:
        """Probe links over which we have sent next to nothing for a while."""
        before, self._carried = self._carried, {}
        for link in links:
            carried = before.get(link.node) or Carried(link.sent_bytes, now)
            if link.sent_bytes - carried.sent >= limits.METER_BYTES:
                carried = Carried(link.sent_bytes, now)
            elif now - carried.since >= limits.PROBE_AGAIN_SECONDS:
                carried = Carried(link.sent_bytes + limits.MAX_PROBE_BYTES, now)
                self._context.do(Probe(link.node))
            self._carried[link.node] = carried


def _micro(seconds: float | None) -> int:
    return 0 if seconds is None else max(1, round(seconds / MICRO))


def _differ(before: m.Measured, now: m.Measured) -> bool:
    """Whether the others should know."""
    if [link.peer for link in before.links] != [link.peer for link in now.links]:
        return True
    if _changed(before.micro_batch_us, now.micro_batch_us):
        return True
    return any(
        _changed(a.rate, b.rate)
        or abs(a.delay_us - b.delay_us) * MICRO > max(CHANGED_DELAY_S, CHANGED * a.delay_us * MICRO)
        for a, b in zip(before.links, now.links, strict=True)
    )


def _changed(before: int, now: int) -> bool:
    return abs(before - now) > CHANGED * before
