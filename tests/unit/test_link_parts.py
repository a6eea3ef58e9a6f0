"""Which part of the gradients crosses each link, as the status tells it."""

from __future__ import annotations

from dataclasses import replace

from edgeagent.local.status import _parts
from protocols.cluster.view import edge
from protocols.cluster.ways import Way
from tests.unit.protocols.records import node, star_policy

ONE, TWO, THREE = (node(k) for k in range(1, 4))


def test_all_of_them_cross_the_links_of_the_tree() -> None:
    policy = replace(star_policy(3), parents=(b"", ONE, TWO))
    assert _parts(policy) == {edge(ONE, TWO): 1.0, edge(TWO, THREE): 1.0}


def test_with_several_ways_each_link_has_those_that_use_it() -> None:
    chain = Way(bytes([0, 0, 1]), bytes([0, 0, 1]), 3)
    # Sums come back to member 3 along another link than that by which it sends its own.
    other = Way(bytes([0, 0, 1]), bytes([0, 0, 0]), 1)
    found = _parts(replace(star_policy(3), ways=(chain, other)))
    assert found == {edge(ONE, TWO): 1.0, edge(TWO, THREE): 1.0, edge(ONE, THREE): 0.25}
