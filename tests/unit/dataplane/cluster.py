"""Several reducers wired together in memory: every interleaving that streams allow, from a seed.

Frames between two nodes keep their order, as in a TCP stream, and nothing else is ordered. A
payload is copied as late as possible, from the sender's memory as it is then, so that a sender is
caught that overwrites what has not left yet. A header and its payload are two events.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeagent.dataplane.reduce import Reducer, Vector
from protocols.rounds.control_word import ControlWord, bits
from protocols.rounds.round import Feed, Lane, RoundSpec
from protocols.wire.bulk import BulkHeader, BulkKind, decode_header

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.cluster.ways import Way

LINEAGE = b"L" * 16
ELEMENTS, CHUNK = 37, 16  # the last chunk is short
CHUNKS = 4  # with the control word
Tag = tuple[int, int]  # iteration, attempt


@dataclass
class Shape:
    """A tree: the parent of node k is `parents[k]`, and node 0 is the root. Also, for each
    subscriber, the nodes that forward to it: the first one the word, and all the data chunks in
    turns. If there are `ways`, data chunk k takes way (k - 1) % len(ways)."""

    parents: list[int]
    subscribed: list[list[int]]
    ways: list[Way] = field(default_factory=list)
    window: int = 1

    @property
    def members(self) -> int:
        return len(self.parents)

    def name(self, number: int) -> bytes:
        return number.to_bytes(32, "big")

    def children(self, number: int) -> list[int]:
        return [k for k in range(1, self.members) if self.parents[k] == number]

    def spec(self, number: int, tag: Tag) -> RoundSpec:
        """Return the place of member or subscriber `number` in the round `tag`."""
        member = number < self.members
        feeders = [] if member else self.subscribed[number - self.members]
        above = self.parents[number] if member else feeders[0]
        return RoundSpec(
            LINEAGE,
            1,
            1,
            *tag,
            self.name(above) if number else None,
            tuple(map(self.name, self.children(number))) if member else (),
            self.feeds(number),
            CHUNKS,
            member,
            lanes=tuple(self.lane(number, way) for way in self.ways) if member else (),
            turns=tuple(range(len(self.ways))) if member else (),
            window=self.window if self.ways else CHUNKS,
            feeders=tuple(map(self.name, feeders)),
        )

    def feeds(self, number: int) -> tuple[Feed, ...]:
        """Return what a node forwards to subscribers."""
        return tuple(
            Feed(self.name(self.members + s), at[0] == number, tuple(n == number for n in at))
            for s, at in enumerate(self.subscribed)
            if number in at
        )

    def lane(self, number: int, way: Way) -> Lane:
        children, to = (
            tuple(self.name(k) for k, at in enumerate(tree) if at == number != k)
            for tree in (way.up, way.down)
        )
        parent, source = (
            None if tree[number] == number else self.name(tree[number])
            for tree in (way.up, way.down)
        )
        return Lane(parent, children, source, to)

    def children_on(self, number: int, chunk: int) -> list[int]:
        """Return from whom a node gets partial sums of a chunk."""
        if not chunk or not self.ways:
            return self.children(number)
        up = self.ways[(chunk - 1) % len(self.ways)].up
        return [k for k, at in enumerate(up) if at == number != k]

    def root_of(self, chunk: int) -> int:
        return self.ways[(chunk - 1) % len(self.ways)].root if self.ways else 0


@dataclass
class Stream:
    """One direction of one link."""

    frames: deque[tuple[BulkHeader, memoryview]] = field(default_factory=deque)
    target: memoryview | None = None
    begun: bool = False
    held: bool = False
    early: int = 0  # bytes that have come for rounds that had not begun


class Host:
    """One node: its reducer, its memory, what it has seen."""

    def __init__(self, cluster: Cluster, number: int, dtype: Any) -> None:
        self.cluster = cluster
        self.number = number
        self.contribution: Vector = np.zeros(ELEMENTS, dtype)
        self.reduced: tuple[Vector, Vector] = (np.zeros(ELEMENTS, dtype), np.zeros(ELEMENTS, dtype))
        self.later: list[Callable[[], None]] = []  # what it goes on with after a slice of work
        later = self.later.append if cluster.sliced else None
        vectors = (self.contribution, self.reduced)
        self.reducer = Reducer(*vectors, CHUNK, self, self.done, later=later)
        self.todo = list(cluster.rounds)
        self.running: Tag | None = None
        self.contributed = False
        self.streamed = False  # it has contributed some chunks before the rest
        self.results: dict[Tag, tuple[bytes, ControlWord, tuple[float, ...]]] = {}

    def send_bulk(self, to: bytes, header: BulkHeader, payload: memoryview) -> None:
        assert decode_header(header.encode()) == header
        assert len(payload) == header.length
        self.cluster.stream(self.number, to).frames.append((header, payload))

    def hold_bulk(self, peer: bytes, hold: bool) -> None:
        stream = self.cluster.stream_from(peer, self.number)
        assert stream.held != hold
        stream.held = hold
        self.cluster.holds += hold

    def discard_bulk(self, peer: bytes) -> None:
        self.cluster.stream_from(peer, self.number).target = None

    def accuse(self, peer: bytes, reason: str) -> None:
        raise AssertionError(reason)

    def done(self, spec: RoundSpec, word: ControlWord) -> None:
        tag = (spec.iteration, spec.attempt)
        assert tag == self.running
        assert tag not in self.results
        reduced = self.reduced[spec.iteration % 2].tobytes()
        self.results[tag] = (reduced, word, tuple(self.reducer.square_sums))
        self.running = None

    def start(self) -> None:
        self.running = tag = self.todo.pop(0)
        self.contributed = self.number >= self.cluster.shape.members
        self.streamed = False
        self.reducer.start(self.cluster.shape.spec(self.number, tag))

    def slice(self) -> None:
        self.later.pop(0)()

    def contribute_chunks(self) -> None:
        """Contribute some chunks, while nothing is known of the others."""
        assert self.running is not None
        self.streamed = True
        chance = self.cluster.chance
        chunks = tuple(k for k in range(1, CHUNKS) if chance.random() < 0.5)
        gradient = self.cluster.gradient(self.number, self.running)
        self.contribution[:] = np.nan
        for k in chunks:
            span = slice((k - 1) * CHUNK, k * CHUNK)
            self.contribution[span] = gradient[span]
        self.reducer.contribute_chunks(chunks)

    def contribute(self) -> None:
        assert self.running is not None
        self.contributed = True
        self.contribution[:] = self.cluster.gradient(self.number, self.running)
        self.reducer.contribute(self.cluster.word(self.number, self.running))


class Cluster:
    """All nodes and all streams between them."""

    def __init__(
        self, shape: Shape, rounds: list[Tag], seed: int, dtype: Any, *, sliced: bool = False
    ) -> None:
        """`sliced`: reducers put work off to later slices; the caller makes slices short."""
        self.sliced = sliced
        self.partly = seed % 2 == 1  # chunks are contributed one by one
        self.shape, self.rounds, self.seed, self.dtype = shape, rounds, seed, dtype
        self.chance = random.Random(seed)
        self.streams: dict[tuple[int, int], Stream] = {}
        self.holds = 0
        everyone = range(shape.members + len(shape.subscribed))
        self.hosts = [Host(self, k, dtype) for k in everyone]

    def stream(self, sender: int, to: bytes) -> Stream:
        return self.streams.setdefault((sender, int.from_bytes(to, "big")), Stream())

    def stream_from(self, sender: bytes, to: int) -> Stream:
        return self.streams[int.from_bytes(sender, "big"), to]

    # --- what is summed ---------------------------------------------------------------------------

    def gradient(self, number: int, tag: Tag) -> Vector:
        """Return what a node contributes: numbers whose sums depend on the order of addition."""
        source = np.random.default_rng([self.seed, number, *tag])
        numbers = source.standard_normal(ELEMENTS) * 10.0 ** source.integers(-6, 6, ELEMENTS)
        result: Vector = numbers.astype(self.dtype)
        return result

    def word(self, number: int, tag: Tag) -> ControlWord:
        loss = float(self.gradient(number, tag)[0])
        return ControlWord(1, 1, bits((number,)), b"", loss, bits((number, 3)), b"", True)

    def sum_below(self, number: int, tag: Tag, chunk: int) -> list[Any]:
        """Return the expected sum of a chunk below a node on the chunk's way, element by element:
        own first, then children ascending."""
        total = list(self.gradient(number, tag)[(chunk - 1) * CHUNK : chunk * CHUNK])
        for child in self.shape.children_on(number, chunk):
            below = self.sum_below(child, tag, chunk)
            total = [a + b for a, b in zip(total, below, strict=True)]
        return total

    def whole_sum(self, tag: Tag) -> list[Any]:
        """Return the expected sum of all chunks."""
        roots = [(chunk, self.shape.root_of(chunk)) for chunk in range(1, CHUNKS)]
        return [x for chunk, root in roots for x in self.sum_below(root, tag, chunk)]

    def loss_below(self, number: int, tag: Tag) -> float:
        total = float(self.gradient(number, tag)[0])
        for child in self.shape.children(number):
            total += self.loss_below(child, tag)
        return total

    # --- running ----------------------------------------------------------------------------------

    def moves(self) -> list[tuple[str, Any]]:
        """Return everything that could happen next."""
        possible: list[tuple[str, Any]] = []
        for host in self.hosts:
            if host.running is None and host.todo:
                possible.append(("start", host))
            if host.running is not None and not host.contributed:
                possible.append(("contribute", host))
                if self.partly and not host.streamed:
                    possible.append(("contribute_chunks", host))
            if host.later:
                possible.append(("slice", host))
        for ends, stream in self.streams.items():
            if stream.begun or (stream.frames and not stream.held):
                possible.append(("deliver", ends))
        return possible

    def run(self) -> None:
        """Let things happen until nothing can."""
        while possible := self.moves():
            # Starting late is as likely as delivering, however many streams there are.
            kind = self.chance.choice(sorted({k for k, _ in possible}))
            what, which = self.chance.choice([m for m in possible if m[0] == kind])
            if what == "deliver":
                self.deliver(*which)
            else:
                getattr(which, what)()

    def deliver(self, sender: int, to: int) -> None:
        """Let a header, or the payload behind it, arrive."""
        stream, reducer = self.streams[sender, to], self.hosts[to].reducer
        name = self.shape.name(sender)
        header, payload = stream.frames[0]
        if not stream.begun:
            stream.target = reducer.arriving(name, header)
            stream.begun = True
            assert stream.target is not None, "a chunk that is needed was dropped"
            return
        stream.frames.popleft()
        stream.begun = False
        if stream.target is not None:
            stream.target[:] = payload
            reducer.received(name, header)

    def check(self) -> None:
        """Compare all results with the oracle, bit by bit."""
        for tag in self.rounds:
            expected = np.array(self.whole_sum(tag), self.dtype)
            first = self.hosts[0].results[tag]
            for host in self.hosts:
                reduced, word, squares = host.results[tag]
                assert reduced == expected.tobytes()
                assert word == first[1]
                assert squares == first[2]
            word = first[1]
            assert word.weight == self.shape.members
            assert word.loss_sum == self.loss_below(0, tag)
            wide = expected.astype(np.float64)
            exact = [
                float(sum(x * x for x in wide[k : k + CHUNK])) for k in range(0, ELEMENTS, CHUNK)
            ]
            assert np.allclose(first[2], exact, rtol=1e-12)


def chunk_header(kind: BulkKind, tag: Tag, index: int, length: int = -1) -> BulkHeader:
    """Return the header of one chunk; its right length unless another is given."""
    elements = min(CHUNK, ELEMENTS - (index - 1) * CHUNK)
    size = elements * 4 if length < 0 else length
    return BulkHeader(kind, LINEAGE, 1, 1, *tag, index, size)
