"""Who is let in to the page: one-time codes, the bearers that pages get for them, and checks of
what browsers say of a request.

A page is opened with a code, which is in the fragment of its address, so that it is neither sent
in the first request nor in a `Referer`. The page exchanges it once for a bearer, which it keeps in
the storage of its tab and sends with every request. A cookie would do less: browsers send cookies
of this device to all ports of it, so also to servers of its other users.

A code that comes a second time was seen by somebody else. Then the bearer that it gave is void.
A bearer also ends with its agent, and when it was not used for `IDLE_S`, so that a copy of it that
somebody finds later, in a closed tab or a backup of the browser's, is worth nothing. An open page
uses its bearer every second.
Other sites that the user's browser shows cannot use the page: their requests carry no bearer, and
their origin is refused (cross-site requests); a name of theirs that leads to this device is no
name of this device (DNS rebinding). There is no I/O in this module.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeagent.errors import EdgeAgentError

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET_BYTES = 24  # random; nobody guesses 192 bits
MAX_SECRET = 64  # characters that are looked at
CODE_S = 300.0  # after which a code that was not used is void
MAX_CODES = 8  # that wait to be used; of more, the oldest are void
MAX_PAGES = 16  # bearers; of more, those that were not used for longest are void
IDLE_S = 12 * 3600.0  # a bearer that was not used for so long is void
_LOOPBACK_NAME = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::[0-9]{1,5})?")


class NotLetIn(EdgeAgentError):
    """This code or bearer is not, or no longer, valid."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the page is served: by which scheme, and at which HOST:PORT; "" is loopback."""

    scheme: str
    where: str = ""

    @property
    def socket_scheme(self) -> str:
        """The scheme of the page's WebSockets."""
        return "wss" if self.scheme == "https" else "ws"

    @property
    def other_name(self) -> str:
        """What is answered to a request under another name."""
        whom = "at this address only" if self.where else "to this device only"
        return f"this page is served {whom}, under its own address"

    def is_own_name(self, host: str) -> bool:
        """Return whether the header `Host` is that of a browser which was sent here: loopback as
        only this device's users name it, or exactly the address that was printed.

        Any port of loopback is accepted, because a tunnel (`ssh -L`) may end at another one than
        the agent's.
        """
        if self.where:
            return host == self.where
        return _LOOPBACK_NAME.fullmatch(host) is not None

    def is_own_origin(self, origin: str, host: str) -> bool:
        """Return whether a page that was loaded from `host` has sent a request with this
        `Origin`."""
        return self.is_own_name(host) and origin == f"{self.scheme}://{host}"


LOOPBACK = Place("http")


@dataclass(slots=True)
class _Given:
    """A bearer: the digest of the code that it was given for, and when it was used last."""

    code: bytes
    used_at: float


class Entrance:
    """The codes and bearers of one agent. Only their digests are kept."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds."""
        self._clock = clock
        self._codes: dict[bytes, float] = {}  # digest -> when it becomes void
        self._bearers: dict[bytes, _Given] = {}  # digest -> bearer; the one used last is the last

    def new_code(self) -> str:
        """Return a new code for one page."""
        code = secrets.token_urlsafe(SECRET_BYTES)
        while len(self._codes) >= MAX_CODES:
            del self._codes[next(iter(self._codes))]
        self._codes[_digest(code)] = self._clock() + CODE_S
        return code

    def enter(self, code: str) -> str:
        """Return the bearer for `code`; raise `NotLetIn` if it is void, was used or never given."""
        digest = _digest(code)
        end = self._codes.pop(digest, None)
        if end is None:
            given = [known for known, of in self._bearers.items() if of.code == digest]
            for known in given:
                del self._bearers[known]
            if given:
                raise NotLetIn(
                    "this link was used before, so the page that it has opened is closed, too: run "
                    "`edgeagent page` again, and open what it prints once"
                )
        if end is None or self._clock() > end:
            raise NotLetIn("this link is not valid, or no longer: run `edgeagent page` again")
        while len(self._bearers) >= MAX_PAGES:
            del self._bearers[next(iter(self._bearers))]
        bearer = secrets.token_urlsafe(SECRET_BYTES)
        self._bearers[_digest(bearer)] = _Given(digest, self._clock())
        return bearer

    def knows(self, bearer: str) -> bool:
        """Return whether `bearer` was given to a page and is valid still; if so, it is used now."""
        digest, now = _digest(bearer), self._clock()
        given = self._bearers.pop(digest, None)
        if given is None or now - given.used_at > IDLE_S:
            return False
        given.used_at = now
        self._bearers[digest] = given
        return True


def _digest(secret: str) -> bytes:
    """Return what stands for `secret`; equal digests can be compared without a timing channel."""
    return hashlib.sha256(secret[:MAX_SECRET].encode(errors="replace")).digest()
