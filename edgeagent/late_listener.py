"""The transport's listener before and after there is a shell.

Nothing arrives before there is one, because only a member admits others, and only a node dials.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeagent.runtime import Sweeper

if TYPE_CHECKING:
    from edgeagent.shell import Shell
    from edgeagent.transport.api import Link
    from protocols.network.link_end import LinkEnd
    from protocols.wire.bulk import BulkHeader


class LateListener:
    """Passes everything on to `shell`, once there is one."""

    def __init__(self) -> None:
        self.shell: Shell | None = None
        self._sweeper = Sweeper()

    def link_up(self, link: Link) -> None:
        """Pass on."""
        if self.shell is not None:
            self.shell.link_up(link)

    def link_down(self, link: Link, reason: str, why: LinkEnd) -> None:
        """Pass on, and free what the link held."""
        self._sweeper.soon()
        if self.shell is not None:
            self.shell.link_down(link, reason, why)

    def control_received(self, link: Link, frame: bytes) -> None:
        """Pass on."""
        if self.shell is not None:
            self.shell.control_received(link, frame)

    def bulk_arriving(self, link: Link, header: BulkHeader) -> memoryview | None:
        """Pass on."""
        return self.shell.bulk_arriving(link, header) if self.shell is not None else None

    def bulk_received(self, link: Link, header: BulkHeader) -> None:
        """Pass on."""
        if self.shell is not None:
            self.shell.bulk_received(link, header)
