"""The invitee's side: finds the inviter and takes the token from it.

Nothing that the other end says is believed before it has proven that it knows the code; until then
only its refusals are shown, in our own words.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from edgeagent.config import split_address
from edgeagent.errors import EdgeAgentError
from edgeagent.transport import bounds
from edgeagent.transport.certificate import node_id
from edgeagent.transport.discovery import PAIRING_SERVICE, Discovery
from edgeagent.transport.errors import Unreachable
from edgeagent.transport.join_streams import JoinStream
from edgeagent.transport.pairing import InviteeEnd, Offer, PairingRefused, Step
from edgeagent.transport.pairing_wire import Reason
from edgeagent.transport.tls import unauthenticated_client_context
from protocols import limits
from protocols.errors import RemoteProtocolError

if TYPE_CHECKING:
    from edgeagent.transport.pairing_code import PairingCode

Agree = Callable[[str, str], None]
Store = Callable[[Offer], None]

_REASONS = {
    Reason.VERSION: "it has another version of edgeagent: install the same on both devices",
    Reason.CHANNEL: "it waits for another code: compare the first two digits",
    Reason.CODE: (
        f"the code is wrong: read it again; after {bounds.PAIRING_WRONG_TRIES} wrong ones it is "
        "void"
    ),
    Reason.OVER: "its code has expired, was used, or is void: run `edgeagent invite` there again",
    Reason.BUSY: "another device is being paired there at this moment: try again",
}


class Invitee:
    """Pairs this device, called `name`, by a code.

    `agree(cluster, inviter)` raises an `EdgeAgentError` if that cluster's token is not wanted, and
    `store(offer)` if it cannot be kept; the inviter is told only of a success.
    """

    def __init__(self, code: PairingCode, name: str, agree: Agree, store: Store) -> None:
        self._code = code
        self._name = name
        self._agree = agree
        self._store = store
        self._has_shown = False  # whether the other end can have tested a guess of the code

    async def pair_with(self, address: str) -> Offer:
        """Pair with the inviter at `address` (HOST:PORT), within `PAIRING_SECONDS`.

        Raises `Unreachable` if no inviter answers there, else an `EdgeAgentError` that says why it
        came to nothing.
        """
        try:
            async with asyncio.timeout(bounds.PAIRING_SECONDS):
                return await self._talk(address)
        except PairingRefused as refused:
            raise EdgeAgentError(f"{address}: {_REASONS[refused.reason]}") from None
        except RemoteProtocolError as error:
            raise Unreachable(f"{address} answers, but not as an inviter: {error}") from None
        except ssl.SSLError:
            raise Unreachable(f"{address} answers, but not as an inviter: no TLS 1.3") from None
        except TimeoutError:
            raise Unreachable(
                f"{address} did not answer within {bounds.PAIRING_SECONDS:.0f} s"
            ) from None
        except EOFError:
            raise Unreachable(
                f"{address} closed the connection: is `edgeagent invite` still waiting there?"
            ) from None
        except (OSError, UnicodeError) as error:
            text = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Unreachable(f"{address} cannot be reached: {text}") from None

    async def _talk(self, address: str) -> Offer:
        host, port = split_address(address)
        reader, writer = await asyncio.open_connection(
            host,
            port,
            ssl=unauthenticated_client_context(),
            server_hostname="",
            limit=bounds.MAX_PAIRING_BYTES,
            ssl_handshake_timeout=limits.HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=bounds.TLS_CLOSE_SECONDS,
        )
        stream = JoinStream(reader, writer)
        try:
            certificate = node_id(stream.peer_certificate)
            end = InviteeEnd(self._code, certificate, self._name, self._agree, os.urandom)
            await stream.write(end.hello)
            while end.step is not Step.STORED:
                answer = end.receive(await stream.read(bounds.MAX_PAIRING_BYTES))
                self._has_shown = True  # the proof is the first answer
                if answer:
                    await stream.write(answer)
            if end.offer is None:
                raise RemoteProtocolError("sent no token")
            self._store(end.offer)
            await stream.write(end.stored())
            await stream.close()
            return end.offer
        finally:
            stream.abort()

    async def find(self, seconds: float = bounds.PAIRING_FIND_SECONDS) -> Offer:
        """Pair with an inviter that announces this code's channel by multicast DNS.

        At most `MAX_INVITERS_TRIED` are tried, one after another, within `seconds` for finding
        them. Raises `EdgeAgentError`: the reason of the last one, or that none was found.
        """
        found: asyncio.Queue[tuple[str, ...]] = asyncio.Queue(bounds.MAX_INVITERS_TRIED)
        trouble: list[str] = []

        def note(addresses: tuple[str, ...]) -> None:
            if not found.full():  # surplus ones are not tried, so they need not be kept
                found.put_nowait(addresses)

        discovery = Discovery(self._code.channel, (), note, trouble.append, service=PAIRING_SERVICE)
        if not await discovery.start():
            raise EdgeAgentError(trouble[-1])
        last: EdgeAgentError | None = None
        try:
            async with asyncio.timeout(seconds):
                for _ in range(bounds.MAX_INVITERS_TRIED):
                    try:
                        return await self._try(await found.get())
                    except Unreachable as error:
                        last = last or error
                    except EdgeAgentError as error:
                        last = error
                        if found.empty():
                            break
        except TimeoutError:
            pass  # what is known by now is said below
        finally:
            await discovery.stop()
        raise last or EdgeAgentError(
            f"no invitation with a code that begins with {self._code.channel} was found by "
            "multicast DNS: is `edgeagent invite` still waiting? If so, name its device with "
            "--peer HOST:PORT, which its terminal shows"
        )

    async def _try(self, addresses: tuple[str, ...]) -> Offer:
        """Pair with one inviter: the first of its addresses that answers as one decides. Whoever
        poses as the inviter can test one guess of the code with our proof, and would test one at
        each address that he announces."""
        last = Unreachable("the invitation was announced without an address")
        self._has_shown = False
        for address in addresses:
            try:
                return await self.pair_with(address)
            except Unreachable as error:
                last = error
                if self._has_shown:
                    break
        raise last
