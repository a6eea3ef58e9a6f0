"""Pairing: hands a cluster's token to one device that knows a short code, and to nobody else.

The machines here do no I/O: they take frames, times and random bytes and return frames. The key of
a connection comes from SPAKE2 (Abdalla and Pointcheval, 2005) over the code. Both roles and the
inviter's certificate, as each end has seen it in this TLS handshake, are part of that computation,
and the frames before are part of the keys that follow from it, so a device in the middle ends up
with another key.

The invitee proves the key first, so whoever guesses a code has to show each guess to the inviter,
which counts it; a recording of the exchange helps with no guess. The token is sent once both ends
have proven the key and the invitee has agreed to the cluster's name. From then on the code is used
up, whether or not the invitee has stored the token.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

import spake2
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from edgeagent.errors import EdgeAgentError
from edgeagent.transport import bounds, pairing_wire
from edgeagent.transport.job import length_prefixed
from edgeagent.transport.pairing_wire import (
    Reason,
    Refusal,
    Seal,
    decode_sealed_record,
    encode_sealed_record,
)
from edgeagent.transport.token import derive_key
from protocols.errors import RemoteProtocolError
from protocols.wire.message import Message
from protocols.wire.packing import decode_tagged, encode_tagged

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.transport.pairing_code import PairingCode

M = TypeVar("M", bound=Message)

_INVITER = b"edgeagent/1 pairing inviter"
_INVITEE = b"edgeagent/1 pairing invitee"


@dataclass(frozen=True, slots=True)
class Offer:
    """What a code stands for: a cluster's name and token, and the name of the inviting device."""

    cluster: str
    token: bytes
    inviter: str

    def __repr__(self) -> str:
        return f"Offer(cluster={self.cluster!r}, inviter={self.inviter!r})"


class PairingRefused(EdgeAgentError):
    """The inviter refuses. `reason` may be a stranger's word, so it only helps to tell the user."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(f"refused ({reason.name.lower()})")
        self.reason = reason


class State(Enum):
    """What has become of an invitation."""

    OPEN = "open"
    USED = "used"  # the token was sent to one device
    VOID = "void"  # too many wrong codes, or too many devices that asked
    EXPIRED = "expired"


class Step(Enum):
    """What an end of a connection waits for."""

    HELLO = "hello"
    ANSWER = "answer"
    CONFIRM = "confirm"
    GRANT = "grant"
    READY = "ready"
    TOKEN = "token"
    STORED = "stored"
    DONE = "done"
    REFUSED = "refused"


class _Keys:
    """The keys of one connection, and the seals made with them.

    Every seal has a key of its own, which it names, and each is used once.
    """

    def __init__(self, shared: bytes, *frames: bytes) -> None:
        said = hashlib.sha256(length_prefixed(*frames)).hexdigest()
        self._keys = {
            use: derive_key(shared, f"edgeagent/1 pairing {use} {said}")
            for use in ("invitee", "inviter", *(seal.value for seal in Seal))
        }

    def proof(self, role: str) -> bytes:
        """Return the proof of `role` that it has this key."""
        return hmac.new(self._keys[role], role.encode(), hashlib.sha256).digest()

    def proves(self, role: str, proof: bytes) -> bool:
        """Return whether `proof` is that of `role`; the comparison takes constant time."""
        return hmac.compare_digest(self.proof(role), proof)

    def seal(self, seal: Seal, text: bytes) -> bytes:
        """Return `text` so that only the other end can read it."""
        return AESGCM(self._keys[seal.value]).encrypt(bytes(12), text, None)

    def open(self, seal: Seal, sealed: bytes) -> bytes:
        """Return what the other end has sealed; raise `RemoteProtocolError` if it has not."""
        try:
            return AESGCM(self._keys[seal.value]).decrypt(bytes(12), sealed, None)
        except InvalidTag:
            raise RemoteProtocolError("a sealed text that was changed") from None


def _names(certificate: bytes) -> dict[str, bytes]:
    """Return the two names that enter the key; `certificate` is the inviter's node id."""
    return {
        "idA": length_prefixed(_INVITER, certificate),
        "idB": length_prefixed(_INVITEE, certificate),
    }


def _finish(end: spake2.SPAKE2_A | spake2.SPAKE2_B, message: bytes) -> bytes:
    try:
        shared: bytes = end.finish(message)
    except Exception as error:  # a parser of hostile bytes may raise anything
        raise RemoteProtocolError(f"unusable PAKE message ({type(error).__name__})") from None
    return shared


def _unless_refused(body: bytes, kind: type[M]) -> M:
    """Return the message of this kind in `body`. Raises `PairingRefused` if a refusal came instead,
    `RemoteProtocolError` if it is neither."""
    said: M | Refusal = decode_tagged(body, kind, Refusal)
    if isinstance(said, Refusal):
        raise PairingRefused(said.reason)
    return said


class Invitation:
    """One code, and how often it was tried. It serves one device and then no other.

    `certificate` is the inviter's node id, `expires` the time (seconds, of the clock whose `now`
    is handed in) from which on the code is worth nothing, and `entropy(n)` returns n random bytes.
    """

    def __init__(
        self,
        code: PairingCode,
        offer: Offer,
        certificate: bytes,
        expires: float,
        entropy: Callable[[int], bytes],
    ) -> None:
        self.code = code
        self.offer = offer
        self.wrong = 0  # wrong codes so far
        self._certificate = certificate
        self._expires = expires
        self._entropy = entropy
        self._begun = 0
        self._used = False
        self._claimed: InviterEnd | None = None

    def state(self, now: float) -> State:
        """Return what has become of this invitation."""
        if self._used:
            return State.USED
        if self.wrong >= bounds.PAIRING_WRONG_TRIES or self._begun > bounds.MAX_PAIRINGS_BEGUN:
            return State.VOID
        return State.EXPIRED if now >= self._expires else State.OPEN

    def connect(self) -> InviterEnd:
        """Return the machine for one more connection."""
        return InviterEnd(self)

    def begin(self, now: float) -> tuple[spake2.SPAKE2_A, bytes]:
        """Return a fresh PAKE end and its message; raise `PairingRefused` if the code is over."""
        self._begun += 1
        self.check_open(now)
        secret = self.code.secret.encode()
        end = spake2.SPAKE2_A(secret, **_names(self._certificate), entropy_f=self._entropy)
        return end, end.start()

    def check_open(self, now: float) -> None:
        """Raise `PairingRefused` unless the code can still be used."""
        if self.state(now) is not State.OPEN:
            raise PairingRefused(Reason.OVER)

    def claim(self, end: InviterEnd, right: bool) -> None:
        """Note that `end` has proven the code, or has not; raise `PairingRefused` if it may not
        go on."""
        if not right:
            self.wrong += 1
            raise PairingRefused(Reason.CODE)
        if self._claimed is not None:
            raise PairingRefused(Reason.BUSY)
        self._claimed = end

    def release(self, end: InviterEnd) -> None:
        """Let another device try if `end` has gone before it was sent the token."""
        if self._claimed is end:
            self._claimed = None

    def use(self) -> None:
        """Note that the token is being sent."""
        self._used = True


class InviterEnd:
    """The inviter's end of one connection. `invitee` is its name once it has proven the code."""

    def __init__(self, invitation: Invitation) -> None:
        self.step = Step.HELLO
        self.invitee = ""
        self._invitation = invitation
        self._keys: _Keys | None = None

    def receive(self, now: float, body: bytes) -> bytes:
        """Take one frame and return the answer, b"" if none follows.

        A refusal is an answer, too, after which `step` is `REFUSED`. Raises `RemoteProtocolError`
        if the frame is not the one that must follow.
        """
        try:
            return self._receive(now, body)
        except PairingRefused as refused:
            self.step = Step.REFUSED
            return encode_tagged(pairing_wire.Refusal(refused.reason))

    def closed(self) -> None:
        """Note that the connection has ended."""
        self._invitation.release(self)

    def _receive(self, now: float, body: bytes) -> bytes:
        if self.step is Step.HELLO:
            return self._answer(now, body)
        keys = self._keys
        if keys is None:
            raise RemoteProtocolError("message out of place")
        if self.step is Step.CONFIRM:
            proof = decode_tagged(body, pairing_wire.Confirm).proof
            self._invitation.check_open(now)
            self._invitation.claim(self, keys.proves("invitee", proof))
            offer = self._invitation.offer
            names = encode_sealed_record(pairing_wire.Names(offer.cluster, offer.inviter))
            self.step = Step.READY
            sealed = keys.seal(Seal.GRANT, names)
            return encode_tagged(pairing_wire.Grant(keys.proof("inviter"), sealed))
        if self.step is Step.READY:
            sealed = decode_tagged(body, pairing_wire.Ready).sealed
            text = keys.open(Seal.READY, sealed)
            self.invitee = decode_sealed_record(pairing_wire.Name, text).name
            self._invitation.check_open(now)
            self._invitation.use()
            self.step = Step.STORED
            token = keys.seal(Seal.TOKEN, self._invitation.offer.token)
            return encode_tagged(pairing_wire.Token(token))
        if self.step is Step.STORED:
            keys.open(Seal.STORED, decode_tagged(body, pairing_wire.Stored).sealed)
            self.step = Step.DONE
            return b""
        raise RemoteProtocolError("message out of place")

    def _answer(self, now: float, body: bytes) -> bytes:
        hello = decode_tagged(body, pairing_wire.Hello)
        common = [v for v in hello.versions if v in pairing_wire.VERSIONS]
        if not common:
            raise PairingRefused(Reason.VERSION)
        if hello.channel != self._invitation.code.channel:
            raise PairingRefused(Reason.CHANNEL)
        end, message = self._invitation.begin(now)
        answer = encode_tagged(pairing_wire.Answer(max(common), message))
        self._keys = _Keys(_finish(end, hello.pake), body, answer)
        self.step = Step.CONFIRM
        return answer


class InviteeEnd:
    """The invitee's end of one connection: `hello`, then `receive` until `step` is `DONE`.

    `certificate` is the node id of the certificate that the inviter has shown, `name` this
    device's, and `agree(cluster, inviter)` raises an `EdgeAgentError` if the token of that cluster
    is not wanted; the token is not sent then, and the code stays good.
    """

    def __init__(
        self,
        code: PairingCode,
        certificate: bytes,
        name: str,
        agree: Callable[[str, str], None],
        entropy: Callable[[int], bytes],
    ) -> None:
        self.step = Step.ANSWER
        self.offer: Offer | None = None
        self._name = name
        self._agree = agree
        self._end = spake2.SPAKE2_B(code.secret.encode(), **_names(certificate), entropy_f=entropy)
        self._names = ("", "")  # of the cluster and of the inviter
        self._keys: _Keys | None = None
        self._hello = encode_tagged(
            pairing_wire.Hello(pairing_wire.VERSIONS, code.channel, self._end.start())
        )

    @property
    def hello(self) -> bytes:
        """The first frame to send."""
        return self._hello

    def receive(self, body: bytes) -> bytes:
        """Take one frame and return the answer, b"" if it is still to come (see `stored`).

        Raises `PairingRefused`, `RemoteProtocolError`, or what `agree` raises.
        """
        if self.step is Step.ANSWER:
            answer = _unless_refused(body, pairing_wire.Answer)
            if answer.version not in pairing_wire.VERSIONS:
                raise RemoteProtocolError("chose a version that was not offered")
            self._keys = keys = _Keys(_finish(self._end, answer.pake), self._hello, body)
            self.step = Step.GRANT
            return encode_tagged(pairing_wire.Confirm(keys.proof("invitee")))
        if self._keys is None:
            raise RemoteProtocolError("message out of place")
        if self.step is Step.GRANT:
            return self._consider(self._keys, body)
        if self.step is Step.TOKEN:
            sealed = _unless_refused(body, pairing_wire.Token).sealed
            token = pairing_wire.decode_token(self._keys.open(Seal.TOKEN, sealed))
            cluster, inviter = self._names
            self.offer = Offer(cluster, token, inviter)
            self.step = Step.STORED
            return b""
        raise RemoteProtocolError("message out of place")

    def stored(self) -> bytes:
        """Return the last frame, to be sent once the token of `offer` is stored."""
        if self._keys is None or self.step is not Step.STORED:
            raise ValueError("no token has come yet")
        self.step = Step.DONE
        return encode_tagged(pairing_wire.Stored(self._keys.seal(Seal.STORED, b"")))

    def _consider(self, keys: _Keys, body: bytes) -> bytes:
        grant = _unless_refused(body, pairing_wire.Grant)
        if not keys.proves("inviter", grant.proof):
            raise RemoteProtocolError("could not prove that it knows the code")
        names = decode_sealed_record(pairing_wire.Names, keys.open(Seal.GRANT, grant.sealed))
        self._names = (names.cluster, names.inviter)
        self._agree(*self._names)
        self.step = Step.TOKEN
        name = encode_sealed_record(pairing_wire.Name(self._name))
        return encode_tagged(pairing_wire.Ready(keys.seal(Seal.READY, name)))
