"""Which ways a cluster uses: one shallow tree or many ways, as the predicted time of a round says.

Delays count once a round and rates with every byte, so small vectors over long links go along one
shallow tree, and large ones along ways that load all links.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeagent.planner.measures import in_seconds
from edgeagent.planner.trees import LEAST_GAIN, significant
from edgeagent.planner.ways.division import turned, within
from edgeagent.planner.ways.loads import floor_s, peak, predicted_s
from edgeagent.planner.ways.packed import packed
from edgeagent.planner.ways.single import one
from edgeagent.planner.ways.way import Way, way_fault

if TYPE_CHECKING:
    from edgeagent.planner.ways.division import Division
    from edgeagent.planner.ways.network import Network

DEPTHS = (1, 2, 3)  # the limits of hops tried beside none


@dataclass(frozen=True, slots=True)
class WaysPlan:
    """Ways, the modelled time of a round in seconds, the time that no ways go below, and why it is
    these ways."""

    ways: tuple[Way, ...]
    predicted_s: float
    floor_s: float
    reason: str


def plan_ways(
    network: Network,
    payload_bytes: float,
    frame_bytes: float = 0.0,
    in_force: tuple[Way, ...] | None = None,
    division: Division | None = None,
) -> WaysPlan:
    """Return the ways with the least predicted time: one tree, or ways packed with at most 1, 2, 3
    or any number of hops.

    With a `division` of the optimizer one tree is one that has all who own something as its root in
    turn.

    The ways in force stay if they fit the network and the best would not save 15 % of their time.
    Raises ValueError if the links do not connect all members.
    """
    network.check_connected()

    copies = division.copies if division is not None else None

    def time(ways: tuple[Way, ...]) -> float:
        return predicted_s(network, ways, payload_bytes, frame_bytes, copies)

    found: list[tuple[str, tuple[Way, ...]]] = []
    tree = one(network, payload_bytes, frame_bytes)
    if tree.ways is not None:
        whole = turned(tree.ways[0].up, division) if division else tree.ways
        found.append((tree.reason, whole))
    any_depth = max(1, network.count - 1)
    depths = [depth for depth in DEPTHS if depth < any_depth]
    for depth, ways in zip(
        (*depths, any_depth), packed(network, (*depths, any_depth), division), strict=True
    ):
        if ways is not None:
            found.append((_many(ways, depth, any_depth), ways))
    times = [time(ways) for _, ways in found]
    best = min(range(len(found)), key=lambda k: times[k])
    head, chosen = found[best]
    stay = in_force is not None and fits(network, in_force) and within(in_force, division)
    present = in_force if stay else None
    if present is not None and not significant(time(present), times[best]):
        head, chosen = f"ways in force kept, others would not save {LEAST_GAIN:.0%}", present
    by_rates = payload_bytes * peak(network, chosen, copies)
    reason = (
        f"{head}; about {in_seconds(time(chosen))} a round, {in_seconds(by_rates)} of it by rates"
        " alone"
    )
    if tree.ways is not None and chosen not in (found[0][1], in_force):
        reason += f"; one tree would take {in_seconds(times[0])}"
    return WaysPlan(chosen, time(chosen), floor_s(network, payload_bytes), reason)


def fits(network: Network, ways: tuple[Way, ...]) -> bool:
    """Whether there are ways and all of them lead along the network's links to all members."""
    return bool(ways) and all(
        len(way.up) == network.count and way_fault(way, network.rates) is None for way in ways
    )


def _many(ways: tuple[Way, ...], depth: int, any_depth: int) -> str:
    hops = "however many hops" if depth == any_depth else f"at most {depth} hop{'s' * (depth > 1)}"
    return f"{len(ways)} packed way{'s' * (len(ways) > 1)} with {hops} to a root"
