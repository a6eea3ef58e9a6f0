"""Which member the others wait for: one answer, which every member can work out for itself.

It follows from what is measured (`monitor.py`), what is in force (`policy.py`) and what is lost
(`recovery.py`). While steps take as long as usual, the answer is the member that makes each step
take that long, by its computing or by its link. While the running step takes longer than usual, the
answer is the reason why that step is not done. A member that costs the others less than a tenth of
a step is not named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING

from protocols.network.measures import NOTHING_KNOWN, KeepingUp, Measures

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy
    from protocols.cluster.ways import Way
    from protocols.member.node import Node
    from protocols.network.measures import Times

# Differences under 10 % of a step are not reported as a straggler.
HELD_UP = 0.1
# Sums that take more than half of a step are reported as slow even if all links are alike.
MOSTLY = 0.5
# Links whose costs differ by less than this factor count as alike.
ALIKE = 1.25
# A step counts as standing still when it takes longer than this and longer than so many usual
# steps.
STANDS_S = 2.0
STANDS_STEPS = 2.0


class Cause(StrEnum):
    """Why the others wait for a member."""

    COMPUTING = "computing"
    LINK = "link"
    SILENCE = "silence"
    JOINER = "joiner"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Members wait for `node`.

    `seconds`: how long they wait in each step, which takes `step_s`; if `step_s` is 0, how long
    they have waited in the running step so far. `peer`: the other end of the link, if a link is the
    cause, with the `rate` of its slower direction in bytes/s and its one-way delay `delay_s`.
    `shared`: the link belongs to `peer` as much as to `node`. `late`: the delay of the link costs
    more time than its rate. `trainer`: the trainer of `node` has not answered. `more`: how many
    other members are waited for in the same way.
    """

    cause: Cause
    node: bytes
    seconds: float
    step_s: float = 0.0
    peer: bytes = b""
    rate: float = 0.0
    delay_s: float = 0.0
    shared: bool = False
    late: bool = False
    trainer: bool = False
    more: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known at one member.

    - `times`: member -> the times of its last iteration.
    - `trainers`: member -> how its trainer keeps up, and for how many seconds it has not answered.
    - `vector_bytes`: the size of what a round sums.
    - `stands_s`: for how many seconds the running step has taken.
    - `usual_s`: how many seconds a step takes usually, 0 if that is not known.
    - `silent`: members that have not been heard lately.
    """

    policy: Policy
    times: Mapping[bytes, Times] = field(default_factory=dict)
    trainers: Mapping[bytes, tuple[KeepingUp, float]] = field(default_factory=dict)
    measures: Measures = NOTHING_KNOWN
    vector_bytes: int = 0
    stands_s: float = 0.0
    usual_s: float = 0.0
    silent: tuple[bytes, ...] = ()

    @property
    def stands(self) -> bool:
        """Whether the running step takes so much longer than usual that it counts as stopped."""
        return self.stands_s > max(STANDS_S, STANDS_STEPS * self.usual_s)


@dataclass(frozen=True, slots=True)
class _Edge:
    """A link that the sums use.

    `ends`: the child and the parent if there is one tree; with several ways neither end is above
    the other, and the one that is first in the view comes first. `seconds`: how long the link takes
    to carry its part of the gradients and of the sum; `rate`: of the slower direction in bytes/s;
    `delay_s`: one way.
    """

    ends: tuple[bytes, bytes]
    seconds: float
    rate: float
    delay_s: float


def waiting_of(node: Node, silent: tuple[bytes, ...] = ()) -> Waiting | None:
    """Return whom the members wait for, as far as `node` knows, None if they wait for nobody.
    `silent`: neighbours that it has not heard lately."""
    context, monitor = node.context, node.monitor
    policy = context.policy
    if policy is None or node.over or not context.is_member:
        return None
    nodes = policy.view.nodes
    times = {n: known for n in nodes if (known := monitor.times(n)) is not None}
    trainers = {n: monitor.waits_for(n) for n in nodes}
    missed = dict.fromkeys((*node.recovery.unheard, *silent))
    return waited_for(
        Standing(
            policy,
            times,
            trainers,
            monitor.measures,
            context.config.vector_bytes,
            context.pace.since(context.now),
            context.pace.usual_s,
            tuple(n for n in missed if n in nodes and n != context.node),
        )
    )


def waited_for(standing: Standing) -> Waiting | None:
    """Return whom the members wait for, None if they wait for nobody. The most certain reason comes
    first: silence, a trainer that does not answer, a joiner, then what makes steps slow anyway."""
    if len(standing.policy.view.nodes) < 2:
        return None
    if standing.stands and standing.silent:
        first, *rest = standing.silent
        return Waiting(Cause.SILENCE, first, standing.stands_s, more=len(rest))
    slow = [
        (seconds, n)
        for n, (keeping_up, seconds) in sorted(standing.trainers.items())
        if keeping_up is KeepingUp.SLOW
    ]
    if slow:
        seconds, node = max(slow)
        return Waiting(Cause.COMPUTING, node, seconds, trainer=True, more=len(slow) - 1)
    usual = _in_each_step(standing)
    if not standing.stands:
        return usual
    if pulls := [pull for pull in standing.policy.pulls if not pull.beside]:
        node = pulls[0].joiner.node
        return Waiting(Cause.JOINER, node, standing.stands_s, more=len(pulls) - 1)
    if usual is None:
        return Waiting(Cause.UNKNOWN, b"", standing.stands_s)
    return Waiting(
        usual.cause,
        usual.node,
        standing.stands_s,
        peer=usual.peer,
        rate=usual.rate,
        delay_s=usual.delay_s,
        shared=usual.shared,
        late=usual.late,
    )


def _in_each_step(standing: Standing) -> Waiting | None:
    """Return the member that makes every step take as long as it does, None if no member costs the
    others much."""
    working = {
        n: times
        for n, times in sorted(standing.times.items())
        if standing.trainers.get(n, (KeepingUp.PROMPT, 0.0))[0] is KeepingUp.PROMPT
    }
    if len(working) < 2:
        return None
    longest = sorted(((t.compute_s, n) for n, t in working.items()), reverse=True)
    (compute_s, slowest), (next_s, _) = longest[:2]
    # The last member to contribute waits only for the transfer, and so for the shortest time.
    transfer_s = min(t.sync_s for t in working.values())
    step_s = compute_s + transfer_s
    computing = Waiting(Cause.COMPUTING, slowest, compute_s - next_s, step_s)
    link = _slowest_link(standing, transfer_s, step_s)
    held = computing if link is None or computing.seconds >= link.seconds else link
    return held if held.seconds > HELD_UP * step_s else None


def _slowest_link(standing: Standing, transfer_s: float, step_s: float) -> Waiting | None:
    """Return the link that the sums of each step wait for: one that takes longer than the others,
    or the one that takes the longest if the sums take most of a step."""
    edges = sorted(_edges(standing), key=lambda e: (-e.seconds, e.ends))
    if not edges:
        return None
    slowest = edges[0]
    others_s = edges[1].seconds if len(edges) > 1 else 0.0
    if transfer_s > MOSTLY * step_s:
        seconds = transfer_s
    elif others_s and slowest.seconds > ALIKE * others_s:
        seconds = transfer_s * (1 - others_s / slowest.seconds)
    else:
        return None
    node, peer = slowest.ends
    first, second = _best_rate(standing, node), _best_rate(standing, peer)
    if ALIKE * second < first:
        node, peer = peer, node
    shared = max(first, second) <= ALIKE * min(first, second)
    rate, delay_s = slowest.rate, slowest.delay_s
    late = slowest.seconds < 4 * delay_s  # the delay there and back is more than half of it
    return Waiting(Cause.LINK, node, seconds, step_s, peer, rate, delay_s, shared, late)


def _edges(standing: Standing) -> list[_Edge]:
    """Return the links that the sums use and that are measured in at least one direction."""
    links, found = standing.measures.links, []
    for (one, other), (there, back) in _parts_carried(standing.policy).items():
        used = [
            (part, links[ends])
            for part, ends in ((there, (one, other)), (back, (other, one)))
            if part and ends in links
        ]
        if used:
            rate, delay_s = min(r.rate for _, r in used), max(r.delay_s for _, r in used)
            seconds = max(part * standing.vector_bytes / r.rate for part, r in used) + 2 * delay_s
            found.append(_Edge((one, other), seconds, rate, delay_s))
    return found


def _parts_carried(policy: Policy) -> Mapping[tuple[bytes, bytes], tuple[float, float]]:
    """Return for both ends of each link that the sums use which part of the vector the link carries
    from the first end to the second, and which part back."""
    nodes = policy.view.nodes
    if not policy.ways:
        return {ends: (1.0, 1.0) for ends in zip(nodes, policy.parents, strict=True) if ends[1]}
    return _parts_by_ways(nodes, policy.ways)


@lru_cache(4)  # it is asked for in each heartbeat, and takes milliseconds for 128 ways
def _parts_by_ways(
    nodes: tuple[bytes, ...], ways: tuple[Way, ...]
) -> Mapping[tuple[bytes, bytes], tuple[float, float]]:
    whole = sum(way.weight for way in ways)
    found: dict[tuple[bytes, bytes], tuple[float, float]] = {}
    for way in ways:
        hops = [(k, parent) for k, parent in enumerate(way.up) if parent != k]
        hops += [(parent, k) for k, parent in enumerate(way.down) if parent != k]
        for start, end in hops:
            ends = (nodes[min(start, end)], nodes[max(start, end)])
            there, back = found.get(ends, (0.0, 0.0))
            part = way.weight / whole
            found[ends] = (there + part, back) if start < end else (there, back + part)
    return found


def _best_rate(standing: Standing, node: bytes) -> float:
    """Return what the best link of a member carries in bytes/s. If even that is slow, the device
    itself is badly connected, and not the other end of the link."""
    rates: dict[bytes, float] = {}  # other end -> rate of the slower direction that is known
    for (a, b), link in standing.measures.links.items():
        if node in (a, b):
            other = b if a == node else a
            rates[other] = min(link.rate, rates.get(other, link.rate))
    return max(rates.values())


# When users are told

# A member is named to the user if the others have waited for it for so many seconds.
LASTS_S = 5.0
# Steps must also take longer by more than this part, since a little waiting is normal.
COSTS = 1 / 3
# The user is told of the same member again after so many seconds, if the others still wait for it.
AGAIN_S = 60.0
# This pause grows by this factor each time, so that a lasting state does not fill the terminal.
AGAIN_MORE = 2.0
# But it never exceeds this.
MOST_AGAIN_S = 1800.0
# The wait counts as over if nobody has waited for so many seconds.
OVER_S = 5.0


class Telling:
    """Decides when a user is told whom the members wait for: once it lasts, again after growing
    pauses, and when it is over."""

    def __init__(self) -> None:
        self._since: float | None = None  # since when `_what` has not changed
        self._what: tuple[Cause, bytes] | None = None  # what is waited for at present
        self._told: tuple[Cause, bytes] | None = None  # what the user was told of last
        self._again_at = 0.0
        self._again_s = AGAIN_S
        self._quiet_since: float | None = None  # since when nobody waits for `_told`

    def look(self, now: float, waiting: Waiting | None) -> bool:
        """Return whether to tell the user of `waiting` now."""
        what = (waiting.cause, waiting.node) if waiting is not None else None
        if what != self._what:
            self._what, self._since = what, now
        if waiting is None or self._since is None or not _costs(waiting):
            return False
        lasted = waiting.seconds if not waiting.step_s else now - self._since
        if lasted < LASTS_S or (what == self._told and now < self._again_at):
            return False
        again = what == self._told
        self._again_s = min(MOST_AGAIN_S, AGAIN_MORE * self._again_s) if again else AGAIN_S
        self._told, self._again_at, self._quiet_since = what, now + self._again_s, None
        return True

    def over(self, now: float, waiting: Waiting | None) -> bytes | None:
        """Return the node that the user was told of, if nobody waits for it any more, else None."""
        if self._told is None:
            return None
        if waiting is not None and (waiting.cause, waiting.node) == self._told and _costs(waiting):
            self._quiet_since = None
            return None
        self._quiet_since = now if self._quiet_since is None else self._quiet_since
        if now - self._quiet_since < OVER_S:
            return None
        _, node = self._told
        self._told = self._quiet_since = None
        return node


def _costs(waiting: Waiting) -> bool:
    """Whether `waiting` costs the others enough to be worth a line in the terminal."""
    return not waiting.step_s or waiting.seconds > COSTS * waiting.step_s
