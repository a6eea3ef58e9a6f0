"""What every control message is: a record with a tag."""

from __future__ import annotations

from typing import ClassVar


class Message:
    """A record that can be sent; `TAG` names it on the wire."""

    __slots__ = ()
    TAG: ClassVar[int]
