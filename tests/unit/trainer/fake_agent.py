"""A cluster of trainers without a network: the agents' side of the hand-over for k trainers.

Sums the contributions in node order, as a tree of one parent would, and hands the same bytes to
everybody. Checks after every iteration that all replicas are the same, byte for byte.
"""

from __future__ import annotations

import math
import socket
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from edgeagent.dataplane.integer_format import Integers
from edgeagent.handover import (
    Applied,
    Away,
    Begin,
    ChunksReady,
    Contributed,
    Costs,
    Decoder,
    End,
    EndHeard,
    Evaluated,
    ExitRequested,
    Finished,
    Hello,
    LeaveAsked,
    Progressed,
    Reduced,
    Saved,
    Work,
    encode,
)
from edgeagent.integer_blocks import BLOCK_WORDS
from edgeagent.shared_memory import SharedMemory, attach_shared_memory, receive_descriptors
from protocols.rounds.control_word import set_bits

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.handover import Message

LIMIT_SECONDS = 60.0


@dataclass
class Node:
    """One trainer, seen from its agent."""

    connection: socket.socket
    hello: Hello
    memory: SharedMemory
    decoder: Decoder
    inbox: deque[Message]
    meta: bytes = b""
    leaving: bool = False
    away: bool = False
    finished: str | None = None
    evaluated: list[Evaluated] = field(default_factory=list)
    progress: list[Progressed] = field(default_factory=list)
    # For each answer: what was announced of it before, with the values of these chunks then.
    early: list[list[tuple[ChunksReady, bytes]]] = field(default_factory=lambda: [[]])

    def send(self, message: Message) -> None:
        self.connection.sendall(encode(message))

    def receive(self) -> Message:
        """Return the next message that is not a mere notice."""
        while True:
            while not self.inbox:
                data = self.connection.recv(1 << 16)
                if not data:
                    raise EOFError("the trainer is gone")
                self.inbox.extend(self.decoder.feed(data))
            message = self.inbox.popleft()
            if isinstance(message, ExitRequested):
                self.leaving = True
            elif isinstance(message, Away):
                self.away = message.away
            elif isinstance(message, EndHeard | Saved | Costs):
                pass
            elif isinstance(message, Progressed):
                self.progress.append(message)
            elif isinstance(message, Evaluated):
                self.evaluated.append(message)
            elif isinstance(message, ChunksReady):
                self.early[-1].append((message, self._chunks(message)))
            else:
                return message

    def _chunks(self, ready: ChunksReady) -> bytes:
        """Return the values of the chunks that a message announces."""
        own, size = self.memory.contribution.array(self.hello.accumulate), self.hello.chunk_elements
        chunks = set_bits(ready.chunks)
        assert chunks, "nothing is announced"
        return b"".join(own[(c - 1) * size : c * size].tobytes() for c in chunks)

    def check_early(self, said: Contributed) -> None:
        """Check that what was announced is what the trainer has now handed in."""
        if not said.micro_batches:  # the last micro-batch came to nothing
            assert not self.memory.contribution.array(self.hello.accumulate).any()
            return
        for ready, values in self.early[-1]:
            about = (ready.iteration, ready.micro_batches, ready.turn)
            assert about == (said.iteration, tuple(sorted(said.micro_batches)), said.turn)
            assert values == self._chunks(ready), "a chunk changed after it was announced"
        chunks = [c for ready, _ in self.early[-1] for c in set_bits(ready.chunks)]
        assert len(chunks) == len(set(chunks)), "a chunk was announced twice"
        self.early.append([])

    def expect(self, kind: type[Message]) -> Message:
        message = self.receive()
        assert type(message) is kind, message
        return message

    def state(self) -> bytes:
        return bytes(self.memory.state.view())


def greet(connection: socket.socket) -> Node:
    """Take in one trainer's Hello."""
    connection.settimeout(LIMIT_SECONDS)
    descriptors = receive_descriptors(connection)
    decoder = Decoder()
    inbox: deque[Message] = deque()
    while not inbox:
        data = connection.recv(1 << 16)
        if not data:
            raise EOFError("the trainer is gone")
        inbox.extend(decoder.feed(data))
    hello = inbox.popleft()
    assert isinstance(hello, Hello)
    memory = attach_shared_memory(hello, descriptors)
    memory.close_descriptors()
    return Node(connection, hello, memory, decoder, inbox, meta=hello.meta)


@dataclass
class Cluster:
    """Trains until `steps`; `join_at[k]` is the iteration at which node k adopts the state.

    `shares(iteration, active)` gives each active node its number of micro-batches (default: as
    even as possible, rotating). `reads(iteration)` says whether the state after it is wanted, and
    compared. `before(iteration, nodes)` runs before an iteration's work.
    """

    connections: list[socket.socket]
    steps: int
    join_at: dict[int, int] = field(default_factory=dict)
    shares: Callable[[int, int], list[int]] | None = None
    before: Callable[[int, list[Node]], None] | None = None
    reads: Callable[[int], bool] | None = None  # is the state looked at after it? None: always
    poison: dict[int, float] = field(default_factory=dict)  # iteration: value put into the sum
    nodes: list[Node] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    states: list[bytes] = field(default_factory=list)
    metas: list[bytes] = field(default_factory=list)
    keep_states: bool = False
    failure: BaseException | None = None

    def run(self) -> None:
        """Serve until the end; what went wrong is in `failure`."""
        try:
            self._run()
        except BaseException as error:
            self.failure = error
        finally:
            for connection in self.connections:
                connection.close()

    def _run(self) -> None:
        self.nodes = [greet(connection) for connection in self.connections]
        assert len({node.hello.job for node in self.nodes}) == 1, "fingerprints differ"
        active: list[Node] = []
        start = self.nodes[0].hello.iteration
        for iteration in range(start, self.steps):
            active += self._joiners(iteration, start, active)
            if self.before is not None:
                self.before(iteration, active)
            self._iterate(iteration, active)
            for node in [node for node in active if node.leaving]:
                node.send(End("left", "", 0))
                active.remove(node)
                self._finish(node)
            if not active:
                return
        for node in active:
            node.send(End("steps", "", 0))
        for node in active:
            self._finish(node)

    def _joiners(self, iteration: int, start: int, active: list[Node]) -> list[Node]:
        joiners = [n for k, n in enumerate(self.nodes) if self.join_at.get(k, start) == iteration]
        for node in joiners:
            adopt = bool(active) or node is not self.nodes[0]
            donor = active[0] if active else self.nodes[0]
            if adopt and node is not donor:
                node.memory.state.view()[:] = donor.memory.state.view()
                node.meta = donor.meta
            node.send(Begin(iteration, adopt, node.meta if adopt else b"", self.steps))
        return joiners

    def _iterate(self, iteration: int, active: list[Node]) -> None:
        micro_batches = active[0].hello.micro_batches
        if self.shares is None:
            counts = _even(micro_batches, iteration, len(active))
        else:
            counts = self.shares(iteration, len(active))
        at = 0
        said: dict[int, Contributed] = {}
        for node, count in zip(active, counts, strict=True):
            node.send(Work(iteration, tuple(range(at, at + count))))
            at += count
        assert at == micro_batches
        for number, node in enumerate(active):
            said[number] = self._contribution(node, iteration)
        if not self._reassign(iteration, active, said, micro_batches):
            return  # everybody leaves: nobody is left to finish the iteration
        self._reduce(iteration, active, said)

    def _contribution(self, node: Node, iteration: int) -> Contributed:
        message = node.expect(Contributed)
        assert isinstance(message, Contributed)
        assert message.iteration == iteration
        node.check_early(message)
        return message

    def _reassign(
        self, iteration: int, active: list[Node], said: dict[int, Contributed], count: int
    ) -> bool:
        done = [m for contributed in said.values() for m in contributed.micro_batches]
        missing = sorted(set(range(count)) - set(done))
        assert len(done) == len(set(done)), "a micro-batch was counted twice"
        if not missing:
            return True
        helper = next((k for k, node in enumerate(active) if not node.leaving), None)
        if helper is None:
            return False
        active[helper].send(Work(iteration, tuple(missing)))
        said[helper] = self._contribution(active[helper], iteration)
        return self._reassign(iteration, active, said, count)

    def _reduce(self, iteration: int, active: list[Node], said: dict[int, Contributed]) -> None:
        hello = active[0].hello
        total, squares = self._sums(iteration, active)
        bitmap = b"\0" * len(said[0].gradient_bitmap)
        for contributed in said.values():
            bitmap = bytes(a | b for a, b in zip(bitmap, contributed.gradient_bitmap, strict=True))
        exact = [c.integer_buffers for c in said.values() if c.integer_buffers]
        wanted = {s for c in said.values() for s in (c.settings, c.other_settings)} - {b""}
        reduced = Reduced(
            iteration=iteration,
            buffer=iteration % 2,
            weight=hello.micro_batches,
            loss_sum=math.fsum(c.loss_sum for c in said.values()),
            gradient_bitmap=bitmap,
            integer_buffers=exact[0] if exact else b"",
            integer_buffers_agree=len(set(exact)) <= 1
            and all(c.integer_buffers_agree for c in said.values()),
            square_sums=squares,
            members=len(active),
            settings=min(wanted, default=b""),
            other_settings=max(wanted) if len(wanted) > 1 else b"",
            is_read=self._reads(iteration),
        )
        for node in active:
            node.memory.reduced[iteration % 2].array(hello.accumulate)[:] = total
            node.send(reduced)
        self._applied(iteration, active)

    def _sums(self, iteration: int, active: list[Node]) -> tuple[np.ndarray, tuple[float, ...]]:
        """Return R and the sum of squares of each of its chunks."""
        hello = active[0].hello
        if hello.wide_bytes:
            return _integer_sums(active)
        total = np.zeros(hello.elements, hello.accumulate)
        for node in active:
            total += node.memory.contribution.array(hello.accumulate)
        if iteration in self.poison:
            total[0] = self.poison[iteration]
        return total, square_sums(total, hello.chunk_elements)

    def _applied(self, iteration: int, active: list[Node]) -> None:
        metas, losses, skips = set(), set(), set()
        for node in active:
            message = node.expect(Applied)
            assert isinstance(message, Applied)
            assert message.iteration == iteration
            node.meta = message.meta
            metas.add(message.meta)
            losses.add(message.loss)
            skips.add(message.skipped)
        states = {node.state() for node in active} if self._reads(iteration) else {b""}
        assert len(metas) == 1, "scalars differ"
        assert len(states) == 1, "replicas differ"
        assert len(losses) == len(skips) == 1
        self.losses.append(losses.pop())
        if skips.pop():
            self.skipped.append(iteration)
        if self.keep_states or iteration == self.steps - 1:
            self.states += states
            self.metas += metas

    def _reads(self, iteration: int) -> bool:
        return self.reads is None or self.reads(iteration)

    def _finish(self, node: Node) -> None:
        message = node.expect(Finished)
        assert isinstance(message, Finished)
        node.finished = message.error


def _integer_sums(active: list[Node]) -> tuple[np.ndarray, tuple[float, ...]]:
    hello = active[0].hello
    size = hello.chunk_elements
    forms = [Integers(node.memory.wide.array("int64"), size // BLOCK_WORDS) for node in active]
    own = [node.memory.contribution.array("float32") for node in active]
    total, squares = np.array(own[0]), []
    for chunk, start in enumerate(range(0, hello.elements, size), 1):
        part = slice(start, start + size)
        for k in range(1, len(active)):
            sent = memoryview(bytes(forms[k].ascending(chunk, own[k][part], own=True)))
            forms[0].add(chunk, total[part], sent, total[part], first=k == 1)
        forms[0].settle(chunk, total[part], own=len(active) == 1)
        squares.append(forms[0].square_sum(total[part]))
    return total, tuple(squares)


def square_sums(total: np.ndarray, chunk: int) -> tuple[float, ...]:
    """Return the float64 sum of squares of each chunk."""
    with np.errstate(all="ignore"):
        wide = total.astype(np.float64)
        return tuple(float(np.sum(wide[at : at + chunk] ** 2)) for at in range(0, len(wide), chunk))


def ask_to_leave(node: Node) -> None:
    """As the agent does when its user presses Ctrl+C."""
    node.send(LeaveAsked())


def _even(micro_batches: int, iteration: int, active: int) -> list[int]:
    counts = [micro_batches // active] * active
    for extra in range(micro_batches % active):
        counts[(iteration + extra) % active] += 1
    return counts
