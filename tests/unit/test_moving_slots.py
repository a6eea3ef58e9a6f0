"""Slots on their way between devices: they are copied before the trainer steps them, a piece at a
time, and what comes too late changes nothing."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from edgeagent.handover import Applied, Settle
from edgeagent.held_memory import HeldLayout
from edgeagent.shared_memory import create_shared_memory
from edgeagent.shell import stripes
from edgeagent.shell.owed_steps import OwedSteps
from edgeagent.shell.stripes import Stripes
from protocols import effects, events
from protocols.wire.bulk import BulkHeader, BulkKind

ELEMENTS, CHUNK, SLOTS = 64, 8, 2  # eight chunks, each a stripe
AT = 5
ONE, OTHER = b"1" * 32, b"2" * 32


class Bench:
    """One end, with slots that are numbered. `wanted`: stripe -> from whom it is to come."""

    def __init__(self) -> None:
        layout = HeldLayout(SLOTS, ELEMENTS, CHUNK)
        memory: Any = create_shared_memory(0, ELEMENTS, "float32", 0, layout.bytes)
        self.slots = memory.held.array("float32")
        self.slots[:] = np.arange(len(self.slots))
        self.wanted: dict[int, bytes] = {}
        self.sent: list[tuple[bytes, BulkHeader, list[float]]] = []
        self.told: list[events.Event] = []
        learning = SimpleNamespace(
            expects=lambda who, at, stripe: at == AT and self.wanted.get(stripe) == who
        )
        debt = SimpleNamespace(is_stale=False)
        cycle = Mock(learning=learning)
        self.node: Any = Mock(cycle=cycle, context=Mock(lineage=b"L" * 16), debt=debt)
        self.hub: Any = SimpleNamespace(node=self.node, handle=self.told.append)
        peers: Any = SimpleNamespace(send_bulk=self.send)
        hello: Any = SimpleNamespace(slots=SLOTS, elements=ELEMENTS, chunk_elements=CHUNK)
        spawn = lambda work: asyncio.get_running_loop().create_task(work)  # noqa: E731
        owner: Any = SimpleNamespace(spawn=spawn)
        self.asked: list[Any] = []
        self.owed = OwedSteps(self.asked.append, None)
        self.stripes = Stripes(self.hub, peers, hello, memory, owner, self.owed)
        assert self.stripes.count == ELEMENTS // CHUNK

    def send(self, to: bytes, header: BulkHeader, payload: memoryview) -> None:
        self.sent.append((to, header, np.frombuffer(payload, np.float32).tolist()))

    def lend(self, learner: bytes, *wanted: int) -> None:
        self.stripes.perform(effects.LendStripes(learner, AT, wanted))

    def slot(self, chunk: int, number: int) -> list[float]:
        found: list[float] = self.slots[self.stripes.layout.slot(number, chunk)].tolist()
        return found

    def header(self, chunk: int, number: int) -> BulkHeader:
        at = (0, 0, AT, 0, chunk, 4 * CHUNK)
        return BulkHeader(BulkKind.SLOT, b"L" * 16, *at, reference=number)

    def comes(self, source: bytes, header: BulkHeader, value: float) -> None:
        buffer = self.stripes.arriving(source, header)
        assert buffer is not None
        buffer[:] = np.full(CHUNK, value, np.float32).tobytes()
        self.stripes.received(link(source), header)


def link(source: bytes) -> Any:
    return SimpleNamespace(peer=SimpleNamespace(node=source))


def test_a_few_slots_are_lent_at_once() -> None:
    async def run() -> None:
        bench = Bench()
        bench.lend(ONE, 0, 3)
        assert bench.stripes.lending is None
        assert [(h.index, h.reference) for _, h, _ in bench.sent] == [
            (1, 0),
            (1, 1),
            (4, 0),
            (4, 1),
        ]
        assert all(what == bench.slot(h.index, h.reference) for _, h, what in bench.sent)

    asyncio.run(run())


def test_slots_that_are_still_to_be_stepped_are_neither_lent_nor_replaced() -> None:
    async def run() -> None:
        bench = Bench()
        bench.wanted = {2: OTHER}
        bench.owed.applied(
            Applied(AT - 1, 0.0, False, b"", "adam", (0.9, 0.99, 0.0, 1.0, 1.0, 1.0))
        )
        before = bench.slot(3, 0)
        bench.lend(ONE, 0)
        bench.comes(OTHER, bench.header(3, 0), -1.0)
        await asyncio.sleep(0)
        assert not bench.sent
        assert bench.asked == [Settle(False)]
        assert bench.slot(3, 0) == before
        bench.slots[bench.stripes.layout.slot(0, 1)] = 9.0  # as the trainer steps them
        bench.owed.made()
        lending = bench.stripes.lending
        assert lending is not None
        await asyncio.wait_for(lending, 9)
        assert next(what[0] for _, _, what in bench.sent) == 9.0
        assert bench.slot(3, 0) == before
        bench.stripes.place(AT, (2,))
        assert bench.slot(3, 0) == [-1.0] * CHUNK

    asyncio.run(run())


def test_many_slots_are_copied_between_other_events_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stripes, "PIECE_BYTES", 3 * 4 * CHUNK)

    async def run() -> None:
        bench = Bench()
        bench.lend(ONE, *range(8))
        bench.lend(OTHER, 7)
        assert len(bench.sent) == 3
        lengths = []
        lending = bench.stripes.lending
        while bench.stripes.lending is not None:
            lengths.append(len(bench.sent))
            await asyncio.sleep(0)
        assert lending is not None
        assert max(b - a for a, b in itertools.pairwise(lengths)) == 3
        to_one = [(c, s) for c in range(1, 9) for s in range(SLOTS)]
        found = [(to, h.index, h.reference) for to, h, _ in bench.sent]
        assert found == [(ONE, *at) for at in to_one] + [(OTHER, 8, 0), (OTHER, 8, 1)]
        assert all(what == bench.slot(h.index, h.reference) for _, h, what in bench.sent)

    asyncio.run(run())


def test_nothing_is_lent_for_a_node_that_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stripes, "PIECE_BYTES", 1)

    async def run() -> None:
        bench = Bench()
        bench.lend(ONE, *range(8))
        bench.hub.node = None
        assert bench.stripes.lending is not None
        await bench.stripes.lending
        assert len(bench.sent) == 1

    asyncio.run(run())


def test_a_stripe_is_told_of_once_all_of_it_is_in_place() -> None:
    bench = Bench()
    bench.wanted = {2: ONE}
    bench.comes(ONE, bench.header(3, 0), 7)
    assert not bench.told
    bench.comes(ONE, bench.header(3, 1), 8)
    assert bench.told == [events.StripeArrived(AT, 2)]
    assert (bench.slot(3, 0), bench.slot(3, 1)) == ([7] * CHUNK, [8] * CHUNK)


@pytest.mark.parametrize("now_from", [None, OTHER])
def test_a_chunk_that_is_no_longer_wanted_changes_nothing(now_from: bytes | None) -> None:
    """A fence has ended the learning while the chunk arrived, and perhaps it came from elsewhere
    and was stepped since."""
    bench = Bench()
    bench.wanted = {2: ONE}
    late = bench.header(3, 0)
    buffer = bench.stripes.arriving(ONE, late)
    assert buffer is not None
    bench.wanted.clear()
    if now_from is not None:
        bench.wanted = {2: now_from}
        for number in range(SLOTS):
            bench.comes(now_from, bench.header(3, number), 9)
        bench.wanted.clear()
        assert len(bench.told) == 1
    before, told = bench.slots.tolist(), list(bench.told)
    buffer[:] = bytes(len(buffer))
    bench.stripes.received(link(ONE), late)
    assert bench.slots.tolist() == before
    assert bench.told == told
    assert bench.stripes.arriving(ONE, bench.header(3, 1)) is None, "nor is what follows wanted"


def test_a_chunk_for_the_node_before_changes_nothing() -> None:
    bench = Bench()
    bench.wanted = {2: ONE}
    late = bench.header(3, 0)
    assert bench.stripes.arriving(ONE, late) is not None
    bench.stripes.forget()
    before = bench.slots.tolist()
    bench.stripes.received(link(ONE), late)
    assert bench.slots.tolist() == before


def test_what_is_learned_waits_while_the_trainer_may_step_older_slots_of_that_stripe() -> None:
    """The trainer replays updates by which it was a holder of the stripe before."""
    bench = Bench()
    bench.wanted = {2: ONE, 3: ONE}
    bench.node.debt.is_stale = True
    before = bench.slot(3, 0)
    for chunk in (3, 4):
        for number in range(SLOTS):
            bench.comes(ONE, bench.header(chunk, number), 7.0)
    assert bench.slot(3, 0) == before
    assert bench.told == [events.StripeArrived(AT, 2), events.StripeArrived(AT, 3)]
    bench.stripes.place(AT - 1, (2, 3))
    assert bench.slot(3, 0) == before, "an update that is replayed"
    bench.stripes.place(AT, (2,))
    assert bench.slot(3, 0) == bench.slot(3, 1) == [7.0] * CHUNK
    assert bench.slot(4, 0) != [7.0] * CHUNK, "a fence has ended the learning of this one"


def test_what_was_learned_for_an_update_that_never_comes_is_dropped() -> None:
    bench = Bench()
    bench.wanted = {2: ONE}
    bench.node.debt.is_stale = True
    bench.comes(ONE, bench.header(3, 0), 7.0)
    bench.stripes.place(AT + 1, (2,))
    bench.stripes.place(AT, (2,))
    assert bench.slot(3, 0) != [7.0] * CHUNK
    bench.comes(ONE, bench.header(3, 0), 7.0)
    bench.stripes.forget()
    bench.stripes.place(AT, (2,))
    assert bench.slot(3, 0) != [7.0] * CHUNK
