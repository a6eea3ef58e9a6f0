"""Ways: which are valid, which chunk takes which, and that sums along many of them are whole."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols import limits
from protocols.cluster.ways import Way, turns, ways_fault
from protocols.errors import RemoteProtocolError
from protocols.member.round_specs import Lanes
from protocols.rounds.round import Add, Complete, Finish, Lane, Round, RoundSpec, SendDown, SendUp
from tests.simulation.ways import WaysPlanner
from tests.unit.protocols.clusters import cluster, enter, go_on, policy_of, settle

from .records import LINEAGE, node, star_policy, view_of, ways_over

if TYPE_CHECKING:
    import random

    from protocols.cluster.view import View
    from protocols.rounds.round import RoundEffect

Frame = tuple[bytes, bytes, str, int, str]  # from, to, "up" or "down", chunk, value
SQUARE = view_of(4, [(1, 2), (2, 3), (3, 4), (4, 1)])
ALONG = bytes([0, 0, 1, 0])  # members 1 and 3 send to 0, member 2 to 1


def test_ways_along_links_are_taken() -> None:
    other = bytes([0, 0, 3, 0])
    assert ways_fault(SQUARE, ()) == ""
    assert ways_fault(SQUARE, (Way(ALONG, ALONG, 1), Way(ALONG, other, 127))) == ""


@pytest.mark.parametrize(
    ("way", "why"),
    [
        (Way(ALONG, ALONG, 0), "way 0 carries nothing"),
        (Way(ALONG, ALONG, limits.MAX_WAY_WEIGHT + 1), "too many parts"),
        (Way(ALONG[:3], ALONG, 1), "the reduce tree of way 0: it has not one parent"),
        (Way(ALONG, ALONG + b"\0", 1), "the spread tree of way 0: it has not one parent"),
        (Way(bytes([0, 1, 1, 0]), ALONG, 1), "2 roots"),
        (Way(bytes([1, 2, 3, 0]), ALONG, 1), "0 roots"),
        (Way(bytes([0, 0, 0, 0]), ALONG, 1), "n3 has no link to its parent"),
        (Way(bytes([0, 0, 9, 0]), ALONG, 1), "n3 has no link to its parent"),
        (Way(bytes([0, 2, 1, 0]), ALONG, 1), "a cycle"),
        (Way(ALONG, bytes([1, 1, 1, 0]), 1), "different roots"),
    ],
)
def test_what_is_no_way_is_refused(way: Way, why: str) -> None:
    assert why in ways_fault(SQUARE, (way,))
    policy = star_policy(4)
    with pytest.raises(ValueError, match=why):
        replace(policy, view=SQUARE, parents=(b"", node(1), node(2), node(1)), ways=(way,))


@given(st.lists(st.integers(1, 20), min_size=1, max_size=12))
def test_chunks_take_ways_in_turn_as_often_and_as_evenly_as_weights_say(
    weights: list[int],
) -> None:
    found, total = turns(weights), sum(weights)
    assert len(found) == total
    for end in range(1, total + 1):
        for way, weight in enumerate(weights):
            assert abs(found[:end].count(way) - end * weight / total) < len(weights)
    assert [found.count(way) for way in range(len(weights))] == weights


class Place:
    """One member in a round over several ways, with texts where the memory would be."""

    def __init__(self, name: bytes, spec: RoundSpec) -> None:
        self.name = name
        self.round = Round(spec)
        self.sums: dict[int, str] = {}
        self.inbox: dict[tuple[bytes, int], str] = {}
        self.ready = 0
        self.most_kept = 0  # sums of one neighbour that were here and not used, at most

    def perform(self, effects: list[RoundEffect]) -> list[Frame]:
        sent: list[Frame] = []
        for effect in effects:
            match effect:
                case Add(chunk, child, first):
                    base = self.own(chunk) if first else self.sums[chunk]
                    self.sums[chunk] = f"({base}+{self.inbox.pop((child, chunk))})"
                case SendUp(chunk, own, parent):
                    value = self.own(chunk) if own else self.sums[chunk]
                    sent.append((self.name, parent, "up", chunk, value))
                case Finish(chunk, own):
                    self.sums[chunk] = self.own(chunk) if own else self.sums[chunk]
                case SendDown(chunk, to):
                    sent += [(self.name, n, "down", chunk, self.sums[chunk]) for n in to]
                case Complete():
                    self.ready += 1
        return sent

    def own(self, chunk: int) -> str:
        return f"{self.name[-1]}.{chunk}"

    def take(self, frame: Frame) -> list[Frame]:
        sender, _, kind, chunk, value = frame
        if kind == "down":
            self.sums[chunk] = value
            return self.perform(self.round.down(sender, chunk))
        self.inbox[sender, chunk] = value
        sent = self.perform(self.round.up(sender, chunk))
        kept = [child for child, _ in self.inbox]
        self.most_kept = max([self.most_kept, *(kept.count(child) for child in kept)])
        return sent


def expected(parents: bytes, at: int, names: tuple[bytes, ...], chunk: int) -> str:
    """Return the sum of the members below `at`, added in the order that the tree says."""
    total = f"{names[at][-1]}.{chunk}"
    for child, parent in enumerate(parents):
        if parent == at != child:
            total = f"({total}+{expected(parents, child, names, chunk)})"
    return total


@given(st.data(), st.integers(2, 6), st.integers(1, 20), st.integers(1, 6))
def test_sums_along_many_ways_are_whole_and_no_neighbour_is_flooded(
    data: st.DataObject, count: int, chunks: int, window: int
) -> None:
    """Frames of one neighbour arrive in order, as over one connection, and otherwise in any."""
    view: View = view_of(count, [(a, b) for b in range(1, count + 1) for a in range(1, b)])
    ways = tuple(data.draw(st.lists(ways_over(view), min_size=1, max_size=4)))
    policy = replace(star_policy(count), view=view, ways=ways)
    chance: random.Random = data.draw(st.randoms(use_true_random=False))
    places = {}
    for name in view.nodes:
        tree, (lanes, turn) = policy.tree, Lanes().of(policy, name)
        where = (tree.parent(name), tree.children(name), ())
        tags = (LINEAGE, 1, 2, 3, 4)
        spec = RoundSpec(*tags, *where, chunks, True, lanes=lanes, turns=turn, window=window)
        places[name] = Place(name, spec)
    waiting = list(view.nodes)
    lines: dict[tuple[bytes, bytes], list[Frame]] = {}
    while waiting or lines:
        k = chance.randrange(len(waiting) + len(lines))
        if k < len(waiting):
            place = places[waiting.pop(k)]
            sent = place.perform(place.round.contribute())
        else:
            ends = list(lines)[k - len(waiting)]
            frame = lines[ends].pop(0)
            if not lines[ends]:
                del lines[ends]
            assert places[frame[1]].round.owes(frame[0])
            sent = places[frame[1]].take(frame)
        for frame in sent:
            lines.setdefault((frame[0], frame[1]), []).append(frame)
    order = turns([way.weight for way in ways])
    for place in places.values():
        assert place.ready == 1
        assert place.most_kept <= window + 1, "the word is outside of the window"
        assert not place.inbox
        assert not any(place.round.owes(name) for name in view.nodes)
        for chunk in range(chunks):
            up = ways[order[(chunk - 1) % len(order)]].up if chunk else None
            if up is None:
                root, up = 0, bytes([0] * count)
            else:
                root = next(k for k, parent in enumerate(up) if parent == k)
            assert place.sums[chunk] == expected(up, root, view.nodes, chunk)


def test_each_chunk_is_taken_from_those_on_its_way_alone() -> None:
    above, below, other = node(1), node(2), node(3)
    lane = Lane(other, (above,), below, (above,))
    spec = RoundSpec(LINEAGE, 1, 2, 3, 4, above, (below,), (), 2, True, lanes=(lane,), turns=(0,))
    place = Round(spec)
    place.contribute()
    for chunk, child in ((0, above), (0, other), (1, below), (1, other), (2, above)):
        with pytest.raises(RemoteProtocolError, match="from no child"):
            place.up(child, chunk)
    assert place.up(above, 1) == [Add(1, above, True), SendUp(1, False, other)]
    for chunk, sender in ((0, below), (1, other), (1, above), (2, below)):
        with pytest.raises(RemoteProtocolError, match="does not send it"):
            place.down(sender, chunk)
    assert place.down(below, 1) == [SendDown(1, (above,))]


def test_what_is_beyond_the_window_is_sent_when_earlier_chunks_are_reduced() -> None:
    above = node(1)
    lane = Lane(above, (), above, ())
    tags = (LINEAGE, 1, 2, 3, 4, above, (), (), 5, True)
    place = Round(RoundSpec(*tags, lanes=(lane,), turns=(0,), window=2))
    sends = [SendUp(chunk, True, above) for chunk in range(5)]
    assert place.contribute() == sends[:3], "the word, and two data chunks"
    with pytest.raises(RemoteProtocolError, match="before its parts were sent"):
        place.down(above, 3)
    assert place.down(above, 1) == [sends[3]]
    assert place.down(above, 0) == []
    assert place.down(above, 3) == []
    assert place.down(above, 2) == [sends[4]]
    assert place.down(above, 4) == [Complete()]


@pytest.mark.parametrize("seed", range(3))
def test_a_cluster_trains_along_ways_while_devices_come_and_go(seed: int) -> None:
    world, hosts = cluster(seed, ways=WaysPlanner(seed))
    fourth = world.join(8, hosts[0])
    enter(world, fourth)
    settle(world)
    fifth = world.join(9, hosts[1])
    enter(world, fifth)
    world.run(lambda: bool(policy_of(fifth).ways))
    go_on(world)
    world.vanish(fourth)
    go_on(world)
    assert policy_of(fifth).view.member(fourth.me.node) is None
