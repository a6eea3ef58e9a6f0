"""The trainer's end of the hand-over socket, over which trainer and agent exchange messages.

The script's thread is the only one that uses it, so calls block and each message is written whole.
While the trainer waits it sleeps in the kernel until the agent says something or Ctrl+C is pressed;
nothing polls on a clock, because that would delay every round.
"""

from __future__ import annotations

import contextlib
import selectors
from collections import deque
from typing import TYPE_CHECKING

from edgeagent.errors import AgentLost
from edgeagent.handover import AgentsHere, Decoder, LeaveAsked, encode
from edgeagent.shared_memory import send_descriptors

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from edgeagent.handover import Hello, Message
    from edgeagent.shared_memory import SharedMemory

# How many bytes are read at once, at most: messages are far smaller than these 64 KiB.
_READ_BYTES = 1 << 16


class AgentClient:
    """Speaks the hand-over protocol with the agent process.

    `wake` is a descriptor, -1 for none. Whenever it becomes readable while the client waits,
    `interrupted` is called, which must empty it. `leave_asked` becomes true when the agent asks the
    script to leave. `agents_here` is the number of agents on this device.
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
        self.agents_here = 1

    def greet(self, hello: Hello, memory: SharedMemory) -> None:
        """Pass the descriptors of the shared memory to the agent, then introduce the job."""
        send_descriptors(self._connection, memory)
        self.send(hello)

    def send(self, message: Message) -> None:
        """Send one message. If the agent is gone, the next `receive` says so."""
        with contextlib.suppress(OSError):
            self._connection.sendall(encode(message))

    def receive(self) -> Message:
        """Return the next message, waiting as long as it takes.

        `LeaveAsked` and `AgentsHere` are not returned; they set `leave_asked` and `agents_here`.
        Raises `AgentLost` if the agent has ended, so that no message will come.
        """
        while not self._inbox:
            self._take_in(None)
        return self._inbox.popleft()

    def poll(self) -> None:
        """Take in what has arrived, without waiting; raise `AgentLost` if the agent has ended."""
        self._take_in(0)

    def waiting(self) -> tuple[Message, ...]:
        """Return the messages that have been taken in and not yet received."""
        return tuple(self._inbox)

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._selector.close()
        self._connection.close()

    def _take_in(self, timeout: float | None) -> None:
        """Read once what is readable within `timeout` seconds, None for no limit."""
        for key, _ in self._selector.select(timeout):
            if key.fileobj is not self._connection:
                self._interrupted()
                continue
            try:
                data = self._connection.recv(_READ_BYTES)
            except OSError:
                data = b""
            if not data:
                if timeout is not None and self._inbox:  # its last words are to be received first
                    return
                raise AgentLost("the agent process ended; see its last message above")
            for message in self._decoder.feed(data):
                if isinstance(message, LeaveAsked):
                    self.leave_asked = True
                elif isinstance(message, AgentsHere):
                    self.agents_here = message.agents
                else:
                    self._inbox.append(message)
