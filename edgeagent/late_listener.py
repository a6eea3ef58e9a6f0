"""The transport's listener, which exists before the shell and outlives it.

No link can come up before there is a shell, because only a member admits others and only a node
dials.
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
    """Passes every call on to `shell` once there is one."""

    def __init__(self) -> None:
        self.shell: Shell | None = None
        self._sweeper = Sweeper()

    def link_up(self, link: Link) -> None:
        """Pass the call on."""
        if self.shell is not None:
            self.shell.link_up(link)

    def link_down(self, link: Link, reason: str, why: LinkEnd) -> None:
        """Pass the call on, and free the memory that the link held."""
        self._sweeper.soon()
        if self.shell is not None:
            self.shell.link_down(link, reason, why)

    def control_received(self, link: Link, frame: bytes) -> None:
        """Pass the call on."""
        if self.shell is not None:
            self.shell.control_received(link, frame)

    def bulk_arriving(self, link: Link, header: BulkHeader) -> memoryview | None:
        """Pass the call on."""
        return self.shell.bulk_arriving(link, header) if self.shell is not None else None

    def bulk_received(self, link: Link, header: BulkHeader) -> None:
        """Pass the call on."""
        if self.shell is not None:
            self.shell.bulk_received(link, header)
