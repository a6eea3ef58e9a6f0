"""The server's side of joining: both ends prove the token, the joiner is told the standing, and it
is admitted.

Nothing about the cluster is said before the joiner's proof was found right, and each connection has
one try. `AdmissionPolicy.admitted` is called before the joiner is told so, and never for a proof of
a token that was replaced meanwhile. Whatever a stranger sends costs one bounded buffer, ends within
`HANDSHAKE_SECONDS` + `JOIN_SECONDS`, and leads to one line at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgeagent.transport import bounds, join_wire
from edgeagent.transport.api import Candidate, PeerInfo
from edgeagent.transport.certificate import check_certificate, node_id
from edgeagent.transport.doorkeeper import Doorkeeper, Gate, Visitor
from edgeagent.transport.join_streams import JoinSecret, JoinStream
from edgeagent.transport.join_wire import Enter, Greeting, Reason, RecipeWanted
from edgeagent.transport.proof import Role, Transcript, make_proof, proof_is_right
from edgeagent.transport.token import job_tag
from protocols import limits
from protocols.errors import RemoteProtocolError
from protocols.wire.packing import decode_tagged, encode_tagged

if TYPE_CHECKING:
    import socket
    import ssl

    from edgeagent.transport.api import AdmissionPolicy
    from edgeagent.transport.complaints import Complaints
    from edgeagent.transport.job import Job

_REASONS = {
    Reason.TOKEN: "its token or its cluster name is not ours",
    Reason.BUSY: f"more than {limits.MAX_OPEN_JOINS} joins at once",
    Reason.NOT_READY: "our own job is not known yet; it may ask again",
    Reason.JOB: "it trains another job; its own terminal says what differs",
    Reason.EXPELLED: "a user has expelled it",
    Reason.SAME_IDENTITY: "it holds this node's own key (a copied disk?)",
}


class _Refused(Exception):
    """Raised to answer this connection with a refusal."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(reason.name)
        self.reason = reason
        self.detail = detail or _REASONS[reason]


@dataclass(frozen=True, slots=True)
class _Session:
    """One joiner whose hello was accepted."""

    certificate: bytes
    transcript: Transcript
    job: Job | None
    secret: JoinSecret


class JoinListener:
    """Serves the join connections of one agent."""

    def __init__(
        self,
        sockets: tuple[socket.socket, ...],
        context: ssl.SSLContext,
        certificate: bytes,
        secret: JoinSecret,
        admission: AdmissionPolicy,
        doorkeeper: Doorkeeper,
        complaints: Complaints,
        versions: tuple[int, ...] = join_wire.VERSIONS,
    ) -> None:
        """`sockets` are listening already. `context` is the server's TLS context for `certificate`
        (DER) and asks for no client certificate, because joiners prove the token instead."""
        self._context = context
        self._node = node_id(certificate)
        self._secret = secret
        self._admission = admission
        self._complaints = complaints
        self._versions = versions
        self._open_joins = 0
        self._gate = Gate(sockets, self._serve, doorkeeper, complaints)

    def start(self) -> None:
        """Begin to accept."""
        self._gate.start()

    def use_secret(self, secret: JoinSecret) -> None:
        """Prove and accept only this secret from now on."""
        self._secret = secret

    async def stop(self) -> None:
        """Close the listening sockets and all join connections."""
        await self._gate.stop()

    async def _serve(self, visitor: Visitor) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=limits.MAX_JOIN_HELLO_BYTES, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport = await visitor.secure(protocol, self._context)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        stream = JoinStream(reader, writer)
        try:
            async with asyncio.timeout(limits.JOIN_SECONDS):
                await self._converse(stream, visitor)
                await stream.close()
        except RemoteProtocolError as error:
            self._complain(visitor, "protocol", f"broke the join protocol: {error}")
        except TimeoutError:
            self._complain(visitor, "slow", f"did not finish within {limits.JOIN_SECONDS:.0f} s")
        except (OSError, EOFError):
            self._complain(visitor, "ended", "ended in the middle of the join protocol")
        finally:
            stream.abort()

    async def _converse(self, stream: JoinStream, visitor: Visitor) -> None:
        try:
            session = await self._greet(stream)
            visitor.proven()
            if self._open_joins >= limits.MAX_OPEN_JOINS:
                raise _Refused(Reason.BUSY)
            self._open_joins += 1
            try:
                await self._answer(stream, session, visitor)
            finally:
                self._open_joins -= 1
        except _Refused as refused:
            self._complain(visitor, refused.reason.name, refused.detail)
            refusal = join_wire.Refusal(refused.reason, self._versions)
            await stream.write(encode_tagged(refusal))

    async def _greet(self, stream: JoinStream) -> _Session:
        """Exchange hellos and check the joiner's proof."""
        body = await stream.read(limits.MAX_JOIN_HELLO_BYTES)
        hello = decode_tagged(body, join_wire.JoinerHello)
        chosen = join_wire.choose_version(self._versions, hello.versions)
        if chosen is None:
            spoken = ", ".join(map(str, hello.versions))
            ours = ", ".join(map(str, self._versions))
            detail = f"it speaks only protocol version {spoken} and this agent {ours}: "
            raise _Refused(Reason.VERSION, detail + "install the same edgeagent on both")
        job = self._admission.job()
        nonce = os.urandom(bounds.NONCE_BYTES)
        secret = self._secret
        tag = job_tag(secret.token, job, hello.nonce, nonce)
        answer = join_wire.ServerHello(self._versions, chosen, nonce, tag)
        await stream.write(encode_tagged(answer))
        body = await stream.read(limits.MAX_JOIN_HELLO_BYTES)
        said = decode_tagged(body, join_wire.JoinerProof)
        transcript = Transcript(
            cluster=secret.cluster,
            joiner_versions=hello.versions,
            server_versions=self._versions,
            version=chosen,
            joiner_job=said.job_tag,
            server_job=answer.job_tag,
            server_certificate=self._node,
            joiner_certificate=node_id(hello.certificate),
            joiner_nonce=hello.nonce,
            server_nonce=answer.nonce,
        )
        right = proof_is_right(secret.token, Role.JOINER, transcript, said.proof)
        if not right or secret != self._secret:
            raise _Refused(Reason.TOKEN)
        check_certificate(hello.certificate)
        return _Session(hello.certificate, transcript, job, secret)

    async def _answer(self, stream: JoinStream, session: _Session, visitor: Visitor) -> None:
        """Prove the token to the joiner, tell it the standing, admit it if it asks for that."""
        standing = self._admission.standing()
        if session.job is None:
            standing = replace(standing, phase="founding")
        proof = make_proof(session.secret.token, Role.SERVER, session.transcript)
        await stream.write(encode_tagged(join_wire.server_proof(proof, standing)))
        tag = session.transcript.joiner_job
        another_job = bool(tag) and session.job is not None and tag != session.transcript.server_job
        if another_job and session.job is not None:
            self._complain(visitor, "job", _REASONS[Reason.JOB])
            await stream.write(join_wire.encode_server_job(session.job))
        try:
            body = await stream.read(limits.MAX_JOIN_HELLO_BYTES)
        except (EOFError, ConnectionError):
            return  # the joiner has seen that its job differs, or that this agent has none yet
        said: Enter | Greeting | RecipeWanted = decode_tagged(body, Enter, Greeting, RecipeWanted)
        if isinstance(said, RecipeWanted):
            await stream.write(encode_tagged(join_wire.RecipeTold(self._admission.recipe)))
            return
        if said.reachable:
            self._admission.heard_of(said.reachable)
        if isinstance(said, Greeting):
            return
        if not tag:
            raise RemoteProtocolError("asks to be admitted without naming a job")
        self._check_admissible(session, another_job)
        node, certificate = session.transcript.joiner_certificate, session.certificate
        peer = PeerInfo(node, said.incarnation, said.name, said.addresses, certificate)
        self._admission.admitted(Candidate(peer, said.script))
        await stream.write(encode_tagged(join_wire.Admitted()))
        with contextlib.suppress(EOFError, OSError, RemoteProtocolError):
            await stream.read(limits.MAX_JOIN_HELLO_BYTES)  # the joiner closes first

    def _check_admissible(self, session: _Session, another_job: bool) -> None:
        if session.secret != self._secret:
            raise _Refused(Reason.TOKEN)
        if session.transcript.joiner_certificate == self._node:
            raise _Refused(Reason.SAME_IDENTITY)
        if self._admission.bars(session.transcript.joiner_certificate):
            raise _Refused(Reason.EXPELLED)
        if session.job is None:
            raise _Refused(Reason.NOT_READY)
        if another_job:
            raise _Refused(Reason.JOB)

    def _complain(self, visitor: Visitor, kind: str, reason: str) -> None:
        self._complaints.refused(visitor.host, f"join {kind}", reason)
