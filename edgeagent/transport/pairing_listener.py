"""Serves one invitation: strangers connect, and at most one of them gets the token.

Each connection has a machine of its own (`pairing.InviterEnd`), ends within `HANDSHAKE_SECONDS` +
`PAIRING_SECONDS`, and holds one frame of `MAX_PAIRING_BYTES` at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

from edgeagent.transport import bounds, tls
from edgeagent.transport.doorkeeper import Doorkeeper, Gate, Visitor
from edgeagent.transport.join_streams import JoinStream
from edgeagent.transport.pairing import Invitation, InviterEnd, Offer, State, Step
from protocols.errors import RemoteProtocolError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from edgeagent.transport.complaints import Complaints
    from edgeagent.transport.identity import Identity
    from edgeagent.transport.pairing_code import PairingCode


class PairingListener:
    """Waits until a code is used, void or expired.

    `sockets` are listening already and are closed by `stop`. `seconds` is how long the code lives.
    `tell` is called with a line for the user when somebody tries a wrong code.
    """

    def __init__(
        self,
        sockets: tuple[socket.socket, ...],
        identity: Identity,
        code: PairingCode,
        offer: Offer,
        seconds: float,
        tell: Callable[[str], None],
        complaints: Complaints,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + seconds
        self._invitation = Invitation(code, offer, identity.node, self._deadline, os.urandom)
        self._context = tls.join_server_context(identity)
        self._tell = tell
        self._complaints = complaints
        self._over: asyncio.Future[State] = self._loop.create_future()
        self._gate = Gate(sockets, self._serve, Doorkeeper(), complaints)
        self.invitee = ""  # the name of the device that was sent the token
        self.host = ""  # its address
        self.stored = False  # that device has said that it has stored the token

    async def run(self) -> State:
        """Serve until the invitation is over; return what has become of it."""
        self._gate.start()
        expiry = self._loop.call_at(self._deadline, self._look)
        try:
            return await asyncio.shield(self._over)
        finally:
            expiry.cancel()
            await self._gate.stop()

    def _look(self) -> None:
        """End the wait if the invitation is over."""
        state = self._invitation.state(self._loop.time())
        if state is not State.OPEN and not self._over.done():
            self._over.set_result(state)

    async def _serve(self, visitor: Visitor) -> None:
        reader = asyncio.StreamReader(limit=bounds.MAX_PAIRING_BYTES, loop=self._loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self._loop)
        transport = await visitor.secure(protocol, self._context)
        stream = JoinStream(reader, asyncio.StreamWriter(transport, protocol, reader, self._loop))
        end = self._invitation.connect()
        try:
            async with asyncio.timeout(bounds.PAIRING_SECONDS):
                await self._converse(stream, end, visitor)
        except RemoteProtocolError as error:
            self._complaints.refused(visitor.host, "pairing", f"broke the pairing: {error}")
        except TimeoutError:
            reason = f"did not finish within {bounds.PAIRING_SECONDS:.0f} s"
            self._complaints.refused(visitor.host, "pairing slow", reason)
        except (OSError, EOFError):
            pass  # it has gone: the invitation is as it was, or used, which `_look` sees
        finally:
            end.closed()
            stream.abort()
            self._look()

    async def _converse(self, stream: JoinStream, end: InviterEnd, visitor: Visitor) -> None:
        while end.step not in (Step.DONE, Step.REFUSED):
            body = await stream.read(bounds.MAX_PAIRING_BYTES)
            wrong = self._invitation.wrong
            answer = end.receive(self._loop.time(), body)
            if self._invitation.wrong > wrong:
                self._tell_wrong(visitor.host)
            if end.step is Step.READY:  # it has proven that it knows the code
                visitor.proven()
            if end.step is Step.STORED:
                self.invitee, self.host = end.invitee, visitor.host
            if answer:
                await stream.write(answer)
        self.stored = self.stored or end.step is Step.DONE
        with contextlib.suppress(OSError):
            await stream.close()

    def _tell_wrong(self, host: str) -> None:
        wrong, most = self._invitation.wrong, bounds.PAIRING_WRONG_TRIES
        self._tell(f"a device at {host} tried a wrong code ({wrong} of {most}, then it is void)")
