"""The short code that pairs two devices: how it is made, written and read. There is no I/O here.

A code has ten digits, written `27-4819-2730`, because digits are read aloud and typed alike in
every language. The first two are the channel, which tells invitations on one network apart and is
announced openly. The next seven are the secret (10 million of them, 23 bits), and the last is a
check digit, so that a typo is found before it costs one of the few attempts.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeagent.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

CHANNEL_DIGITS = 2
SECRET_DIGITS = 7
CODE_DIGITS = CHANNEL_DIGITS + SECRET_DIGITS + 1


@dataclass(frozen=True, slots=True)
class PairingCode:
    """A code's two parts, each a text of digits."""

    channel: str
    secret: str

    def __repr__(self) -> str:
        return f"PairingCode(channel={self.channel!r})"  # a secret is in no trace or message

    @property
    def text(self) -> str:
        """The code as people read it: `27-4819-2730`."""
        digits = self.channel + self.secret
        digits += str(_check_digit(digits))
        return "-".join((digits[:2], digits[2:6], digits[6:]))


def new_code(below: Callable[[int], int] = secrets.randbelow) -> PairingCode:
    """Return a fresh code; `below(n)` returns a random number from 0 to n - 1."""
    channel, secret = below(10**CHANNEL_DIGITS), below(10**SECRET_DIGITS)
    return PairingCode(f"{channel:0{CHANNEL_DIGITS}}", f"{secret:0{SECRET_DIGITS}}")


def parse_code(text: str) -> PairingCode:
    """Return the code that `text` is, with or without dashes and blanks; raise `UsageError`
    otherwise."""
    digits = re.sub(r"[\s\-]", "", text)
    if not digits.isascii() or not digits.isdecimal() or len(digits) != CODE_DIGITS:
        raise UsageError(
            f"a code has {CODE_DIGITS} digits, such as 27-4819-2730; it comes from "
            "`edgeagent invite` on the other device"
        )
    if _check_digit(digits[:-1]) != int(digits[-1]):
        raise UsageError("the code has a typo (its last digit does not fit): read it again")
    return PairingCode(digits[:CHANNEL_DIGITS], digits[CHANNEL_DIGITS:-1])


def _check_digit(digits: str) -> int:
    """Return the check digit (ISO/IEC 7064, MOD 11,10), which shows every single wrong digit."""
    product = 10
    for digit in digits:
        product = (((product + int(digit)) % 10 or 10) * 2) % 11
    return (11 - product) % 10
