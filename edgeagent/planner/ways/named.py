"""The shapes that a user can ask for by name, so that they can be compared along one data plane."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from edgeagent.planner.ways.auxiliary import fapt_with_auxiliary
from edgeagent.planner.ways.choice import plan_ways
from edgeagent.planner.ways.fapt import fapt
from edgeagent.planner.ways.ring import ring
from edgeagent.planner.ways.shaped import Shaped
from edgeagent.planner.ways.shapes import kary, mst, star
from edgeagent.planner.ways.single import one

if TYPE_CHECKING:
    from edgeagent.planner.ways.network import Network


def _packed(network: Network, payload_bytes: float, frame_bytes: float) -> Shaped:
    plan = plan_ways(network, payload_bytes, frame_bytes)
    return Shaped(plan.ways, plan.reason)


SHAPES: dict[str, Callable[[Network, float, float], Shaped]] = {
    "packed": _packed,
    "one": one,
    "star": lambda network, *_: star(network),
    "kary": lambda network, *_: kary(network),
    "mst": lambda network, *_: mst(network),
    "ring": lambda network, *_: ring(network),
    "fapt": lambda network, *_: fapt(network),
    "fapt-aux": lambda network, *_: fapt_with_auxiliary(network),
}


def named(name: str, network: Network, payload_bytes: float, frame_bytes: float = 0.0) -> Shaped:
    """Return the ways of the shape called `name`, or why the links have no such shape.

    Raises ValueError if no shape has that name, or if the links do not connect all members.
    """
    if name not in SHAPES:
        raise ValueError(f"no trees are called {name!r}; there are {', '.join(SHAPES)}")
    network.check_connected()
    return SHAPES[name](network, payload_bytes, frame_bytes)
