"""Reducers of chunks that have holders: sums stay there, results spread."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edgeagent.dataplane import reduce
from edgeagent.dataplane.held_chunks import HeldChunks
from edgeagent.dataplane.reduce import Reducer
from edgeagent.held_memory import HeldLayout
from edgeagent.shared_memory import create_shared_memory
from protocols.cluster.stripes import Stripe
from protocols.member.round_specs import Lanes
from protocols.rounds.control_word import ControlWord, bits, read_squares
from protocols.rounds.round import RoundSpec
from protocols.wire.bulk import BulkHeader, decode_header
from tests.unit.protocols.records import LINEAGE, node, star_policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.dataplane.reduce import Vector
    from protocols.cluster.policy import Policy

ELEMENTS, CHUNK = 150, 16  # ten chunks, the last one short
LAYOUT = HeldLayout(1, ELEMENTS, CHUNK)


def policy_of(stripes: tuple[Stripe, ...]) -> Policy:
    return replace(star_policy(3), stripes=stripes)


def held_chunks() -> tuple[HeldChunks, Vector]:
    """Return what keeps sums, and its memory."""
    region = create_shared_memory(0, ELEMENTS, "float32", 0, LAYOUT.bytes).held
    return HeldChunks(region, LAYOUT), region.array("float32")


class Host:
    """One member: its reducer and its memory. Its trainer makes 2 x sum + 1 of each sum."""

    def __init__(self, world: World, name: bytes) -> None:
        self.world, self.name = world, name
        self.later: deque[Callable[[], None]] = deque()
        self.contribution = np.zeros(ELEMENTS, np.float32)
        self.reduced = (np.zeros(ELEMENTS, np.float32), np.zeros(ELEMENTS, np.float32))
        self.held, self.memory = held_chunks()
        self.reducer = Reducer(
            self.contribution,
            self.reduced,
            CHUNK,
            self,
            self.done,
            later=self.later.append if world.sliced else None,
            held=self.held,
            decided=self.decided,
        )
        self.words: list[ControlWord] = []
        self.over = 0

    def send_bulk(self, to: bytes, header: BulkHeader, payload: memoryview) -> None:
        assert decode_header(header.encode()) == header
        self.world.streams.setdefault((self.name, to), deque()).append((header, bytes(payload)))

    def hold_bulk(self, peer: bytes, hold: bool) -> None:
        raise AssertionError((peer, hold))

    def discard_bulk(self, peer: bytes) -> None:
        raise AssertionError(peer)

    def accuse(self, peer: bytes, reason: str) -> None:
        raise AssertionError((peer, reason))

    def decided(self, spec: RoundSpec, word: ControlWord) -> None:
        assert spec.is_held
        self.words.append(word)

    def done(self, spec: RoundSpec, word: ControlWord) -> None:
        del spec, word
        self.over += 1

    def start(self, iteration: int) -> None:
        policy = self.world.policy
        lanes, turns = Lanes().of(policy, self.name)
        tree = policy.tree
        self.reducer.start(
            RoundSpec(
                LINEAGE,
                1,
                1,
                iteration,
                0,
                tree.parent(self.name),
                tree.children(self.name),
                (),
                LAYOUT.chunks + 1,
                True,
                term=1,
                lanes=lanes,
                turns=turns,
                window=3,
                is_held=True,
            )
        )

    def publish(self) -> None:
        for chunk in range(1, LAYOUT.chunks + 1):
            start, end = LAYOUT.span(chunk)
            self.contribution[start:end] = 2 * self.memory[LAYOUT.sums(chunk)] + 1
        self.reducer.publish()


class World:
    """Three members and the streams between them. `sliced`: they do a bit of their work at a
    time."""

    def __init__(self, seed: int, stripes: tuple[Stripe, ...], *, sliced: bool = False) -> None:
        self.sliced = sliced
        self.dice = random.Random(seed)
        self.policy = policy_of(stripes)
        self.streams: dict[tuple[bytes, bytes], deque[tuple[BulkHeader, bytes]]] = {}
        self.hosts = {n: Host(self, n) for n in self.policy.view.nodes}

    def deliver(self) -> bool:
        """Deliver one frame of some stream, or have a member go on; return whether there was one to
        deliver or one with something to do."""
        busy = [host for host in self.hosts.values() if host.later]
        if busy and self.dice.random() < 0.5:
            self.dice.choice(busy).later.popleft()()
            return True
        full = [key for key, frames in sorted(self.streams.items()) if frames]
        if not full:
            return bool(busy)
        source, to = self.dice.choice(full)
        header, payload = self.streams[source, to].popleft()
        reducer = self.hosts[to].reducer
        buffer = reducer.arriving(source, header)
        assert buffer is not None
        buffer[:] = payload
        reducer.received(source, header)
        return True


@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_results_spread_and_sums_stay(
    seed: int, sliced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reduce, "SLICE_SECONDS", -1.0)  # one chunk at a time
    stripes = (Stripe(b"\0\1"), Stripe(b"\1"), Stripe(b"\2\0", b"\1"))
    world = World(seed, stripes * 3 + stripes[:1], sliced=sliced)
    names = list(world.hosts)
    for iteration in range(3):
        total = np.zeros(ELEMENTS, np.float32)
        waiting = list(world.hosts.values())
        world.dice.shuffle(waiting)
        published: dict[bytes, None] = {}
        begun: list[Host] = []
        while any(h.over <= iteration for h in world.hosts.values()):
            if waiting and (world.dice.random() < 0.2 or not any(world.streams.values())):
                host = waiting.pop()
                begun.append(host)
                host.start(iteration)
                number = names.index(host.name)
                host.contribution[:] = np.arange(ELEMENTS) * (number + 1) + iteration
                total += host.contribution
                word = ControlWord(1, 1, bits((number,)), b"", 1.0, b"", b"", True)
                host.reducer.contribute(word)
                continue
            moved = world.deliver()
            for host in begun:
                if len(host.words) > iteration and host.name not in published:
                    published[host.name] = None
                    host.publish()
                    moved = True
            assert moved, "nothing moves"
        for number, host in enumerate(world.hosts.values()):
            assert np.array_equal(host.reduced[iteration % 2], 2 * total + 1)
            for chunk in range(1, LAYOUT.chunks + 1):
                stripe = world.policy.stripes[LAYOUT.stripe_of(chunk)]
                if number in stripe.holders + stripe.learners:
                    kept = host.memory[LAYOUT.sums(chunk)]
                    assert np.array_equal(kept, total[slice(*LAYOUT.span(chunk))])
        cuts = [total[slice(*LAYOUT.span(c))] for c in range(1, LAYOUT.chunks + 1)]
        squares = [float(np.sum(x.astype(np.float64) ** 2)) for x in cuts]
        for host in world.hosts.values():
            assert read_squares(host.words[-1].squares) == pytest.approx(squares)
            assert list(host.reducer.square_sums) == pytest.approx(squares)


def test_missed_sums_are_kept_for_a_late_trainer() -> None:
    held, memory = held_chunks()
    for chunk in range(1, LAYOUT.chunks + 1):
        start, end = LAYOUT.span(chunk)
        held.keep(chunk, np.arange(start, end, dtype=np.float32))
    copies = held.copy_sums((0, 2))
    assert list(copies) == [1, 3]
    memory[LAYOUT.sums(1)] = 0
    held.put_missed(copies)
    assert memory[LAYOUT.missed(1)][5] == 5
    assert not memory[LAYOUT.missed(2)].any()
    kept = memory[LAYOUT.sums(2)].copy()
    held.drop_missed()
    # All whole pages are given back, of which there is none among so few numbers.
    assert np.array_equal(memory[LAYOUT.sums(2)], kept)


def test_sums_that_come_while_a_late_trainer_still_reads_others_wait_for_it() -> None:
    held, memory = held_chunks()
    ones, twos, threes = (np.full(CHUNK, k, np.float32) for k in (1, 2, 3))
    held.keep(1, ones)
    held.keep(2, ones)
    held.lend()
    for total in (twos, threes):  # those of two further iterations
        held.keep(1, total)
    total[:] = 9  # R is used again
    assert memory[LAYOUT.sums(1)].tolist() == ones.tolist(), "the trainer steps its slots with it"
    missed = held.copy_sums((0, 1))
    assert (missed[1][0], missed[2][0]) == (3, 1)
    held.returned()
    assert memory[LAYOUT.sums(1)].tolist() == [3.0] * CHUNK
    held.keep(1, ones)
    assert memory[LAYOUT.sums(1)].tolist() == ones.tolist()
    held.returned()
    assert memory[LAYOUT.sums(1)].tolist() == ones.tolist()


def test_sums_of_an_update_that_waits_for_the_one_before_stay_apart_from_later_ones() -> None:
    held, memory = held_chunks()
    ones, twos, threes = (np.full(CHUNK, k, np.float32) for k in (1, 2, 3))
    held.keep(1, ones)
    held.lend()
    held.keep(1, twos)
    held.lend()  # the slots are not stepped with the first ones yet
    assert held.copy_sums((0,))[1].tolist() == twos.tolist()
    held.keep(1, threes)
    assert memory[LAYOUT.sums(1)].tolist() == ones.tolist()
    assert held.copy_sums((0,))[1].tolist() == threes.tolist()
    held.returned()
    assert memory[LAYOUT.sums(1)].tolist() == twos.tolist()
    held.returned()
    assert memory[LAYOUT.sums(1)].tolist() == threes.tolist()


def alone(monkeypatch: pytest.MonkeyPatch) -> tuple[Host, list[float]]:
    """Return a member without neighbours that works in slices and has just published its results,
    and these."""
    monkeypatch.setattr(reduce, "SLICE_SECONDS", -1.0)
    world = World(0, (Stripe(b"\0"),), sliced=True)
    host = world.hosts[node(1)]
    world.policy = replace(star_policy(1), stripes=world.policy.stripes)
    host.start(0)
    host.contribution[:] = np.arange(ELEMENTS)
    host.reducer.contribute(ControlWord(1, 1, bits((0,)), b"", 1.0, b"", b"", True))
    while host.later:
        host.later.popleft()()
    assert (len(host.words), host.over) == (1, 0)
    host.publish()
    return host, [2.0 * n + 1 for n in range(ELEMENTS)]


def test_own_results_are_taken_a_chunk_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    host, right = alone(monkeypatch)
    slices = 0
    while host.later:
        assert not host.over, "complete only when all of R is there"
        host.later.popleft()()
        slices += 1
    assert host.over == 1
    assert host.reduced[0].tolist() == right
    assert slices >= LAYOUT.chunks


def test_a_fence_finds_all_own_results_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    host, right = alone(monkeypatch)
    assert host.reduced[0].tolist() != right
    assert host.reducer.freeze() == bits(tuple(range(LAYOUT.chunks + 1)))
    assert host.reduced[0].tolist() == right


def test_a_reducer_without_a_round_publishes_nothing() -> None:
    host = World(0, (Stripe(b"\0"),)).hosts[node(1)]
    host.reducer.publish()
    assert not host.words


def test_where_chunks_lie() -> None:
    layout = HeldLayout(2, ELEMENTS, CHUNK)
    assert layout.chunks == layout.stripes == 10
    assert list(layout.chunks_of(9)) == [10]
    assert layout.stripe_of(10) == 9
    assert layout.span(10) == (144, 150)
    parts = [layout.slot(0, 1), layout.slot(1, 1), layout.sums(1), layout.missed(1)]
    assert [p.start for p in parts] == [0, 150, 300, 450]
    assert layout.bytes == 4 * 150 * 4
