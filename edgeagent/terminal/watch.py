"""A status shown repeatedly: refreshed in place on a terminal, elsewhere in blocks or as JSON.

    screen = screen_for(sys.stdout, as_json=False)
    try:
        screen.show(status)                    for every new status
    finally:
        screen.close()                         makes the terminal's cursor visible again

The last status stays on the screen. However the watching ends, `close` leaves the terminal as it
was before.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Protocol

from edgeagent.plain_json import json_text
from edgeagent.terminal.console import can_refresh

if TYPE_CHECKING:
    from typing import TextIO

    from edgeagent.local.status_model import Status


class Screen(Protocol):
    """Where statuses are shown."""

    def show(self, status: Status) -> None:
        """Show the present status; raise OSError if nobody reads any more."""

    def close(self) -> None:
        """End the showing. Idempotent."""


def screen_for(stream: TextIO, *, as_json: bool) -> Screen:
    """Return the screen for `stream`."""
    if as_json:
        return JsonLines(stream)
    return LiveScreen(stream) if can_refresh(stream) else Blocks(stream)


class JsonLines:
    """Writes one JSON object per line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, status: Status) -> None:
        """Write one line."""
        print(json_text(status), file=self._stream, flush=True)

    def close(self) -> None:
        """Do nothing: every line is already complete."""


class Blocks:
    """Writes plain text: the time of day, the status, a blank line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, status: Status) -> None:
        """Write one block."""
        from edgeagent.terminal.status_view import print_status

        print(time.strftime("%H:%M:%S"), file=self._stream)
        print_status(status, self._stream)
        print(file=self._stream, flush=True)

    def close(self) -> None:
        """Do nothing: every block is already complete."""


class LiveScreen:
    """Shows the status in place; what does not fit on the screen is cut until the end."""

    def __init__(self, stream: TextIO) -> None:
        from rich.live import Live

        from edgeagent.terminal.status_view import rich_console

        self._live = Live(
            console=rich_console(stream),
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def show(self, status: Status) -> None:
        """Replace the status on the screen."""
        from edgeagent.terminal.status_view import render

        self._live.update(render(status), refresh=True)

    def close(self) -> None:
        """Leave the last status on the screen."""
        with contextlib.suppress(OSError):  # the terminal was closed meanwhile
            self._live.stop()
