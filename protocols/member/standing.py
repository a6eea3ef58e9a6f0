"""Whether this member costs the others more than it gives, so that it had better stand by.

Each member judges only itself, from the measurements that all members flood, so that no message is
needed and nobody is put out by another one. A member that goes asks to be let go like any other
that leaves; the next policy without it makes up for its work.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from protocols.cluster import standby
from protocols.cluster.stripes import orphans, renumbered
from protocols.cluster.view import is_quorum

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.cluster.standby import Costly
    from protocols.cluster.view import View
    from protocols.member.context import Context
    from protocols.member.departure import Departure
    from protocols.network.measures import Measures, Times
    from protocols.network.monitor import Monitor


class Standing:
    """The part of one node that judges whether it is worth its place."""

    def __init__(
        self,
        context: Context,
        monitor: Monitor,
        departure: Departure,
        unheard: Callable[[], tuple[bytes, ...]],
    ) -> None:
        """`unheard()`: the members that are out of reach."""
        self._context = context
        self._monitor = monitor
        self._departure = departure
        self._unheard = unheard
        self._slow_since: float | None = None

    def look(self, now: float) -> None:
        """Judge anew, since something was measured; ask to be let go if this node was too slow for
        long enough."""
        if self._is_not_needed:
            if not self._context.departs:
                self._departure.stand_by(now, standby.WANTED, at_once=False)
            return
        found = self._found(now)
        if found is None:
            self._slow_since = None
            self._departure.stay()
            return
        self._slow_since = now if self._slow_since is None else self._slow_since
        if self._context.departs or now - self._slow_since < standby.PATIENCE_SECONDS:
            return
        costly, rate = found
        policy = self._context.policy
        nodes = policy.view.nodes if policy is not None else ()
        gone = (*costly.left_out, *self._unheard())
        others = [n for n in nodes if n not in gone]
        reason = standby.reason(costly.step_s, costly.without_s, rate)
        stripes = policy.stripes if policy is not None else ()
        keep_all = not orphans(renumbered(stripes, nodes, others))
        self._departure.stand_by(now, reason, at_once=keep_all and is_quorum(nodes, others))

    @property
    def _is_not_needed(self) -> bool:
        """Whether this member is to follow from outside, and there are others by now."""
        context, policy = self._context, self._context.policy
        here = policy is not None and context.is_member
        return context.config.follows and here and len(context.near) >= standby.LEAST_OTHERS

    def _found(self, now: float) -> tuple[Costly, float] | None:
        """Return what shows that this node had better stand by, and the rate of its fastest link in
        bytes/s; None if it is worth its place, or if that is not known."""
        context, policy = self._context, self._context.policy
        if not context.config.stands_by or policy is None or not context.is_member:
            return None
        view = policy.view
        if len(view.nodes) <= standby.LEAST_OTHERS:
            return None
        measures = self._monitor.measures
        rate = _best_rate(view, measures, context.node)
        if rate is None or not _is_slow(view, measures, context.node, rate):
            return None
        planner, micro_batches = context.planner, context.config.micro_batches
        planned_s = planner.step_s(view, micro_batches)
        seen_s = context.pace.longest_s(now)
        if planned_s is None or not seen_s:
            return None
        times = self._times(view)
        found = planner.costly(view, micro_batches, times, min(planned_s, seen_s))
        if found is None or context.node not in found.left_out:
            return None
        if len(view.nodes) - len(found.left_out) < standby.LEAST_OTHERS:
            return None
        return found, rate

    def _times(self, view: View) -> dict[bytes, Times]:
        known = {node: self._monitor.times(node) for node in view.nodes}
        return {node: times for node, times in known.items() if times is not None}


def _best_rate(view: View, measures: Measures, node: bytes) -> float | None:
    """Return the rate of the fastest link of `node` in its slower direction, in bytes/s; None if no
    link is known in both directions."""
    best: float | None = None
    for near in view.neighbours(node):
        there, back = measures.links.get((node, near)), measures.links.get((near, node))
        if there is not None and back is not None:
            best = max(best or 0.0, min(there.rate, back.rate))
    return best


def _is_slow(view: View, measures: Measures, node: bytes, rate: float) -> bool:
    """Whether the links of `node` are so much slower than those of most others that leaving it out
    may be worth it. Otherwise the planner need not be asked, which would take time."""
    others = [_best_rate(view, measures, n) for n in view.nodes if n != node]
    known = [r for r in others if r is not None]
    return len(known) >= standby.LEAST_OTHERS and rate < (1 - standby.SAVES) * median(known)
