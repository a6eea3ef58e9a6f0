"""The ways of a cluster: from a view and what is measured of it to ways as a policy holds them.

The planner's modules count members and give the root the parent -1; a policy has one byte for each
member, and at the root its own number. Nothing is planned before something is measured, since ways
over unknown links would be no better than the tree. To search for ways takes long; to choose
between those in force and those found does not.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from edgeagent.planner.measures import Filled
from edgeagent.planner.trees import significant
from edgeagent.planner.ways.choice import fits, plan_ways
from edgeagent.planner.ways.division import division_of, turned, within
from edgeagent.planner.ways.loads import floor_s, predicted_s
from edgeagent.planner.ways.named import named
from edgeagent.planner.ways.network import Network
from edgeagent.planner.ways.repair import NEW, repair
from edgeagent.planner.ways.way import ROOT, Way
from protocols.cluster.ways import Way as PolicyWay
from protocols.scheduler.planning import Found

if TYPE_CHECKING:
    from edgeagent.planner.ways.division import Division
    from protocols.cluster.policy import Policy
    from protocols.cluster.view import View
    from protocols.network.measures import Measures

ONE = "one"  # no ways: every chunk takes the policy's tree
PACKED = "packed"
KEPT = "ways in force kept, others would not save 15%"  # `trees.LEAST_GAIN`
RATE_STEP = 1.05  # rates are rounded to powers of this, so that their noise makes no other plan


def search_ways(
    policy: Policy,
    measures: Measures,
    payload_bytes: float,
    chunk_bytes: float,
    name: str,
    before: Found | None = None,
) -> Found:
    """Return the ways of the shape called `name` over the links of `policy`, and why these.

    There are none if one tree is as good, if nothing is measured yet, or if the links have no such
    shape. If the policy divides the optimizer, packed ways lead to members that can own what comes
    along them, and there are some even along one tree.

    What was found `before` is returned again if it and the ways of `policy` still fit, and these
    are as near to the floor as it was, and no member holds more or less of the optimizer: then too
    little has changed for others to be better.
    """
    view = policy.view
    if name == ONE or len(view.nodes) < 2 or not measures.links:
        return Found((), "")
    network = network_of(view, measures)
    sizes = (payload_bytes, chunk_bytes)
    tree = (_tree_way(view, policy.parents),)
    in_force = tuple(_counted(way) for way in policy.ways) or tree
    known = tuple(_counted(way) for way in before.ways) if before is not None else ()
    division = division_of(policy, view)
    room = division.most if division is not None else ()
    still_fit = fits(network, in_force) and (not known or fits(network, known))
    if before is not None and still_fit and before.room == room:
        now = _over_floor(network, in_force, *sizes, division)
        if not significant(now, before.over_floor):
            return before
    links = tuple((ends, rate, network.delays[ends]) for ends, rate in network.rates.items())
    limits = (network.up_limits, network.down_limits)
    ways, why = _shape(name, links, limits, network.names, payload_bytes, chunk_bytes, division)
    over_floor = _over_floor(network, ways or tree, *sizes, division)
    is_tree = ways is not None and len(ways) == 1 and ways[0].up == ways[0].down
    if ways is None or (name == PACKED and is_tree and division is None):
        return Found((), why, over_floor, room)  # a policy has a tree in any case
    return Found(_for_policy(ways), why, over_floor, room)


def _over_floor(
    network: Network,
    ways: tuple[Way, ...],
    payload_bytes: float,
    chunk_bytes: float,
    division: Division | None,
) -> float:
    """Return the predicted time of a round as a multiple of the time that no ways go below."""
    copies = division.copies if division is not None else None
    taken = predicted_s(network, ways, payload_bytes, chunk_bytes, copies)
    return taken / floor_s(network, payload_bytes)


def choose_ways(
    view: View,
    measures: Measures,
    payload_bytes: float,
    chunk_bytes: float,
    name: str,
    parents: tuple[bytes, ...],
    present: Policy | None,
    found: Found | None,
) -> tuple[tuple[PolicyWay, ...], str]:
    """Return the ways of a policy for `view` whose tree is `parents`, quickly, and why these.

    The ways of `present` stay, repaired if links or members have changed, unless what was `found`
    saves 15 % of a round, or, with a divided optimizer, leads to members that can own it where
    those of `present` do not. Shapes other than packed ways were asked for to be compared, so they
    take the place of a tree that is faster, too.
    """
    if name == ONE or len(view.nodes) < 2:
        return (), ""
    network = network_of(view, measures)
    kept = _kept(view, network, present)
    new = tuple(_counted(way) for way in found.ways) if found is not None else ()
    division = division_of(present, view) if present is not None else None
    if found is None or (new and not fits(network, new)):
        better = False  # nothing is found for these members and links yet
    elif not kept and (name != PACKED or division is not None):
        better = within(new, division)
    else:
        tree = (_tree_way(view, parents),)
        copies = division.copies if division is not None else None
        times = [
            predicted_s(network, ways or tree, payload_bytes, chunk_bytes, copies)
            for ways in (kept, new)
        ]
        able = [within(ways, division) for ways in (kept, new)]
        better = significant(*times) if able[0] == able[1] else able[1]
    if found is not None and (better or not kept):
        return (found.ways if better else ()), found.reason if better or not new else ""
    return _for_policy(kept), f"{len(kept)} {KEPT}" if kept else ""


def ways_s(
    view: View,
    measures: Measures,
    payload_bytes: float,
    chunk_bytes: float,
    ways: tuple[PolicyWay, ...],
    present: Policy | None,
) -> float:
    """Return the modelled time in seconds of a round along `ways`; `present` as for
    `choose_ways`."""
    division = division_of(present, view) if present is not None else None
    copies = division.copies if division is not None else None
    counted = tuple(_counted(way) for way in ways)
    return predicted_s(network_of(view, measures), counted, payload_bytes, chunk_bytes, copies)


def _kept(view: View, network: Network, present: Policy | None) -> tuple[Way, ...]:
    """Return the ways of `present` as far as the links of `view` allow; none if it has none."""
    if present is None or not present.ways:
        return ()
    ways = tuple(_counted(way) for way in present.ways)
    before = {node: k for k, node in enumerate(present.view.nodes)}
    if present.view.nodes == view.nodes and fits(network, ways):
        return ways
    return repair(ways, [before.get(node, NEW) for node in view.nodes], network)


@lru_cache(8)
def _shape(
    name: str,
    links: tuple[tuple[tuple[int, int], float, float], ...],
    limits: tuple[tuple[float, ...], tuple[float, ...]],
    names: tuple[str, ...],
    payload_bytes: float,
    chunk_bytes: float,
    division: Division | None,
) -> tuple[tuple[Way, ...] | None, str]:
    """Return the ways called `name`, None if the links have no such shape; and why.

    `links` has both ends, bytes/s and seconds of each direction, `limits` what each member can send
    and receive, in bytes/s. The result is kept, because to
    pack ways takes 0.2 s of the processor for 12 members, and most searches have equal numbers,
    since these are rounded.
    """
    rates = {ends: rate for ends, rate, _ in links}
    network = Network(rates, {ends: delay for ends, _, delay in links}, *limits, names)
    if name != PACKED:
        shaped = named(name, network, payload_bytes, chunk_bytes)
        if shaped.ways is not None and len(shaped.ways) == 1 and division is not None:
            return turned(shaped.ways[0].up, division), shaped.reason
        return shaped.ways, shaped.reason
    plan = plan_ways(network, payload_bytes, chunk_bytes, division=division)
    return plan.ways, plan.reason


def network_of(view: View, measures: Measures) -> Network:
    """Return the links of `view` with their rates and delays, typical ones where not measured, and
    what limits its members, as far as that is known. All of it is rounded."""
    filled, nodes = Filled(measures), view.nodes
    numbers = {node: k for k, node in enumerate(nodes)}
    rates: dict[tuple[int, int], float] = {}
    delays: dict[tuple[int, int], float] = {}
    for e in view.edges:
        for a, b in ((e.low, e.high), (e.high, e.low)):
            rates[numbers[a], numbers[b]] = _rounded(filled.rate(a, b))
            milliseconds = round(1000 * filled.delay_s(a, b))
            delays[numbers[a], numbers[b]] = milliseconds / 1000
    up, down = (
        tuple(_rounded(known[node]) if node in known else math.inf for node in nodes)
        for known in (measures.up, measures.down)
    )
    return Network(rates, delays, up, down, tuple(m.name for m in view.members))


def _rounded(rate: float) -> float:
    steps = round(math.log(rate, RATE_STEP))
    return float(RATE_STEP**steps)


def _counted(way: PolicyWay) -> Way:
    up, down = (
        tuple(ROOT if parent == k else parent for k, parent in enumerate(parents))
        for parents in (way.up, way.down)
    )
    return Way(up, down, way.weight)


def _tree_way(view: View, parents: tuple[bytes, ...]) -> Way:
    """Return the tree of a policy as a way."""
    nodes = view.nodes
    up = tuple(nodes.index(parent) if parent else ROOT for parent in parents)
    return Way(up, up, 1)


def _for_policy(ways: tuple[Way, ...]) -> tuple[PolicyWay, ...]:
    """Return the ways as a policy holds them."""

    def parents(tree: tuple[int, ...]) -> bytes:
        return bytes(k if parent == ROOT else parent for k, parent in enumerate(tree))

    return tuple(PolicyWay(parents(way.up), parents(way.down), way.weight) for way in ways)
