"""What this node measures, what the others say they have measured, and when to measure again.

A node measures what arrives at it, never what it sends, because only the receiver knows how fast
bytes arrive. It floods its measurements when they have changed, and repeats them from time to time,
so that every member can plan with them when it becomes the scheduler. Measurements of links and
members that are gone are forgotten. A link that carries nothing is probed, so that its rate is
known before a plan uses it (NetStorm's auxiliary measurements have the same purpose). A link that
is in use is probed, too, but less often, because its traffic may be too short to be measured. The
repeated probes of a device take 1 % of the time at most, however many links it has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING

from protocols import limits
from protocols.effects import LinkFell, Probe
from protocols.network.fallen_links import FallenLinks, OtherDirections
from protocols.network.measures import KeepingUp, Measures, Rate, Times
from protocols.network.node_limit import NodeLimit
from protocols.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from protocols.events import Incoming, Measured
    from protocols.member.context import Context

MICRO = 1e-6  # seconds of a microsecond, the unit of times in messages
MOST_MICRO = float((1 << 32) - 1)  # longer times are sent as this
MOST_RATE = 1e15  # bytes/s; higher rates are sent as this
# A figure that differs by less than a tenth from what was told last is not told at once.
CHANGED = 0.1
# A delay must also differ by this much, since a tenth of a short delay is noise.
CHANGED_DELAY_S = 0.002


@dataclass(slots=True)
class Carried:
    """What a link has carried, to decide when to probe it.

    `sent`: bytes sent by the time `since`; little was sent after that. `probed`: the time of the
    last probe. `delay_known`: the delay was known at that probe, which is longer if it is long.
    """

    sent: int
    since: float
    probed: float
    delay_known: bool = False

    def due(self, delay_s: float | None) -> float:
        """Return when to probe the link again; `delay_s`: its one-way delay, None: not known."""
        if not self.delay_known and delay_s is not None and delay_s > limits.LONG_DELAY_SECONDS:
            return self.since + limits.PROBE_LONGER_SECONDS
        idle = self.since + limits.PROBE_AGAIN_SECONDS
        return min(idle, self.probed + limits.PROBE_BUSY_SECONDS)


class Monitor:
    """The measurements that one node knows of."""

    def __init__(self, context: Context, standing: Callable[[], tuple[KeepingUp, float]]) -> None:
        """`standing`: how this node's own trainer keeps up (`trainer_debt.py`)."""
        self._context = context
        self._standing = standing
        self._heard_at: dict[bytes, float] = {}  # node -> when its measurements came last
        self._said: dict[bytes, m.Measured] = {}  # node (this one, too) -> its measurements
        self._joiners: dict[bytes, None] = {}  # those that have told the rates of their links
        self._told: m.Measured | None = None  # the measurements that were flooded last
        self._told_at = -math.inf
        self._up, self._down = NodeLimit(), NodeLimit()  # of this device
        self._fallen = FallenLinks()
        self._other_directions = OtherDirections()
        self._carried: dict[bytes, Carried] = {}
        self._probes_from = -math.inf  # when a link may be probed again, for the sake of the others

    @property
    def measures(self) -> Measures:
        """All measurements, in the form in which planners get them."""
        known = self._known
        links: dict[tuple[bytes, bytes], Rate] = {}
        speeds: dict[bytes, float] = {}
        for node, said in sorted(self._said.items()):
            for link in said.links:
                if link.rate and link.peer in known:
                    pair, known_rate = (link.peer, node), _rate(link)
                    counts = self._other_directions.rate(self._context.now, pair, known_rate.rate)
                    links[pair] = replace(known_rate, rate=counts)
            if said.micro_batch_us:
                speeds[node] = said.micro_batch_us * MICRO
        up: dict[bytes, float] = {}
        down: dict[bytes, float] = {}
        for node, said in sorted(self._said.items()):
            # What all links carry together is never less than what one of them does alone.
            if said.up:
                fastest = (link.rate for (source, _), link in links.items() if source == node)
                up[node] = max((float(said.up), *fastest))
            if said.down:
                fastest = (link.rate for (_, to), link in links.items() if to == node)
                down[node] = max((float(said.down), *fastest))
        return Measures(links, speeds, up, down)

    def incoming(self, peer: bytes) -> Rate | None:
        """Return how fast bytes from `peer` arrive here, None while that is not measured."""
        return self._arriving(peer, self._context.node)

    def times(self, node: bytes) -> Times | None:
        """Return the times of the last iteration at `node`, None if it has not told them."""
        said = self._said.get(node)
        if said is None or not said.compute_us + said.sync_us:
            return None
        return Times(said.compute_us * MICRO, said.sync_us * MICRO)

    def waits_for(self, node: bytes) -> tuple[KeepingUp, float]:
        """Return how the trainer of a member keeps up, and for how many seconds it has not answered
        (0.0 unless that is longer than usual)."""
        if node == self._context.node:
            return self._standing()
        said = self._said.get(node)
        if said is None or said.keeping_up == KeepingUp.PROMPT:
            return KeepingUp.PROMPT, 0.0
        since = self._context.now - self._heard_at.get(node, self._context.now)
        return KeepingUp(said.keeping_up), said.owed_us * MICRO + since

    def link_up(self, node: bytes) -> None:
        """A link to `node` is open: probe it, so that the other end can measure this direction."""
        self._context.do(Probe(node))

    def measured(self, now: float, event: Measured) -> bool:
        """Take the shell's measurements and flood them if that is due; return whether it was."""
        keeping_up, owed_s = self._standing()
        fallen = self._find_limits(now, event)
        links = [link for link in event.incoming if link.node in self._context.links]
        mine = m.Measured(
            tuple(_told(replace(x, rate=fallen.get(x.node, x.rate))) for x in links),
            _micro(event.micro_batch_s),
            _micro(event.compute_s),
            _micro(event.sync_s),
            int(keeping_up),
            _micro(owed_s or None),
            _whole(self._up.rate(now)),
            _whole(self._down.rate(now)),
        )
        self._said[self._context.node] = mine
        self._probe_again(now, event.incoming)
        news = self._told is None or _differ(self._told, mine)
        due = now >= self._told_at + (limits.TELL_SECONDS if news else limits.TELL_AGAIN_SECONDS)
        tells = self._context.is_member and due
        if tells:
            self._told, self._told_at = mine, now
            self._context.send(m.EVERYONE, mine)
        return tells

    def _find_limits(self, now: float, event: Measured) -> dict[bytes, float]:
        """Look for what limits this device, in what its links have carried together. Return which
        links of a joiner have become slow, and how fast they still are."""
        node = self._context.node
        sent = {peer: self._alone(node, peer) for peer in self._context.links}
        outgoing = {peer: rate for peer, rate in sent.items() if rate is not None}
        incoming = {x.node: x.rate for x in event.incoming if x.alone and x.rate}
        for stretch in event.sent:
            self._up.add(now, stretch, outgoing)
        for stretch in event.received:
            self._down.add(now, stretch, incoming)
        fallen: dict[bytes, float] = {}
        if not self._context.is_member:
            known = {x.node: x.rate for x in event.incoming if x.rate}
            for stretch in event.received:
                fallen |= self._fallen.add(stretch, known)
        for node, rate in fallen.items():
            self._context.do(LinkFell(node, rate))
        return fallen

    def _alone(self, source: bytes, node: bytes) -> float | None:
        """Return how fast bytes from `source` arrive at `node` while no other link is busy, None
        while that is not known."""
        link = self._link(source, node)
        return float(link.rate) if link is not None and link.alone else None

    def heard(self, sender: bytes, message: m.Measured) -> bool:
        """Take the measurements of another node; return whether they have changed. Those of nodes
        that are neither members nor joiners nor neighbours are not kept, as no plan needs them."""
        known = self._known
        if sender not in known or sender == self._context.node:
            return False
        before = self._said.get(sender)
        self._said[sender] = message
        self._heard_at[sender] = self._context.now
        self._report(sender, KeepingUp(before.keeping_up if before else 0), message)
        self._said = {n: said for n, said in self._said.items() if n in known}
        self._heard_at = {n: at for n, at in self._heard_at.items() if n in known}
        return before is None or _differ(before, message)

    def joiner_rates(self, joiner: bytes, rates: Mapping[bytes, int]) -> None:
        """Note how fast bytes of each member arrive at a joiner (bytes/s, 0: not known). It floods
        no measurements, but tells the scheduler this, so that no plan with it takes a slow link for
        a usual one. The delay is assumed to be that of the other direction."""
        policy = self._context.policy
        if policy is None or joiner in policy.view.nodes:
            return
        self._joiners.pop(joiner, None)
        self._joiners[joiner] = None
        for old in list(self._joiners)[: -limits.MAX_OPEN_JOINS]:
            del self._joiners[old]
        before = self._said.get(joiner)
        links = {link.peer: link for link in before.links} if before is not None else {}
        for peer in policy.view.nodes:
            if rate := rates.get(peer, 0):
                back = self._arriving(joiner, peer)
                if back and peer in links:
                    pair, told = (joiner, peer), links[peer].rate
                    self._other_directions.told(self._context.now, pair, back.rate, told, rate)
                links[peer] = m.LinkRate(peer, _micro(back.delay_s) if back else 0, rate)
        links = {peer: link for peer, link in links.items() if peer in policy.view.nodes}
        self._said[joiner] = m.Measured(tuple(links.values()), 0, 0, 0, 0, 0)

    def _report(self, node: bytes, before: KeepingUp, said: m.Measured) -> None:
        """Report to the user that a member's trainer has become late, is away, or is back."""
        now, name = KeepingUp(said.keeping_up), self._context.name(node)
        if now in (before, KeepingUp.SLOW):
            return
        if now is not KeepingUp.PROMPT:
            self._context.report("member_late", node=name, away=now is KeepingUp.AWAY)
        elif before is not KeepingUp.SLOW:
            self._context.report("member_back", node=name, seconds=None)

    @property
    def _known(self) -> dict[bytes, None]:
        """This node, its neighbours, and all members and joiners."""
        context, policy = self._context, self._context.policy
        known = dict.fromkeys((context.node, *context.links, *self._joiners))
        if policy is not None:
            known |= dict.fromkeys((*policy.view.nodes, *(p.joiner.node for p in policy.pulls)))
        return known

    def _probe_again(self, now: float, links: tuple[Incoming, ...]) -> None:
        """Probe a link over which little was sent for a while, or which was not probed for long.
        Only one is probed at a time, the one that waits longest: two probes would share this
        device's uplink and measure only a part of it. The probe of a link whose delay was not known
        at the first one is not put off, because until then nothing is known of the link."""
        before, self._carried = self._carried, {}
        for link in links:
            carried = before.get(link.node) or Carried(link.sent_bytes, now, now)
            if not self._context.is_member:  # a joiner's probes would slow its pull down
                carried = replace(carried, since=now, probed=now)
            if link.sent_bytes - carried.sent >= limits.METER_BYTES:
                carried = replace(carried, sent=link.sent_bytes, since=now)
            self._carried[link.node] = carried
        waits = [
            (self._carried[x.node].due(x.delay_s), x.node, x.delay_s)
            for x in links
            if now >= self._probes_from or not self._carried[x.node].delay_known
        ]
        if waits and (first := min(waits, key=itemgetter(0, 1)))[0] <= now:
            _, node, delay_s = first
            self._probes_from = now + limits.PROBE_SPACING * self._busy_seconds(node, delay_s)
            sent = self._carried[node].sent + limits.MAX_PROBE_BYTES
            self._carried[node] = Carried(sent, now, now, delay_known=delay_s is not None)
            self._context.do(Probe(node))

    def _busy_seconds(self, node: bytes, delay_s: float | None) -> float:
        """Return for how long a probe keeps the link to `node` busy: until the last of it has
        arrived, which takes long on a slow link. What the other end says of the rate cannot put
        off the probes of all links for ever."""
        outgoing = self._arriving(self._context.node, node)
        rest = limits.PROBE_REST_BYTES / outgoing.rate if outgoing is not None else 0.0
        return probe_seconds(delay_s or 0.0) + min(rest, limits.MOST_PROBE_SECONDS)

    def _arriving(self, source: bytes, node: bytes) -> Rate | None:
        """Return how fast bytes from `source` arrive at `node`, None while that is not known."""
        link = self._link(source, node)
        return _rate(link) if link is not None else None

    def _link(self, source: bytes, node: bytes) -> m.LinkRate | None:
        """Return what `node` has told of the link from `source`, None if it knows no rate of it."""
        said = self._said.get(node)
        known = said.links if said is not None else ()
        return next((link for link in known if link.peer == source and link.rate), None)


def probe_seconds(delay_s: float) -> float:
    """Return how long a probe lasts at most over a link with this one-way delay. TCP needs several
    round trips until it sends at full rate, so it lasts longer if the delay is long."""
    seconds = limits.MAX_PROBE_SECONDS + limits.PROBE_ROUND_TRIPS * 2 * delay_s
    return min(seconds, limits.MOST_PROBE_SECONDS)


def _rate(link: m.LinkRate) -> Rate:
    return Rate(link.delay_us * MICRO, float(link.rate))


def _told(link: Incoming) -> m.LinkRate:
    return m.LinkRate(link.node, _micro(link.delay_s), _whole(link.rate), int(link.alone))


def _whole(rate: float | None) -> int:
    """Return bytes/s as they are sent: 0 for what is not known, otherwise at least 1."""
    return 0 if rate is None else int(max(1.0, min(rate, MOST_RATE)))


def _micro(seconds: float | None) -> int:
    """Return microseconds as they are sent: 0 for what is not known, otherwise at least 1."""
    return 0 if seconds is None else round(max(1.0, min(seconds / MICRO, MOST_MICRO)))


def _differ(before: m.Measured, now: m.Measured) -> bool:
    """Whether measurements differ so much that the others should be told at once."""
    if [link.peer for link in before.links] != [link.peer for link in now.links]:
        return True
    if _changed(before.micro_batch_us, now.micro_batch_us):
        return True
    if before.keeping_up != now.keeping_up:
        return True
    if _changed(before.up, now.up) or _changed(before.down, now.down):
        return True
    return any(
        _changed(a.rate, b.rate)
        or abs(a.delay_us - b.delay_us) * MICRO > max(CHANGED_DELAY_S, CHANGED * a.delay_us * MICRO)
        for a, b in zip(before.links, now.links, strict=True)
    )


def _changed(before: int, now: int) -> bool:
    return abs(before - now) > CHANGED * before
