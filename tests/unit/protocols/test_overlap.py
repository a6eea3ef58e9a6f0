"""Chunks that leave while the trainer still computes: when they may, and what they count for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols import effects, events
from protocols.errors import LocalProtocolError, RemoteProtocolError
from protocols.member.cycle_table import CycleState
from protocols.rounds.control_word import bits
from protocols.rounds.round import Add, Complete, Finish, Round, SendDown, SendUp, Spread
from tests.unit.protocols.clusters import cluster, go_on, node_of
from tests.unit.protocols.records import node
from tests.unit.protocols.test_round import Frame, plant, spec_of, sum_below, trees

if TYPE_CHECKING:
    import random

    from tests.simulation.world import Host, World

ABOVE, CHILD = node(1), node(2)


# --- the round ------------------------------------------------------------------------------------


@given(trees(), st.integers(2, 5), st.randoms(use_true_random=False))
def test_chunks_in_any_order_give_the_same_sums(
    parents: list[int], chunks: int, chance: random.Random
) -> None:
    members = range(len(parents))
    places = plant(parents, [[0]], chunks)
    early = [[k, c] for k in members for c in range(1, chunks) if chance.random() < 0.7]
    chance.shuffle(early)
    waiting: list[list[int]] = early + [[k] for k in members]  # a word comes after the chunks
    frames: list[Frame] = []
    while waiting or frames:
        k = chance.randrange(len(waiting) + len(frames))
        if k >= len(waiting):
            frame = frames.pop(k - len(waiting))
            frames += places[frame[1]].take(frame)
            continue
        at, *chunk = waiting[k]
        if not chunk and any(other[0] == at for other in waiting if len(other) > 1):
            continue
        place = places[node(at)]
        del waiting[k]
        machine = place.round
        frames += place.perform(machine.contribute_chunks(chunk) if chunk else machine.contribute())
    for place in places.values():
        assert place.reduced == {c: sum_below(parents, 0, c) for c in range(chunks)}
        assert place.completed == 1


def test_a_chunk_travels_both_ways_before_the_word_is_there() -> None:
    root, leaf = Round(spec_of(None, (CHILD,))), Round(spec_of(ABOVE))
    assert leaf.contribute_chunks((1,)) == [SendUp(1, True, ABOVE)]
    assert root.up(CHILD, 1) == []
    sums = [Add(1, CHILD, True), Finish(1, False), SendDown(1, (CHILD,))]
    assert root.contribute_chunks((1,)) == sums
    assert leaf.down(ABOVE, 1) == []
    assert not leaf.complete
    assert leaf.contribute() == [SendUp(0, True, ABOVE)]
    assert root.up(CHILD, 0) == []
    assert root.contribute()[-1] == Complete()
    assert leaf.down(ABOVE, 0) == [Complete()]


def test_a_chunk_is_contributed_once_and_never_after_the_rest() -> None:
    leaf = Round(spec_of(ABOVE, chunks=3))
    assert leaf.contribute_chunks((2, 2)) == [SendUp(2, True, ABOVE)]
    assert leaf.contribute_chunks((2,)) == []
    for chunk in (0, 3):
        with pytest.raises(LocalProtocolError, match="none of"):
            leaf.contribute_chunks((chunk,))
    assert leaf.contribute() == [SendUp(0, True, ABOVE), SendUp(1, True, ABOVE)]
    with pytest.raises(LocalProtocolError, match="after all"):
        leaf.contribute_chunks((1,))


def test_no_reduced_chunk_comes_before_the_own_part_of_it() -> None:
    leaf = Round(spec_of(ABOVE, chunks=3))
    leaf.contribute_chunks((2,))
    with pytest.raises(RemoteProtocolError, match="before its parts"):
        leaf.down(ABOVE, 1)
    assert leaf.down(ABOVE, 2) == []


def test_a_chunk_that_was_kept_is_not_contributed_again() -> None:
    leaf = Round(spec_of(ABOVE, chunks=3, spread=(Spread((2,), None, ()),)))
    leaf.begin()
    assert leaf.contribute_chunks((1, 2)) == [SendUp(1, True, ABOVE)]


# --- the node -------------------------------------------------------------------------------------


def computing() -> tuple[World, Host]:
    """Return a world and one of its members, whose trainer computes at present."""
    world, hosts = cluster(0, 2)
    host = hosts[1]
    world.run(lambda: node_of(host).cycle.state is CycleState.COMPUTING)
    return world, host


def announced(host: Host, **changed: object) -> list[effects.Effect]:
    """Return what the node wants done when its trainer announces chunks of its running work."""
    node, world = node_of(host), host.world
    given = node.cycle._given
    said: dict[str, object] = {
        "iteration": node.context.iteration,
        "micro_batches": given,
        "chunks": bits((1, 2)),
        "turn": node.debt.turn,
    }
    event = events.ChunksReady(**(said | changed))  # type: ignore[arg-type] # any field
    return [e for e in node.handle(world.now, event) if isinstance(e, effects.ContributeChunks)]


def test_announced_chunks_are_contributed() -> None:
    _, host = computing()
    assert announced(host) == [effects.ContributeChunks((1, 2))]
    assert announced(host, chunks=bits((3, 9))) == [effects.ContributeChunks((3,))]
    assert announced(host, chunks=bits((9,))) == announced(host, chunks=bits((0, 1))) == []


def test_chunks_with_more_or_less_than_was_given_are_not_contributed() -> None:
    _, host = computing()
    given = node_of(host).cycle._given
    for other in ((), given[:-1], (*given, 99)):
        assert announced(host, micro_batches=other) == []
    node_of(host).cycle._given = ()
    assert announced(host) == []


def test_chunks_of_another_time_are_not_contributed() -> None:
    _, host = computing()
    node = node_of(host)
    assert announced(host, iteration=node.context.iteration + 1) == []
    assert announced(host, turn=node.debt.turn + 1) == []
    node.context.freeze.asked()
    assert announced(host) == []
    node.context.freeze.decided()
    node.cycle._owed = 0
    assert announced(host) == []


def test_chunks_of_a_round_that_has_its_word_are_not_contributed() -> None:
    world, host = computing()
    world.run(lambda: node_of(host).cycle.state is not CycleState.COMPUTING)
    assert announced(host) == []


def test_a_cluster_whose_trainers_announce_chunks_trains_right() -> None:
    world, hosts = cluster(3, 3)
    world.streams = True
    go_on(world, 20)
    assert all(h.iteration > 20 for h in hosts)
