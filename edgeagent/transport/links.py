"""A link that is up: three connections that begin and end together.

`link_up` is the listener's first call and `link_down` its last, which comes once. Both ends take
part in a clean close: each marks the end of both its streams with a goodbye and waits for a bounded
time for the other's goodbye, because the end of a TLS stream may overtake data that the receiver
has not read yet. After `close` nothing is delivered.

How a connection ends without a goodbye is evidence of what happened at the other end (`LinkEnd`).
The system ends a killed process's connections all at once: in order if the process had read
everything that had arrived on one, and with a reset otherwise. So a process has died if the one
that carries nothing (`Lifeline`) ends in order and another one in any way, shortly one after the
other.

The orderly end of one connection alone proves nothing. A TLS library closes a connection like that
after damaged bytes, and so does a proxy on the path which nothing has passed for long. Only if
something on the path had reset the lifeline some time before has the orderly end of another
connection to do.
"""

from __future__ import annotations

import asyncio
import contextlib
from time import monotonic  # the clock of the meter
from typing import TYPE_CHECKING, NamedTuple

from edgeagent.transport import bounds
from edgeagent.transport.bulk_stream import BulkStream
from edgeagent.transport.framing import ControlStream
from edgeagent.transport.lifeline import Lifeline
from edgeagent.transport.tcp_info import sending_of, unsent_of
from protocols import limits
from protocols.errors import LocalProtocolError, RemoteProtocolError
from protocols.network.link_end import LinkEnd

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.transport.api import LinkListener, PeerInfo
    from edgeagent.transport.framing import Connection
    from edgeagent.transport.traffic import Flow, Traffic
    from protocols.network.progress import Sending
    from protocols.wire.bulk import BulkHeader


class Connections(NamedTuple):
    """The TLS connections of one link."""

    control: Connection
    bulk: Connection
    life: Connection


class TcpLink:
    """An open link over three TLS connections; implements `api.Link`."""

    def __init__(
        self,
        peer: PeerInfo,
        connections: Connections,
        listener: LinkListener,
        gone: Callable[[TcpLink], None],
        log: Callable[[str], None],
        traffic: Traffic,
    ) -> None:
        """`gone` is called immediately before the listener's `link_down`; `traffic` is that of all
        links of this device."""
        control, bulk, life = connections
        self._peer = peer
        self._listener = listener
        self._gone = gone
        self._log = log
        self._connections = (control, bulk)
        self._control = ControlStream(
            control, self._control_received, self._progress, self._failed, self._lost
        )
        self._bulk = BulkStream(
            bulk,
            self._bulk_arriving,
            self._bulk_received,
            self._bulk_goodbye,
            self._progress,
            self._failed,
            self._lost,
            traffic,
        )
        self._life = Lifeline(life, self._failed, self._life_ended)
        self._open = len(self._connections)  # number of those that have not ended
        self._closing = False  # this end has begun a clean close
        self._closing_task: asyncio.Task[None] | None = None
        self._said_goodbye = False
        self._heard_control_goodbye = False
        self._heard_bulk_goodbye = False
        self._reading_bulk = True
        self._first_end: LinkEnd | None = None  # how the connection that ended first has ended
        self._first_text = ""
        self._patience: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._down = asyncio.Event()

    def start(self) -> None:
        """Report `link_up`, then begin to deliver."""
        try:
            self._listener.link_up(self)
        except RemoteProtocolError as error:
            self._failed(str(error))
        if not self._down.is_set():
            self._connections[0].attach(self._control)
            self._connections[1].attach(self._bulk)
            self._life.watch()
            if not self._reading_bulk:
                self._bulk.hold()

    @property
    def peer(self) -> PeerInfo:
        """Who is at the other end (proven by its key)."""
        return self._peer

    @property
    def bulk_queued(self) -> int:
        """Payload bytes accepted and not yet written; some 100 KiB more may wait in the kernel."""
        return self._bulk.queued

    @property
    def bulk_waiting(self) -> int:
        """`bulk_queued`, and what the system holds of the bulk connection and has not sent yet."""
        return self._bulk.queued + unsent_of(self._connections[1].transport)

    @property
    def bulk_bytes_sent(self) -> int:
        """Payload bytes written so far."""
        return self._bulk.bytes_sent

    @property
    def bulk_bytes_received(self) -> int:
        """Payload bytes received so far, dropped ones included."""
        return self.flow.received_bytes

    @property
    def incoming_rate(self) -> float | None:
        """The payload bytes/s at which large frames arrive; None while that is not known."""
        return self._bulk.meter.rate(monotonic())

    @property
    def rate_is_alone(self) -> bool:
        """Whether `incoming_rate` was measured while no other link was busy."""
        return self._bulk.meter.is_alone

    def fell(self, rate: float) -> None:
        """The link carries no more than `rate` bytes/s at present."""
        self._bulk.meter.fell(rate)

    @property
    def flow(self) -> Flow:
        """What this link carries, for the device's `Traffic`."""
        return self._bulk.flow

    @property
    def sending(self) -> tuple[Sending, ...]:
        """How the control and the bulk connection send; empty if that is not known."""
        known = [sending_of(connection.transport) for connection in self._connections]
        both = tuple(sending for sending in known if sending is not None)
        return both if len(both) == len(known) else ()

    @property
    def is_ending(self) -> bool:
        """Whether it delivers nothing more, so that a new link may replace it."""
        return self._closing or self._first_end is not None or self._down.is_set()

    @property
    def is_usable(self) -> bool:
        """Whether what is sent on it can still arrive."""
        return not (self.is_ending or self._heard_control_goodbye)

    def send_control(self, frame: bytes) -> None:
        """Queue one control frame; ignored when the link is closing or gone.

        Raises `LocalProtocolError` for an empty or oversized frame.
        """
        if not 0 < len(frame) <= limits.MAX_CONTROL_BYTES:
            raise LocalProtocolError(f"control frame of {len(frame)} bytes")
        if self.is_usable:
            self._control.send(frame)

    def send_bulk(self, header: BulkHeader, payload: memoryview) -> None:
        """Queue one bulk frame; ignored when the link is closing or gone.

        `payload` is not copied when queued. Raises `LocalProtocolError` if its size is not
        `header.length`.
        """
        flat = payload if payload.format == "B" and payload.ndim == 1 else payload.cast("B")
        if len(flat) != header.length:
            raise LocalProtocolError(f"{len(flat)} payload bytes, header says {header.length}")
        if self.is_usable:
            self._bulk.send(header, flat)

    def pause_bulk(self) -> None:
        """Stop reading bulk frames. What is decrypted already (< 1 MiB) may still be delivered."""
        self._read_bulk(False)

    def resume_bulk(self) -> None:
        """Read bulk frames again."""
        self._read_bulk(True)

    def discard_bulk(self) -> None:
        """Write no more into the buffer of the payload that is being received."""
        self._bulk.discard()

    def drop_sums(self) -> None:
        """Send no further partial sum of those that are queued; what is left of one that is being
        sent is copied."""
        self._bulk.drop_sums()

    async def close(self, *, flush: bool) -> None:
        """Close all connections, after sending what is queued if `flush`. Idempotent.

        Without `flush`, frames of which nothing was sent are dropped. If the peer hangs, this takes
        at most FLUSH_SECONDS + CLOSE_SECONDS. `link_down` was reported when this returns.
        """
        if self._down.is_set():
            return
        if not flush:
            self._bulk.drop_queue()
        if self._closing_task is None:
            self._closing = True
            self._bulk.discard()
            self._read_bulk(True)
            wait = bounds.FLUSH_SECONDS if flush else bounds.CLOSE_SECONDS
            self._closing_task = asyncio.create_task(self._close(wait))
        self._progress()
        await asyncio.shield(self._closing_task)  # it goes on if this caller is cancelled

    async def _close(self, wait: float) -> None:
        """Wait so long until all is written and has gone, and then for the peer; end the link."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._idle.wait()
        before, left = self._unsent + 1, self._unsent
        while not self._down.is_set() and left < before:  # a slow link may need a while for it
            await self._wait_down(bounds.CLOSE_SECONDS)
            before, left = left, self._unsent if loop.time() < deadline else left
        self.finish("closed by us", LinkEnd.GOODBYE if self._said_goodbye else LinkEnd.CUT)

    def cut(self, reason: str, why: LinkEnd) -> None:
        """End the link now; `link_down` is reported before this returns. Idempotent."""
        self.finish(reason, why)

    def finish(self, reason: str, why: LinkEnd) -> None:
        """End the link now and report it, once."""
        if self._down.is_set():
            return
        self._down.set()
        if self._patience is not None:
            self._patience.cancel()
        self._idle.set()
        self._control.stop()
        self._bulk.stop()
        for connection in self._connections:
            if why.is_clean:
                connection.close()
            else:
                connection.abort()
        self._life.reset()
        self._gone(self)
        self._listener.link_down(self, reason, why)

    # What the streams report.

    def _control_received(self, frame: bytes) -> None:
        if not frame:
            self._heard_control_goodbye = True
            self._bulk.drop_queue()
            self._progress()
            if not self._down.is_set() and not self._closing and self._patience is None:
                self._patience = asyncio.get_running_loop().call_later(
                    bounds.FLUSH_SECONDS + bounds.CLOSE_SECONDS, self._end_unfinished
                )
        elif self._heard_control_goodbye:
            raise RemoteProtocolError("control frame after its goodbye")
        elif not self.is_ending:
            self._listener.control_received(self, frame)

    def _end_unfinished(self) -> None:
        """The peer has said goodbye on the control connection, but does not finish to close."""
        self.finish("closed by the peer", LinkEnd.GOODBYE)

    def _bulk_arriving(self, header: BulkHeader) -> memoryview | None:
        if self._heard_bulk_goodbye:
            raise RemoteProtocolError("bulk frame after its goodbye")
        return None if self.is_ending else self._listener.bulk_arriving(self, header)

    def _bulk_received(self, header: BulkHeader) -> None:
        if not self.is_ending:
            self._listener.bulk_received(self, header)

    def _bulk_goodbye(self) -> None:
        self._heard_bulk_goodbye = True
        self._progress()

    def _failed(self, reason: str) -> None:
        if not self._down.is_set():
            self._log(f"closed the link to {self._peer.name}: {reason}")
            self.finish(reason, LinkEnd.PROTOCOL_ERROR)

    def _lost(self, error: Exception | None) -> None:
        """The control or the bulk connection has ended."""
        self._open -= 1
        if self._down.is_set():
            return
        if self._closing and self._said_goodbye:
            self.finish("closed by us", LinkEnd.GOODBYE)
            return
        if self._heard_control_goodbye and self._first_end is None:
            self.finish("closed by the peer", LinkEnd.GOODBYE)
            return
        said_goodbye = self._heard_control_goodbye or self._heard_bulk_goodbye
        why = how_it_ended(error, said_goodbye=said_goodbye)
        text = f"connection lost ({error})" if error and str(error) else "connection lost"
        if self._life.has_just_ended_in_order:
            self._died(text)
        elif why is LinkEnd.PROCESS_ENDED and self._life.was_lost_before:
            self.finish(text, why)
        elif self._first_end is None:
            unproven = LinkEnd.RESET if why is LinkEnd.PROCESS_ENDED else why
            self._wait_for_the_others(unproven, text)
        self._look()

    def _life_ended(self) -> None:
        """The lifeline has ended."""
        others_end = self._open < len(self._connections)
        if others_end and self._life.has_just_ended_in_order and not self._down.is_set():
            self._died(self._first_text or "connection lost")
        self._look()

    def _died(self, text: str) -> None:
        """The process at the other end has died, unless it had left before."""
        left = self._heard_control_goodbye
        self.finish(text, LinkEnd.GOODBYE if left else LinkEnd.PROCESS_ENDED)

    def _look(self) -> None:
        """Conclude if all connections have ended, so that no more can be learned."""
        if not self._open and self._life.has_ended:
            self._conclude()

    def _wait_for_the_others(self, why: LinkEnd, text: str) -> None:
        """Deliver nothing more, but read on to see how the other connections end, and whether a
        goodbye comes before that."""
        self._first_end, self._first_text = why, text
        self._control.mute()
        self._bulk.mute()
        self._read_bulk(True)
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(bounds.END_SECONDS, self._read_the_last)

    def _read_the_last(self) -> None:
        """The time for the other connections is over. If the loop has stood still meanwhile, their
        ends have come and were not read yet."""
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(bounds.LAST_READ_SECONDS, self._conclude)

    def _conclude(self) -> None:
        if self._first_end is not None:
            self.finish(self._first_text, self._first_end)

    def _progress(self) -> None:
        """Take the next step of a clean close, if one is going on."""
        ended = self._down.is_set() or self._first_end is not None
        if ended or not (self._closing or self._heard_control_goodbye):
            return
        if not self._said_goodbye and self._bulk.idle and self._control.idle:
            heard_all = self._heard_control_goodbye and self._heard_bulk_goodbye
            if self._closing or heard_all:
                self._say_goodbye()
        if not self._said_goodbye:
            return
        if self._closing and self._heard_control_goodbye:
            self.finish("closed by us", LinkEnd.GOODBYE)
        elif self._heard_control_goodbye and self._heard_bulk_goodbye:
            self.finish("closed by the peer", LinkEnd.GOODBYE)

    def _say_goodbye(self) -> None:
        self._said_goodbye = True
        self._bulk.say_goodbye()
        self._control.send(b"")
        self._idle.set()

    # Helpers.

    @property
    def _unsent(self) -> int:
        """Bytes that were written and that this device still has."""
        transports = (connection.transport for connection in self._connections)
        living = [transport for transport in transports if not transport.is_closing()]
        return sum(t.get_write_buffer_size() + unsent_of(t) for t in living)

    def _read_bulk(self, wanted: bool) -> None:
        if wanted == self._reading_bulk or self._down.is_set():
            return
        self._reading_bulk = wanted
        if wanted:
            self._bulk.go_on()
        else:
            self._bulk.hold()

    async def _wait_down(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._down.wait()


def how_it_ended(error: Exception | None, *, said_goodbye: bool = False) -> LinkEnd:
    """Return what the end of one connection proves.

    `error` is what the event loop reported: None after an orderly end before which everything was
    read. A write after an orderly end leads to "broken pipe" or "connection reset"; then a goodbye
    may be among what was not read any more, so these errors prove nothing.

    `said_goodbye`: there was a goodbye on one connection of this link, and the other broke before
    all was read. Then a living agent has closed the link, and its reason was not read any more. An
    agent that sleeps while the others close their links to it writes first when it wakes, and so
    loses what they have said.
    """
    if error is None:
        return LinkEnd.RESET if said_goodbye else LinkEnd.PROCESS_ENDED
    if isinstance(error, ConnectionResetError | BrokenPipeError | ConnectionAbortedError):
        return LinkEnd.RESET
    return LinkEnd.SOCKET_ERROR
