"""The agent's end of the hand-over: receives the trainer's messages and sends ours, without
blocking.

The trainer belongs to this project, so what is wrong with its messages is an `EdgeAgentError`. What
it announces is still checked against the limits that peers will enforce.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING, cast

from edgeagent.errors import EdgeAgentError
from edgeagent.handover import (
    HANDOVER_VERSION,
    AgentsHere,
    Decoder,
    Hello,
    Message,
    SaveAside,
    Settle,
    Work,
    encode,
)
from edgeagent.integer_blocks import BLOCK, BLOCK_WORDS, MOST_BLOCKS
from edgeagent.planner.work_cost import WorkCost
from edgeagent.shared_memory import SharedMemory, attach_shared_memory, wait_for_descriptors
from protocols import limits

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from edgeagent.launch import Child

CHILD_END_S = 5.0  # from the end of a trainer's connection to its exit status
CHILD_POLL_S = 0.02


class TrainerLink(asyncio.Protocol):
    """The connection to one trainer. `on_message` gets each message after `Hello`; `on_end` is
    called when the trainer has closed it."""

    def __init__(self, on_message: Callable[[Message], None], on_end: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_end = on_end
        self._decoder = Decoder()
        self._connection: socket.socket | None = None  # until there is a transport
        self._transport: asyncio.Transport | None = None
        self._hello: asyncio.Future[Hello] | None = None
        self._holds_work = self._holds_rejoin = False
        self._held: list[Message] = []
        # What is to be written, each message with what has to be done before.
        self._queue: deque[tuple[Message, asyncio.Future[None] | None]] = deque()

    def expect(self, connection: socket.socket) -> None:
        """Take the connection of the trainer; messages are sent on it from now on."""
        connection.setblocking(False)
        self._connection = connection

    async def open(self, connection: socket.socket) -> tuple[Hello, SharedMemory]:
        """Wait for the trainer's `Hello` and map its memory.

        Raises `EdgeAgentError` if this agent cannot serve that trainer, EOFError if the trainer
        ended before.
        """
        loop = asyncio.get_running_loop()
        self.expect(connection)
        descriptors = await wait_for_descriptors(connection)
        self._hello = loop.create_future()
        await loop.create_unix_connection(lambda: self, sock=connection.dup())
        hello = await self._hello
        check_hello(hello)
        memory = attach_shared_memory(hello, descriptors)
        memory.close_descriptors()
        return hello, memory

    def send(self, message: Message, ready: asyncio.Future[None] | None = None) -> None:
        """Queue `message`, after those that were held; it is dropped if the trainer has ended.

        With `ready`, it is written only when that is done, and whatever is sent later follows it;
        it is dropped if `ready` fails or is cancelled: what it speaks of is not there then.
        For a trainer that has said nothing yet (it may still import torch) it is written to the
        socket at once and waits there.
        """
        if self._is_held(message):
            self._held.append(message)
            return
        if not isinstance(message, Settle | AgentsHere):  # of which the place does not matter
            self._release()
        self._write(message, ready)

    def hold(self, *, work: bool, rejoin: bool) -> None:
        """From now on keep back, or no longer, micro-batches to compute, and the question that a
        trainer answers before this device joins a cluster. Whatever else is sent follows them, so
        that the order stays: for the node, the trainer is just late."""
        self._holds_work, self._holds_rejoin = work, rejoin
        if not any(self._is_held(message) for message in self._held[:1]):
            self._release()

    @property
    def is_holding(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._held)

    def _is_held(self, message: Message) -> bool:
        if isinstance(message, Work):
            return self._holds_work and bool(message.micro_batches)
        return self._holds_rejoin and isinstance(message, SaveAside)

    def _release(self) -> None:
        held, self._held = self._held, []
        for message in held:
            self._write(message)

    def _write(self, message: Message, ready: asyncio.Future[None] | None = None) -> None:
        self._queue.append((message, ready))
        if ready is not None:
            ready.add_done_callback(self._work_off)
        self._work_off()

    def _work_off(self, _: object = None) -> None:
        """Write the messages that need not wait any more, in their order."""
        while self._queue and ((ready := self._queue[0][1]) is None or ready.done()):
            message, _ = self._queue.popleft()
            if ready is None or not (ready.cancelled() or ready.exception()):
                self._put(message)

    def _put(self, message: Message) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(message))
        elif self._transport is None and self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.send(encode(message))

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if self._transport is not None:
            self._transport.close()

    # --- asyncio.Protocol ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not derive from it

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        for message in self._decoder.feed(data):
            if self._hello is not None and not self._hello.done():
                self._greeted(message)
            else:
                self._on_message(message)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        if self._hello is not None and not self._hello.done():
            self._hello.set_exception(EOFError("the trainer ended before training began"))
        else:
            self._on_end()

    def _greeted(self, message: Message) -> None:
        assert self._hello is not None
        if isinstance(message, Hello):
            self._hello.set_result(message)
        else:
            self._hello.set_exception(EdgeAgentError("the trainer did not introduce itself"))


async def exit_status(child: Child, seconds: float = CHILD_END_S) -> int | None:
    """Return the status of a child that is about to end, None if it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while child.poll() is None and time.monotonic() < deadline:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(CHILD_POLL_S)
    return child.poll()


def check_hello(hello: Hello) -> None:
    """Raise `EdgeAgentError` if the job is beyond the limits that peers enforce."""
    if hello.version != HANDOVER_VERSION:
        raise EdgeAgentError("the agent and the trainer are of different edgeagent versions")
    for what, value, most in (
        ("training state in bytes", hello.state_bytes, limits.MAX_STATE_BYTES),
        (
            "number of micro-batches in a global batch",
            hello.micro_batches,
            limits.MAX_MICRO_BATCHES,
        ),
        ("size of the state's scalars in bytes", len(hello.meta), limits.MAX_STATE_META_BYTES),
        ("number of parameters and buffers", len(hello.job), limits.MAX_JOB_FIELDS),
    ):
        if value > most:
            raise EdgeAgentError(f"the {what} is {value}, over the limit of {most}")
    if hello.rounded_chunks < 0 or (hello.rounded_chunks and hello.accumulate != "float32"):
        raise EdgeAgentError("the trainer wants numbers rounded that cannot be")
    if not WorkCost(hello.fixed_cost, hello.square_cost).is_possible:
        raise EdgeAgentError("the trainer announced subnets of an impossible cost")
    if hello.lacking and not hello.slots:
        raise EdgeAgentError("the trainer lacks parts of what is not divided")
    if not 0 <= hello.least_share <= hello.micro_batches or not 0 <= hello.last_round_counts <= 1:
        raise EdgeAgentError("the trainer announced impossible shares of a round of subnets")
    if hello.wide_bytes and not _are_in_blocks(hello):
        raise EdgeAgentError("the trainer announced an impossible layout of integer sums")
    if not 0 <= hello.constant_bytes <= hello.state_bytes:
        raise EdgeAgentError("the trainer announced an impossible layout of its state")


def _are_in_blocks(hello: Hello) -> bool:
    """Return whether the gradients can be sums of integers (`integer_blocks.py`)."""
    blocks, odd = divmod(hello.elements, BLOCK_WORDS)
    chunk, more = divmod(hello.chunk_elements, BLOCK_WORDS)
    return (
        hello.accumulate == "float32"
        and hello.rounded_chunks == 0
        and hello.wide_bytes == 8 * BLOCK * blocks
        and odd == more == 0
        and 0 < chunk <= MOST_BLOCKS
        and blocks % chunk == 0
    )
