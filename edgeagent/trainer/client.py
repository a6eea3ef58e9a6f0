"""The trainer's end of the hand-over socket.

Law: blocking, one thread, frames are written whole. Waiting means sleeping in the kernel until the
agent says something or Ctrl+C is pressed; nothing polls on a clock.
"""

from __future__ import annotations

import contextlib
import selectors
from collections import deque
from typing import TYPE_CHECKING

from edgeagent.errors import AgentLost
from edgeagent.handover import Decoder, LeaveAsked, encode
from edgeagent.shared_memory import send_descriptors

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from edgeagent.handover import Hello, Message
    from edgeagent.shared_memory import SharedMemory

_READ_BYTES = 1 << 16


class AgentClient:
    """Speaks the hand-over protocol with the agent process.

    `interrupted` is called whenever `wake` (a descriptor, -1 for none) becomes readable while
    waiting; it must empty it.
    """

    def __init__(
        self, connection: socket.socket, wake: int, interrupted: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._connection.setblocking(True)
        self._interrupted = interrupted
        self._decoder = Decoder()
        self._inbox: deque[Message] = deque()
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ)
        if wake >= 0:
            self._selector.register(wake, selectors.EVENT_READ)
        self.leave_asked = False

    def greet(self, hello: Hello, memory: SharedMemory) -> None:
        """Pass the shared memory and introduce the job."""
        send_descriptors(self._connection, memory)
        self.send(hello)

    def send(self, message: Message) -> None:
        """Send one message. If the agent is gone, the next `receive` says so."""
        with contextlib.suppress(OSError):
            self._connection.sendall(encode(message))

    def receive(self) -> Message:
        """Return the next message, waiting as long as it takes; `AgentLost` if none will come.

        `LeaveAsked` is not returned; it sets `leave_asked`.
        """
        while not self._inbox:
            self._take_in(None)
        return self._inbox.popleft()

    def poll(self) -> None:
        """Take in what has arrived, without waiting."""
        self._take_in(0)

    def waiting(self) -> tuple[Message, ...]:
        """Return the messages that have been taken in and not yet received."""
        return tuple(self._inbox)

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._selector.close()
        self._connection.close()

    def _take_in(self, timeout: float | None) -> None:
        for key, _ in self._selector.select(timeout):
            if key.fileobj is not self._connection:
                self._interrupted()
                continue
            try:
                data = self._connection.recv(_READ_BYTES)
            except OSError:
                data = b""
            if not data:
                if timeout is not None and self._inbox:
                    return
                raise AgentLost("the agent process ended; see its last message above")
            for message in self._decoder.feed(data):
                if isinstance(message, LeaveAsked):
                    self.leave_asked = True
                else:
                    self._inbox.append(message)
