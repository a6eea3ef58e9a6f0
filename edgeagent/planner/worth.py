"""Whether a device costs more than it gives, and whether all devices together are slower than one.

What a step takes now is measured. What it would take without some members is estimated as the plan
for the others. Advice is given only if a step would become at least a third shorter, because the
estimate is not more precise than that. Devices are left out in the order of their links, the
slowest first: a device that computes slowly only gets less to compute, but a slow link slows down
every round, because what a round sums travels over every link of the tree. If the job has a least
share, a device that computes slowly may slow down every round, too, so it is also tried to leave
out those that compute the slowest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeagent.planner.shares import STEPS_OF_ALL, ShareRule, measured_shares
from edgeagent.planner.trees import plan_tree
from edgeagent.planner.ways.loads import floor_s
from edgeagent.planner.ways.of_view import network_of
from protocols.cluster.standby import SAVES, Costly
from protocols.cluster.view import make_view

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from protocols.cluster.view import View
    from protocols.network.measures import Measures, Times

NEARLY = 1.5  # a step up to this factor longer is preferred if more devices take part in it
MOST_LEFT_OUT = 8  # devices left out at once in what is tried


def worth(
    view: View,
    micro_batches: int,
    measures: Measures,
    times: Mapping[bytes, Times],
    payload_bytes: int,
    *,
    step_s: float,
    chunk_bytes: int = 0,
    rule: ShareRule = STEPS_OF_ALL,
    stay: int = 1,
) -> Costly | None:
    """Return which members cost more than they give, None if none is known to.

    `step_s` is what a step takes at present in seconds, 0 if that is not known. Of several ways to
    leave members out, and to let at least `stay` go on, the one is returned that leaves out the
    fewest and has nearly the shortest step. `rule` as for `measured_shares`. A member whose speed
    is not known, for example because it pauses, counts as the median of the others.
    """
    if len(view.nodes) < 2 or not times or step_s <= 0:
        return None
    compute_s = max(t.compute_s for t in times.values())
    summing_s = compute_s + min(t.sync_s for t in times.values())
    other_s = min(max(0.0, step_s - summing_s), compute_s)  # the update and everything else
    orders = [_slowest_links_first(view, measures)]
    if rule.least:
        orders.append(sorted(view.nodes, key=lambda n: (-measures.speeds.get(n, 0.0), n)))
    most = min(len(view.nodes) - 1, MOST_LEFT_OUT + 1)
    ways = [tuple(order[:count]) for order in orders for count in range(1, most)]
    ways += [tuple(n for n in view.nodes if n != one) for one in view.nodes]
    found: list[tuple[float, tuple[bytes, ...]]] = []
    for left_out in ways:
        if len(view.nodes) - len(left_out) < stay:
            continue
        planned_s = _step_without(
            view, left_out, micro_batches, measures, payload_bytes, chunk_bytes, rule
        )
        if planned_s is not None and planned_s + other_s <= step_s * (1 - SAVES):
            found.append((planned_s + other_s, left_out))
    if not found:
        return None
    enough_s = NEARLY * min(found)[0]
    without_s, left_out = min((w for w in found if w[0] <= enough_s), key=lambda w: (len(w[1]), w))
    alone = [
        w for w in found if len(w[1]) == len(view.nodes) - 1 and all(n in w[1] for n in left_out)
    ]
    if not alone:
        return Costly(left_out, step_s, without_s)
    alone_s, others = min(alone, key=lambda w: w[0])
    (one,) = (n for n in view.nodes if n not in others)
    return Costly(left_out, step_s, without_s, one, alone_s)


def _slowest_links_first(view: View, measures: Measures) -> list[bytes]:
    """Return the members by the rate of their best link in its slower direction, slowest first."""
    best = dict.fromkeys(view.nodes, 0.0)
    for e in view.edges:
        there, back = measures.links.get((e.low, e.high)), measures.links.get((e.high, e.low))
        if there is not None and back is not None:
            for end in (e.low, e.high):
                best[end] = max(best[end], min(there.rate, back.rate))
    return sorted(best, key=lambda n: (best[n], n))


def _step_without(
    view: View,
    left_out: Sequence[bytes],
    micro_batches: int,
    measures: Measures,
    payload_bytes: int,
    chunk_bytes: int,
    rule: ShareRule,
) -> float | None:
    """Return how many seconds computing and summing would take without `left_out`; None if the
    links do not connect the rest or nothing is known of them."""
    members = [m for m in view.members if m.node not in left_out]
    rest = make_view(view.lineage, view.number, members, view.edges)
    return predicted_step(rest, micro_batches, measures, payload_bytes, chunk_bytes, rule)


def predicted_step(
    view: View,
    micro_batches: int,
    measures: Measures,
    payload_bytes: int,
    chunk_bytes: int,
    rule: ShareRule = STEPS_OF_ALL,
) -> float | None:
    """Return how many seconds computing and summing take in a step of the members of `view`; None
    if its links do not connect them or too little is known. A member whose speed is not known
    counts as the median of the others."""
    split = measured_shares(view.nodes, micro_batches, (), measures.speeds, None, rule=rule)
    if split.predicted_s is None or len(view.nodes) == 1:
        return split.predicted_s
    try:
        tree = plan_tree(view, measures, payload_bytes, None, chunk_bytes=chunk_bytes)
    except ValueError:  # not connected
        return None
    return None if tree.predicted_s is None else split.predicted_s + tree.predicted_s


def least_step(
    view: View,
    micro_batches: int,
    measures: Measures,
    payload_bytes: int,
    chunk_bytes: int,
    rule: ShareRule = STEPS_OF_ALL,
) -> float | None:
    """Return how many seconds a step of the members of `view` takes at least, if gradients may take
    several ways at once; None as for `predicted_step`."""
    found = predicted_step(view, micro_batches, measures, payload_bytes, chunk_bytes, rule)
    if found is None or len(view.nodes) == 1:
        return found
    computing = measured_shares(view.nodes, micro_batches, (), measures.speeds, None, rule=rule)
    floor = floor_s(network_of(view, measures), payload_bytes)
    return min(found, (computing.predicted_s or 0.0) + floor)
