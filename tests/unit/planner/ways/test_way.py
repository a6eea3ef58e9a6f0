"""What a way is, what is no way, and when a network is none."""

from __future__ import annotations

import math

import pytest

from edgeagent.planner.ways.network import DIVIDED, Network
from edgeagent.planner.ways.way import Way, merged, way_fault
from tests.unit.planner.ways.overlays import all_pairs

LINE = [(0, 1), (1, 0), (1, 2), (2, 1)]


def test_root_is_where_sums_are_complete() -> None:
    assert Way((1, -1, 1), (1, -1, 1)).root == 1


@pytest.mark.parametrize(
    ("way", "words"),
    [
        (Way((1, -1, 1), (1, -1, 1), 0), "at least one part, not 0"),
        (Way((1, -1, 1), (1, -1)), "3 members on the reduce tree, 2 on the spread tree"),
        (Way((1, -1, -1), (1, -1, 1)), "the reduce tree has 2 roots"),
        (Way((1, -1, 1), (1, 0, 1)), "the spread tree has 0 roots"),
        (Way((1, -1, 0), (1, -1, 1)), "the reduce tree sends from 2 to 0 without a link"),
        (Way((1, -1, 1), (1, -1, 0)), "the spread tree sends from 0 to 2 without a link"),
        (Way((-1, 2, 1), (-1, 0, 1)), "the reduce tree has a cycle"),
        (Way((1, -1, 1), (-1, 0, 1)), "sums are complete at 1, but spread from 0"),
    ],
)
def test_faults_are_named(way: Way, words: str) -> None:
    assert words in str(way_fault(way, LINE))


def test_trees_that_differ_are_no_fault() -> None:
    clique = all_pairs(3).rates
    assert way_fault(Way((-1, 0, 1), (-1, 2, 0)), clique) is None


def test_one_direction_alone_will_not_do() -> None:
    one_way = [(0, 1)]
    assert way_fault(Way((1, -1), (1, -1)), one_way) is not None
    assert way_fault(Way((1, -1), (1, -1)), [*one_way, (1, 0)]) is None


def test_equal_ways_become_one_of_their_weights_sum() -> None:
    a, b = Way((-1, 0), (-1, 0)), Way((1, -1), (1, -1), 3)
    assert merged([a, b, a]) == (Way((-1, 0), (-1, 0), 2), b)


FREE = (math.inf, math.inf)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (({}, {}, (), ()), "at least one member"),
        (({}, {}, FREE, (math.inf,)), "at least one member"),
        (({(0, 2): 1.0}, {}, FREE, FREE), "joins no two of 2 members"),
        (({(-1, 1): 1.0}, {}, FREE, FREE), "joins no two of 2 members"),
        (({(1, 1): 1.0}, {}, FREE, FREE), "joins no two of 2 members"),
        (({(0, 1): 0.0}, {}, FREE, FREE), "not positive"),
        (({(0, 1): math.nan}, {}, FREE, FREE), "not positive"),
        (({(0, 1): 1.0}, {(0, 1): -1.0}, FREE, FREE), "no time"),
        (({(0, 1): 1.0}, {}, (0.0, 1.0), FREE), "limit is 0.0"),
    ],
)
def test_what_is_no_network(
    network: tuple[
        dict[tuple[int, int], float],
        dict[tuple[int, int], float],
        tuple[float, ...],
        tuple[float, ...],
    ],
    words: str,
) -> None:
    with pytest.raises(ValueError, match=words):
        Network(*network)


def test_divided_members_are_named_so() -> None:
    apart = Network({(0, 1): 1.0}, {}, FREE, FREE)
    assert not apart.connected
    with pytest.raises(ValueError, match=DIVIDED):
        apart.check_connected()
    assert Network({}, {}, (1.0,), (1.0,)).connected


def test_hops_count_links() -> None:
    line = Network(dict.fromkeys(LINE, 1.0), {}, (1.0,) * 3, (1.0,) * 3)
    assert line.hops.tolist() == [[0, 1, 2], [1, 0, 1], [2, 1, 0]]


def test_part_of_a_network_keeps_its_values() -> None:
    whole = Network({(0, 2): 5.0, (2, 0): 6.0, (0, 1): 7.0}, {(0, 2): 0.1}, (1, 2, 3), (4, 5, 6))
    assert whole.part([2, 0]) == Network({(1, 0): 5.0, (0, 1): 6.0}, {(1, 0): 0.1}, (3, 1), (6, 4))
    named = Network({}, {}, FREE, FREE, ("ann", "bob"))
    assert named.part([1]).name(0) == "bob"
    assert whole.name(1) == "member 1"
