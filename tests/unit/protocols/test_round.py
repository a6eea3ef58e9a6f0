"""Rounds: whole trees of machines under every order of delivery; sums are written out as text.

The expected sum has the own contribution first, then the children's partial sums in ascending
order. The value of a chunk is the text of its sum, so that a part that is missing, doubled or out
of order shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import LocalProtocolError, RemoteProtocolError
from protocols.rounds.control_word import bits
from protocols.rounds.round import (
    Add,
    Complete,
    Feed,
    Finish,
    Round,
    RoundEffect,
    RoundSpec,
    SendDown,
    SendUp,
    Spread,
    spread_plan,
)

from .records import LINEAGE, node

if TYPE_CHECKING:
    import random

Frame = tuple[bytes, bytes, str, int, str]  # from, to, "up" or "down", chunk, value


def spec_of(
    parent: bytes | None,
    children: tuple[bytes, ...] = (),
    feeds: tuple[Feed, ...] = (),
    *,
    chunks: int = 2,
    contributes: bool = True,
    spread: tuple[Spread, ...] = (),
    feeders: tuple[bytes, ...] = (),
) -> RoundSpec:
    """Return the place of a node in a round."""
    where = (parent, children, feeds)
    tags = (LINEAGE, 1, 2, 3, 4)
    return RoundSpec(*tags, *where, chunks, contributes, spread, feeders=feeders)


@dataclass
class Place:
    """One node of the tree: its machine, and texts where the memory would be."""

    name: bytes
    round: Round
    sums: dict[int, str] = field(default_factory=dict)
    received: dict[tuple[bytes, int], str] = field(default_factory=dict)
    reduced: dict[int, str] = field(default_factory=dict)
    completed: int = 0

    def own(self, chunk: int) -> str:
        return f"{int.from_bytes(self.name, 'big')}.{chunk}"

    def perform(self, effects: list[RoundEffect]) -> list[Frame]:
        """Perform effects of the machine; return the frames that it sends."""
        sent: list[Frame] = []
        for effect in effects:
            match effect:
                case Add(chunk, child, first):
                    base = self.own(chunk) if first else self.sums[chunk]
                    self.sums[chunk] = f"({base}+{self.received.pop((child, chunk))})"
                case SendUp(chunk, own, parent):
                    value = self.own(chunk) if own else self.sums[chunk]
                    sent.append((self.name, parent, "up", chunk, value))
                case Finish(chunk, own):
                    self.reduced[chunk] = self.own(chunk) if own else self.sums[chunk]
                case SendDown(chunk, to):
                    sent += [(self.name, n, "down", chunk, self.reduced[chunk]) for n in to]
                case Complete():
                    assert len(self.reduced) == self.round.spec.chunks
                    self.completed += 1
        return sent

    def take(self, frame: Frame) -> list[Frame]:
        sender, _, way, chunk, value = frame
        if way == "up":
            self.received[sender, chunk] = value
            return self.perform(self.round.up(sender, chunk))
        self.reduced[chunk] = value
        return self.perform(self.round.down(sender, chunk))


def plant(parents: list[int], subscribed: list[list[int]], chunks: int) -> dict[bytes, Place]:
    """Return the places of a tree: node k's parent is `parents[k]`, and node 0 is the root. Behind
    them are the places of subscribers; `subscribed` has for each the nodes that forward to it, the
    first of them the word, and all the data chunks in turns."""
    count = len(parents)
    places = {}
    for k in range(count):
        children = tuple(node(c) for c in range(1, count) if parents[c] == k)
        feeds = tuple(
            Feed(node(count + s), at[0] == k, tuple(n == k for n in at))
            for s, at in enumerate(subscribed)
            if k in at
        )
        above = node(parents[k]) if k else None
        places[node(k)] = Place(node(k), Round(spec_of(above, children, feeds, chunks=chunks)))
    for s, at in enumerate(subscribed):
        feeders = tuple(map(node, at)) if len(at) > 1 else ()
        spec = spec_of(node(at[0]), chunks=chunks, contributes=False, feeders=feeders)
        places[node(count + s)] = Place(node(count + s), Round(spec))
    return places


def sum_below(parents: list[int], at: int, chunk: int) -> str:
    """Return the expected sum of the subtree of node `at`."""
    total = f"{at}.{chunk}"
    for child in range(1, len(parents)):
        if parents[child] == at:
            total = f"({total}+{sum_below(parents, child, chunk)})"
    return total


@st.composite
def trees(draw: st.DrawFn) -> list[int]:
    """`parents[k]` of up to eight nodes; the root is node 0."""
    count = draw(st.integers(1, 8))
    return [0] + [draw(st.integers(0, k - 1)) for k in range(1, count)]


@given(trees(), st.data(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_any_order_of_delivery_gives_the_sum_in_tree_order(
    parents: list[int], data: st.DataObject, chunks: int, chance: random.Random
) -> None:
    members = range(len(parents))
    feeders = st.lists(st.sampled_from(members), min_size=1, max_size=4)
    subscribed = data.draw(st.lists(feeders, max_size=2))
    places = plant(parents, subscribed, chunks)
    waiting = [node(k) for k in members]
    frames: list[Frame] = []
    while waiting or frames:
        k = chance.randrange(len(waiting) + len(frames))
        if k < len(waiting):
            place = places[waiting.pop(k)]
            frames += place.perform(place.round.contribute())
        else:
            frame = frames.pop(k - len(waiting))
            frames += places[frame[1]].take(frame)
    for place in places.values():
        assert place.reduced == {c: sum_below(parents, 0, c) for c in range(chunks)}
        assert place.completed == 1
        assert place.round.complete
        assert not place.received


def test_a_lone_node_is_its_own_sum() -> None:
    alone = Round(spec_of(None))
    expected = [Finish(0, True), Finish(1, True), Complete()]
    assert not alone.complete
    assert alone.contribute() == expected
    assert alone.complete


def test_own_comes_first_then_children_ascending_whatever_came_first() -> None:
    one, two, above = node(1), node(2), node(3)
    middle = Round(spec_of(above, (one, two), chunks=1))
    assert middle.up(two, 0) == []
    assert middle.contribute() == []
    sums = [Add(0, one, True), Add(0, two, False)]
    assert middle.up(one, 0) == [*sums, SendUp(0, False, above)]
    assert middle.down(above, 0) == [SendDown(0, (one, two)), Complete()]


def test_nobody_contributes_twice_and_a_subscriber_not_at_all() -> None:
    member = Round(spec_of(None))
    member.contribute()
    for machine in (member, Round(spec_of(node(1), contributes=False))):
        with pytest.raises(LocalProtocolError, match="twice"):
            machine.contribute()


def test_a_partial_sum_must_come_from_a_child_once() -> None:
    one, two = node(1), node(2)
    root = Round(spec_of(None, (one,)))
    for sender, chunk in ((two, 0), (one, 2), (one, 1 << 31)):
        with pytest.raises(RemoteProtocolError, match="no child, or of no chunk"):
            root.up(sender, chunk)
    root.up(one, 0)
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="partial sum came twice"):
            root.up(one, 0)
    assert root.contribute() == [Add(0, one, True), Finish(0, False), SendDown(0, (one,))]
    with pytest.raises(RemoteProtocolError, match="partial sum came twice"):
        root.up(one, 0)
    assert root.up(one, 1)[-1] == Complete()


def test_a_reduced_chunk_must_come_from_the_parent_once_after_its_parts_went_up() -> None:
    above, child = node(1), node(2)
    leaf, middle = Round(spec_of(above)), Round(spec_of(above, (child,)))
    for sender, chunk in ((child, 0), (above, 2)):
        with pytest.raises(RemoteProtocolError, match="does not send it"):
            leaf.down(sender, chunk)
    with pytest.raises(RemoteProtocolError, match="before its parts"):
        leaf.down(above, 0)
    middle.contribute()
    with pytest.raises(RemoteProtocolError, match="before its parts"):
        middle.down(above, 0)
    middle.up(child, 0)
    assert middle.down(above, 0) == [SendDown(0, (child,))]
    with pytest.raises(RemoteProtocolError, match="reduced chunk came twice"):
        middle.down(above, 0)


def test_a_root_has_nobody_to_tell_it_what_is_reduced() -> None:
    root = Round(spec_of(None, (node(1),)))
    root.contribute()
    with pytest.raises(RemoteProtocolError, match="does not send it"):
        root.down(node(1), 0)


def test_the_key_is_what_every_chunk_carries() -> None:
    assert replace(spec_of(None), term=5).key == (LINEAGE, 1, 2, 3, 4, 5)


# --- chunks that were reduced before --------------------------------------------------------------


@st.composite
def holdings(draw: st.DrawFn) -> tuple[list[int], int, list[set[int]]]:
    """A tree, the number of chunks, and the set of those that each node holds."""
    parents, chunks = draw(trees()), draw(st.integers(1, 5))
    held = st.sets(st.integers(0, chunks - 1))
    return parents, chunks, [draw(held) for _ in parents]


def regrow(
    parents: list[int], chunks: int, held: list[set[int]], *, contributes: bool
) -> dict[bytes, Place]:
    """Return the places of a tree in which node k holds the chunks `held[k]`."""
    above = {node(k): node(parents[k]) if k else b"" for k in range(len(parents))}
    have = {node(k): bits(tuple(found)) for k, found in enumerate(held)}
    places = {}
    for k, found in enumerate(held):
        children = tuple(node(c) for c in range(1, len(parents)) if parents[c] == k)
        plan = spread_plan(node(k), above, have, chunks)
        up = above[node(k)] or None
        spec = spec_of(up, children, chunks=chunks, contributes=contributes, spread=plan)
        places[node(k)] = Place(node(k), Round(spec), reduced={c: f"kept {c}" for c in found})
    return places


@given(holdings(), st.booleans(), st.randoms(use_true_random=False))
def test_whatever_is_held_all_end_with_it_and_with_new_sums_of_the_rest(
    holding: tuple[list[int], int, list[set[int]]], finish: bool, chance: random.Random
) -> None:
    parents, chunks, held = holding
    if finish:  # nobody contributes: all chunks must be somewhere
        held[-1] |= set(range(chunks))
    places = regrow(parents, chunks, held, contributes=not finish)
    kept = set().union(*held)
    todo = [(name, what) for name in places for what in ["begin", *["contribute"] * (not finish)]]
    frames: list[Frame] = []
    seen: list[Frame] = []
    while todo or frames:
        k = chance.randrange(len(todo) + len(frames))
        if k < len(todo):
            k = min(j for j, (name, _) in enumerate(todo) if name == todo[k][0])
            name, what = todo.pop(k)
            new = places[name].perform(getattr(places[name].round, what)())
        else:
            frame = frames.pop(k - len(todo))
            new = places[frame[1]].take(frame)
        frames += new
        seen += new
    for place in places.values():
        for chunk in range(chunks):
            whole = f"kept {chunk}" if chunk in kept else sum_below(parents, 0, chunk)
            assert place.reduced[chunk] == whole
        assert place.completed == 1
        assert place.round.have == bits(tuple(range(chunks)))
    for chunk in range(chunks):
        senders = [(to, sender) for sender, to, way, c, _ in seen if c == chunk and way == "down"]
        lacking = [k for k in range(len(parents)) if chunk not in held[k]] if chunk in kept else []
        if chunk in kept:
            assert sorted(to for to, _ in senders) == [node(k) for k in lacking]
            assert not any(c == chunk and way == "up" for _, _, way, c, _ in seen)
        for to, sender in senders:
            a, b = int.from_bytes(to, "big"), int.from_bytes(sender, "big")
            assert (b and parents[b] == a) or (a and parents[a] == b)
        for k in lacking:  # on the shortest way
            assert ways(dict(senders), node(k)) == min(
                distance(parents, k, h) for h in range(len(parents)) if chunk in held[h]
            )


def ways(source: dict[bytes, bytes], at: bytes) -> int:
    """Return how many links a chunk crosses on its way to `at`."""
    return 1 + ways(source, source[at]) if at in source else 0


def distance(parents: list[int], a: int, b: int) -> int:
    """Return how many links of the tree are between two nodes."""
    if a == b:
        return 0
    return 1 + (distance(parents, parents[a], b) if a > b else distance(parents, a, parents[b]))


def test_a_kept_chunk_is_taken_from_its_source_alone_and_not_summed() -> None:
    above, child, other = node(1), node(2), node(3)
    plan = (Spread((1,), child, (above,)), Spread((2,), None, (child,)))
    middle = Round(spec_of(above, (child, other), chunks=3, spread=plan))
    for sender in (above, other):
        with pytest.raises(RemoteProtocolError, match="does not send it"):
            middle.down(sender, 1)
    for sender in (child, above):
        with pytest.raises(RemoteProtocolError, match="does not send it"):
            middle.down(sender, 2)
    for chunk in (1, 2):
        with pytest.raises(RemoteProtocolError, match="no child, or of no chunk"):
            middle.up(child, chunk)
    assert middle.have == b""
    assert middle.begin() == [SendDown(2, (child,))]
    assert middle.have == b"\x04"
    assert middle.down(child, 1) == [SendDown(1, (above,))]
    with pytest.raises(RemoteProtocolError, match="twice"):
        middle.down(child, 1)
    assert middle.contribute() == []
    assert middle.have == b"\x06"
    assert not middle.complete


def test_chunks_with_the_same_holders_are_planned_together() -> None:
    one, two, three = node(1), node(2), node(3)
    tree = {one: b"", two: one, three: one}
    have = {two: bits((0, 1, 3)), three: bits((3, 4, 9))}
    assert spread_plan(one, tree, have, 5) == (
        Spread((0, 1), two, (three,)),
        Spread((3,), two, ()),
        Spread((4,), three, (two,)),
    )
    assert spread_plan(one, tree, {}, 5) == ()
    assert spread_plan(one, {one: b""}, {one: bits((0,))}, 5) == (Spread((0,), None, ()),)
