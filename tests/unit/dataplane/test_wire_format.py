"""How numbers are rounded for the wire, and that all nodes have the same rounded sums."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from edgeagent.dataplane.reduce import Reducer
from edgeagent.dataplane.wire_format import AsTheyAre, BFloat16, Formats
from protocols.errors import RemoteProtocolError
from protocols.rounds.control_word import EMPTY, ControlWord, bits
from protocols.rounds.round import RoundSpec

from .cluster import LINEAGE

if TYPE_CHECKING:
    from protocols.wire.bulk import BulkHeader

A, B = b"A" * 32, b"B" * 32
ELEMENTS, CHUNK = 80, 32  # three data chunks, of which the last is shorter and of buffers


def test_a_number_is_rounded_as_torch_rounds_it() -> None:
    generator = np.random.default_rng(1)
    words = generator.integers(0, 1 << 32, 200_000, dtype=np.uint32)
    halves = np.arange(0x3F80_8000, 0x3F90_8000, 0x8000, dtype=np.uint32)  # exactly between two
    vector = np.concatenate([words, halves]).view(np.float32)
    vector = vector[np.isfinite(vector)]
    found = np.frombuffer(BFloat16().descending(vector), np.uint16)
    expected = torch.from_numpy(vector).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert (found == expected).all()


def test_what_is_no_number_stays_so() -> None:
    odd = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32)
    odd[1:2].view(np.uint32)[:] = 0xFFFF_FFFF  # the rounding would overflow
    wire = BFloat16()
    back = np.empty_like(odd)
    wire.read(wire.ascending(1, odd, own=True), back)
    assert np.isnan(back[:2]).all()
    assert back[2:].tobytes() == odd[2:].tobytes()


def test_rounding_twice_is_rounding_once() -> None:
    vector = np.linspace(-3.0, 5.0, 1001, dtype=np.float32)
    wire = BFloat16()
    wire.settle(1, vector, own=True)
    before = vector.tobytes()
    assert np.abs(vector - np.linspace(-3.0, 5.0, 1001)).max() <= 4.0 / 256
    wire.settle(1, vector, own=False)
    assert vector.tobytes() == before
    wire.read(wire.descending(vector), vector)
    assert vector.tobytes() == before


def test_the_bytes_of_a_vector() -> None:
    formats = Formats(2)
    assert formats.bytes_of(ELEMENTS, CHUNK, 4) == 2 * 64 + 4 * 16
    assert formats.bytes_of(CHUNK, CHUNK, 4) == 64
    assert Formats().bytes_of(ELEMENTS, CHUNK, 8) == 8 * ELEMENTS
    kinds = [type(formats.of(chunk)) for chunk in (1, 2, 3)]
    assert kinds == [BFloat16, BFloat16, AsTheyAre]


class Pair:
    """Two reducers, A the root and B its child; what they send one another is kept."""

    def __init__(self) -> None:
        generator = np.random.default_rng(2)
        self.own = {n: generator.normal(size=ELEMENTS).astype(np.float32) for n in (A, B)}
        self.reduced = {n: np.zeros(ELEMENTS, np.float32) for n in (A, B)}
        self.queue: list[tuple[bytes, bytes, BulkHeader, bytes]] = []
        self.bytes: dict[int, int] = {}
        self.done: list[bytes] = []
        self.reducers = {n: self._reducer(n) for n in (A, B)}

    def _reducer(self, name: bytes) -> Reducer:
        pair = self

        class Wire:
            def send_bulk(self, to: bytes, header: BulkHeader, payload: memoryview) -> None:
                pair.bytes[header.index] = len(payload)
                pair.queue.append((name, to, header, bytes(payload)))

            def hold_bulk(self, peer: bytes, hold: bool) -> None:
                raise AssertionError("so little is never held back")

            def discard_bulk(self, peer: bytes) -> None:
                raise AssertionError("nothing is given up")

            def accuse(self, peer: bytes, reason: str) -> None:
                raise AssertionError(reason)

        def done(spec: RoundSpec, word: ControlWord) -> None:
            self.done.append(name)

        buffers = (np.zeros(ELEMENTS, np.float32), self.reduced[name])
        return Reducer(self.own[name], buffers, CHUNK, Wire(), done, formats=Formats(2))

    def play(self, *, early: bool) -> None:
        """Run round 1; if `early`, the root's part is there before the child's round begins."""
        chunks = 4
        root = RoundSpec(LINEAGE, 1, 1, 1, 0, None, (B,), (), chunks, True, ())
        leaf = RoundSpec(LINEAGE, 1, 1, 1, 0, A, (), (), chunks, True, ())
        first, second = ((B, leaf), (A, root)) if early else ((A, root), (B, leaf))
        for k, (name, spec) in enumerate((first, second)):
            self.reducers[name].start(spec)
            self.reducers[name].contribute(replace(EMPTY, done=bits((k,))))
            self.carry(stop=early and k == 0)
        self.carry()

    def carry(self, *, stop: bool = False) -> None:
        while self.queue:
            sender, to, header, payload = self.queue.pop(0)
            target = self.reducers[to].arriving(sender, header)
            assert target is not None
            target[:] = payload
            self.reducers[to].received(sender, header)


@pytest.mark.parametrize("early", [False, True])
def test_all_nodes_have_the_same_rounded_sum(early: bool) -> None:
    pair = Pair()
    pair.play(early=early)
    assert sorted(pair.done) == [A, B]
    assert pair.reduced[A].tobytes() == pair.reduced[B].tobytes()
    wire, rounded = BFloat16(), pair.own[B].copy()
    wire.settle(1, rounded[:64], own=True)
    expected = pair.own[A] + rounded
    wire.settle(1, expected[:64], own=True)
    assert pair.reduced[A].tobytes() == expected.tobytes(), "buffers travel as they are"
    assert [pair.bytes[k] for k in (1, 2, 3)] == [64, 64, 64], "2 bytes, 2 bytes, 4 bytes each"
    squares = [pair.reducers[n].square_sums for n in (A, B)]
    assert squares[0] == squares[1]
    wide = pair.reduced[A].astype(np.float64)
    assert squares[0] == pytest.approx([float((wide[k : k + 32] ** 2).sum()) for k in (0, 32, 64)])


def test_a_chunk_in_the_other_format_is_refused() -> None:
    pair = Pair()
    pair.reducers[A].start(RoundSpec(LINEAGE, 1, 1, 1, 0, None, (B,), (), 4, True, ()))
    pair.reducers[B].start(RoundSpec(LINEAGE, 1, 1, 1, 0, A, (), (), 4, True, ()))
    pair.reducers[B].contribute(replace(EMPTY, done=bits((0,))))
    header = next(h for _, _, h, _ in pair.queue if h.index == 1)
    with pytest.raises(RemoteProtocolError, match="wrong length"):
        pair.reducers[A].arriving(B, replace(header, length=128))
