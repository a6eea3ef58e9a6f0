"""The joiner's side of a join connection: asks who is at an address, and asks to be let in.

Nothing that the other end says is believed, or shown as more than a hint, before its proof of the
token was checked. An unreachable, wrong or hostile address leads to one `EdgeAgentError`.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import TYPE_CHECKING

from edgeagent.config import split_address
from edgeagent.errors import JobMismatch, JoinRefused
from edgeagent.transport import bounds, join_wire
from edgeagent.transport.certificate import check_certificate, node_id
from edgeagent.transport.connecting import connect
from edgeagent.transport.errors import (
    Busy,
    Expelled,
    NotAnAgent,
    NotReady,
    OtherToken,
    OtherVersion,
    SameIdentity,
    Unreachable,
)
from edgeagent.transport.job import (
    Job,
    batch_there,
    difference_text,
    first_difference,
    names_text,
)
from edgeagent.transport.join_streams import JoinSecret, JoinStream
from edgeagent.transport.join_wire import Admitted, Reason, Refusal, ServerHello, ServerProof
from edgeagent.transport.proof import Role, Transcript, make_proof, proof_is_right
from edgeagent.transport.rounding import REMEDY, UPDATE, unlike
from edgeagent.transport.tls import unauthenticated_client_context
from edgeagent.transport.token import job_tag
from protocols import limits
from protocols.errors import RemoteProtocolError
from protocols.wire.packing import decode_tagged, encode_tagged

if TYPE_CHECKING:
    import socket

    from edgeagent.recipe import Recipe
    from edgeagent.transport.api import PeerInfo, Standing


async def ask(
    address: str,
    me: PeerInfo,
    secret: JoinSecret,
    versions: tuple[int, ...] = join_wire.VERSIONS,
    reachable: tuple[str, ...] = (),
    interface: str = "",
    connected: socket.socket | None = None,
) -> Standing:
    """Return what the agent at `address` (HOST:PORT of a join listener) says of itself.

    Both ends prove the token, but nobody is admitted. `reachable` are the addresses of our own join
    listener; with `interface`, the question goes through that one; `connected` is a connection to
    `address` that is open already. This takes at most `JOIN_SECONDS`. Raises `Unreachable`,
    `JoinRefused`, `SameIdentity`.
    """
    talk = _Conversation(address, me, secret, None, versions, reachable, interface)
    talk.connected = connected
    return await talk.run()


async def ask_recipe(
    address: str, me: PeerInfo, secret: JoinSecret, interface: str = ""
) -> tuple[Standing, Recipe | None]:
    """Return what the agent at `address` says of itself, and the recipe of its job, None if it has
    none. Raises as `ask` does, and `JoinRefused` if it is too old to tell one."""
    talk = _Conversation(address, me, secret, None, join_wire.VERSIONS, (), interface)
    talk.wants_recipe = True
    standing = await talk.run()
    return standing, talk.recipe


async def join(
    address: str,
    me: PeerInfo,
    secret: JoinSecret,
    job: Job,
    versions: tuple[int, ...] = join_wire.VERSIONS,
    reachable: tuple[str, ...] = (),
    script: bytes = b"",
    interface: str = "",
) -> Standing:
    """Be admitted by the agent at `address`: when this returns, its peer listener trusts us.

    `script` has the digests of our script's statements. The agent's certificate is
    `Standing.me.certificate`, which has to be trusted before it is dialled. This takes at most
    `JOIN_SECONDS`. Raises `Unreachable`, `JoinRefused`, `JobMismatch` (which names the first
    difference), `NotReady` (the agent does not know its own job yet), `SameIdentity`, `Expelled`.
    """
    talk = _Conversation(address, me, secret, job, versions, reachable, interface, script)
    return await talk.run()


# What the user of a device does whose job differs from the cluster's.
SAME_JOB = "start the same job with the same options on all devices, or another --cluster here"
# The rarer reasons of a refusal, in words.
_WHY = {
    Reason.JOB: "it trains another job",
    Reason.SAME_IDENTITY: "it holds this device's own key",
    Reason.EXPELLED: "a user has expelled this device from that cluster",
}


class _Conversation:
    """One join connection, from the first byte to the last."""

    def __init__(
        self,
        address: str,
        me: PeerInfo,
        secret: JoinSecret,
        job: Job | None,
        versions: tuple[int, ...],
        reachable: tuple[str, ...],
        interface: str,
        script: bytes = b"",
    ) -> None:
        self.connected: socket.socket | None = None
        self.wants_recipe = False
        self.recipe: Recipe | None = None
        self._interface = interface
        self._address = address
        self._reachable = reachable
        self._me = me
        self._secret = secret
        self._job = job
        self._versions = versions
        self._script = script

    async def run(self) -> Standing:
        """Connect, talk, close."""
        try:
            async with asyncio.timeout(limits.JOIN_SECONDS):
                stream = await self._connect()
                try:
                    return await self._talk(stream)
                finally:
                    stream.abort()
        except RemoteProtocolError as error:
            raise NotAnAgent(f"{self._address} answers, but not as an agent: {error}") from None
        except ssl.SSLError:
            raise NotAnAgent(f"{self._address} answers, but not as an agent: no TLS 1.3") from None
        except TimeoutError:
            raise Unreachable(
                f"{self._address} did not answer within {limits.JOIN_SECONDS:.0f} s"
            ) from None
        except EOFError:
            raise Unreachable(f"{self._address} closed the connection") from None
        except (OSError, UnicodeError) as error:
            text = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Unreachable(f"{self._address} cannot be reached: {text}") from None

    async def _connect(self) -> JoinStream:
        host, port = split_address(self._address)
        reader, writer = await asyncio.open_connection(
            sock=self.connected or await connect(host, port, interface=self._interface),
            ssl=unauthenticated_client_context(),
            server_hostname="",
            limit=limits.MAX_JOIN_HELLO_BYTES,
            ssl_handshake_timeout=limits.HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=bounds.TLS_CLOSE_SECONDS,
        )
        return JoinStream(reader, writer)

    async def _talk(self, stream: JoinStream) -> Standing:
        transcript = await self._hellos(stream)
        proof = make_proof(self._secret.token, Role.JOINER, transcript)
        said = join_wire.JoinerProof(proof, transcript.joiner_job)
        await stream.write(encode_tagged(said))
        body = await stream.read(limits.MAX_JOIN_FRAME_BYTES)
        answer: ServerProof | Refusal = decode_tagged(body, ServerProof, Refusal)
        if isinstance(answer, Refusal):
            raise self._refused(answer)
        if not proof_is_right(self._secret.token, Role.SERVER, transcript, answer.proof):
            raise OtherToken(f"{self._address} could not prove that it holds our token")
        standing = answer.standing
        self._check_believable(standing, transcript)
        if self.wants_recipe:
            self.recipe = await self._ask_recipe(stream, standing.me.name)
            return standing
        if self._job is None:
            await stream.write(encode_tagged(join_wire.Greeting(self._reachable)))
            await stream.close()
            return standing
        if not transcript.server_job:
            raise NotReady(f"{self._address} does not know its job yet", standing)
        if transcript.server_job != transcript.joiner_job:
            body = await stream.read(limits.MAX_JOIN_FRAME_BYTES)
            raise self._mismatch(self._job, decode_tagged(body, join_wire.ServerJob).job)
        me = self._me
        enter = join_wire.Enter(
            me.incarnation, me.name, me.addresses, self._reachable, self._script
        )
        await stream.write(encode_tagged(enter))
        body = await stream.read(limits.MAX_JOIN_HELLO_BYTES)
        verdict: Admitted | Refusal = decode_tagged(body, Admitted, Refusal)
        if isinstance(verdict, Refusal):
            if verdict.reason is Reason.EXPELLED:  # said by an end that has proven the token
                raise Expelled(
                    "a user has expelled this device from the cluster: its key is barred"
                )
            raise self._refused(verdict)
        return standing

    async def _ask_recipe(self, stream: JoinStream, name: str) -> Recipe | None:
        await stream.write(encode_tagged(join_wire.RecipeWanted()))
        try:
            body = await stream.read(limits.MAX_JOIN_FRAME_BYTES)
        except (EOFError, ConnectionError):
            raise JoinRefused(
                f"{name} at {self._address} does not tell its job: it runs an older edgeagent"
            ) from None
        await stream.close()
        return decode_tagged(body, join_wire.RecipeTold).recipe

    async def _hellos(self, stream: JoinStream) -> Transcript:
        certificate = stream.peer_certificate
        hello = join_wire.JoinerHello(
            self._versions, os.urandom(bounds.NONCE_BYTES), self._me.certificate
        )
        await stream.write(encode_tagged(hello))
        body = await stream.read(limits.MAX_JOIN_HELLO_BYTES)
        answer: ServerHello | Refusal = decode_tagged(body, ServerHello, Refusal)
        if isinstance(answer, Refusal):
            raise self._refused(answer)
        if answer.chosen not in self._versions or answer.chosen not in answer.versions:
            raise RemoteProtocolError("chose a protocol version that was not offered")
        return Transcript(
            cluster=self._secret.cluster,
            joiner_versions=self._versions,
            server_versions=answer.versions,
            version=answer.chosen,
            joiner_job=job_tag(self._secret.token, self._job, hello.nonce, answer.nonce),
            server_job=answer.job_tag,
            server_certificate=node_id(certificate),
            joiner_certificate=self._me.node,
            joiner_nonce=hello.nonce,
            server_nonce=answer.nonce,
        )

    def _check_believable(self, standing: Standing, transcript: Transcript) -> None:
        if standing.me.node != transcript.server_certificate:
            raise RemoteProtocolError("speaks for another node than its certificate")
        check_certificate(standing.me.certificate)
        for peer in standing.known:
            check_certificate(peer.certificate)
        if standing.me.node == self._me.node:
            raise SameIdentity(f"{self._address} holds this node's own key", standing)

    def _refused(self, refusal: Refusal) -> Exception:
        """Return the error for a refusal. Only the reason is used, as it may be a stranger's."""
        where = self._address
        if refusal.reason is Reason.VERSION:
            theirs = ", ".join(map(str, refusal.versions))
            ours = ", ".join(map(str, self._versions))
            return OtherVersion(
                f"{where} speaks protocol version {theirs} and this agent {ours}: "
                "install the same edgeagent on both",
                refusal.versions,
            )
        if refusal.reason is Reason.TOKEN:
            return OtherToken(
                f"{where} refused us: its token or its cluster name differs from ours "
                f"(ours is {self._secret.cluster!r}); compare both"
            )
        if refusal.reason in (Reason.BUSY, Reason.NOT_READY):
            return Busy(f"{where} is busy")
        why = _WHY.get(refusal.reason, "what this device said could not be understood there")
        return JoinRefused(f"{where} refused us: {why}")

    def _mismatch(self, ours: Job, theirs: Job) -> JobMismatch:
        difference = first_difference(ours, theirs)
        if difference is None:
            return JobMismatch(f"{self._address} trains another job than this device")
        if difference.field == UPDATE and (text := unlike(ours, theirs)):
            return JobMismatch(f"{self._address} cannot train with this device: {text}; {REMEDY}")
        said = [names_text(ours, theirs), difference_text(difference)]
        differs = "; ".join(filter(None, said))
        text = f"{self._address} trains another job: {differs} ({SAME_JOB})"
        return JobMismatch(text, batch_there(ours, theirs))
