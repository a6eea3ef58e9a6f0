"""Films terminals: what programs write to them is shown by a terminal emulator and drawn.

with Pane(80, 16, "laptop", environment) as pane:
    film = Film(pane)
    pane.type("edgeagent run digits\\n")
    film.shoot(20.0)
    film.save(Path("session.gif"))
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import pty
import select
import signal
import struct
import termios
import time
from typing import TYPE_CHECKING

import pyte
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

from tests.scenarios.processes import kill_session

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CELL = (8, 17)  # pixels of a character
MARGIN = 8
EVERY_S = 0.4  # between two frames, if anything has changed
LAST_S, MOST_S = 4.0, 1.5  # how long the last frame is shown, and the others at most
BACKGROUND, FOREGROUND = "#1e1e2e", "#cdd6f4"
# What programs call a colour -> how it is drawn.
COLOURS = {
    "default": FOREGROUND,
    "black": "#45475a",
    "red": "#f38ba8",
    "green": "#a6e3a1",
    "brown": "#f9e2af",
    "blue": "#89b4fa",
    "magenta": "#f5c2e7",
    "cyan": "#94e2d5",
    "white": "#bac2de",
}


class Pane:
    """A terminal with a shell, whose prompt is the device's name."""

    def __init__(
        self, columns: int, rows: int, device: str, environment: Mapping[str, str]
    ) -> None:
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self._environment = {
            **environment,
            "PS1": f"{device}$ ",
            "TERM": "xterm-256color",
            "COLUMNS": str(columns),
            "LINES": str(rows),
        }

    def __enter__(self) -> Pane:
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            shell = ["bash", "--norc", "--noprofile", "-i"]
            os.execvpe("bash", shell, self._environment)
        size = struct.pack("HHHH", self.screen.lines, self.screen.columns, 0, 0)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)
        return self

    def __exit__(self, *exc: object) -> None:
        os.kill(self._pid, signal.SIGHUP)
        kill_session(self._pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        os.close(self._terminal)

    def type(self, text: str) -> None:
        """Type `text`; Ctrl+C is "\\x03"."""
        os.write(self._terminal, text.encode())

    def read(self, seconds: float) -> bool:
        """Take in what is written within `seconds`; return whether there was anything."""
        end, found = time.monotonic() + seconds, False
        while (left := end - time.monotonic()) > 0:
            if select.select([self._terminal], [], [], left)[0]:
                try:
                    data = os.read(self._terminal, 1 << 16)
                except OSError:  # the shell has ended
                    return found
                self._stream.feed(data)
                found = True
        return found

    @property
    def text(self) -> str:
        """What is on the screen."""
        return "\n".join(self.screen.display)


class Film:
    """What several panes show, one below the other, as time goes on."""

    def __init__(self, *panes: Pane) -> None:
        self._panes = panes
        self._font = ImageFont.truetype(font_manager.findfont("DejaVu Sans Mono"), 13)
        self._frames: list[tuple[float, Image.Image]] = []

    def shoot(self, seconds: float, until: str = "") -> None:
        """Film for `seconds`, or until some pane shows the text `until`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            changed = [pane.read(EVERY_S / len(self._panes)) for pane in self._panes]
            if any(changed) or not self._frames:
                self._frames.append((time.monotonic(), self.picture()))
            if until and any(until in pane.text for pane in self._panes):
                return
        assert not until, f"{until!r} was not shown: " + "\n".join(p.text for p in self._panes)

    def type(self, pane: Pane, text: str) -> None:
        """Type a command as a person does, and film it."""
        for letter in text:
            pane.type(letter)
            self.shoot(EVERY_S / 4)

    def picture(self) -> Image.Image:
        """Return what is shown now."""
        width = max(pane.screen.columns for pane in self._panes) * CELL[0] + 2 * MARGIN
        heights = [pane.screen.lines * CELL[1] + 2 * MARGIN for pane in self._panes]
        image = Image.new("RGB", (width, sum(heights) + 2 * (len(heights) - 1)), "#6c7086")
        draw = ImageDraw.Draw(image)
        top = 0
        for pane, height in zip(self._panes, heights, strict=True):
            draw.rectangle((0, top, width, top + height - 1), fill=BACKGROUND)
            self._draw(draw, pane.screen, top + MARGIN)
            top += height + 2
        return image

    def _draw(self, draw: ImageDraw.ImageDraw, screen: pyte.Screen, top: int) -> None:
        for row in range(screen.lines):
            for column in range(screen.columns):
                cell = screen.buffer[row][column]
                place = (MARGIN + column * CELL[0], top + row * CELL[1])
                front = colour_of(cell.fg)
                if cell.reverse:
                    draw.rectangle((place, (place[0] + CELL[0], place[1] + CELL[1])), fill=front)
                    front = BACKGROUND
                if cell.data.strip():
                    draw.text(place, cell.data, font=self._font, fill=front)

    def save(self, path: Path) -> None:
        """Save the film as GIF."""
        times = [at for at, _ in self._frames]
        lengths = [1000 * min(MOST_S, b - a) for a, b in itertools.pairwise(times)]
        durations = [round(ms, -1) for ms in (*lengths, 1000 * LAST_S)]
        images = [image.quantize(16, dither=Image.Dither.NONE) for _, image in self._frames]
        images[0].save(
            path,
            save_all=True,
            append_images=images[1:],
            duration=durations,
            loop=0,
            optimize=True,
        )


def colour_of(name: str) -> str:
    """Return how a colour is drawn: one with a name, or one of 256 as six digits."""
    name = name.removeprefix("bright")
    return COLOURS.get(name) or (f"#{name}" if len(name) == 6 else FOREGROUND)
