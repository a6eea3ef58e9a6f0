"""Numbers and names as people read them.

The functions have no side effects, except `accept_all`; `shown_path` reads the present folder. Text
that came from another device must pass `clean` before it reaches a terminal, since control
characters could steer the terminal.
"""

from __future__ import annotations

import io
import math
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO

_BYTE_UNITS = ("kB", "MB", "GB", "TB")
MAX_LINE = 500  # characters; the rest is cut off


def accept_all(*streams: TextIO) -> None:
    """Have `streams` write characters that their encoding lacks as \\xfc and the like, instead of
    raising an error."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def clean(text: str) -> str:
    """Return `text` as one printable line of bounded length, without control characters."""
    line = "".join(c if c.isprintable() else " " for c in text)
    return line if len(line) <= MAX_LINE else line[: MAX_LINE - 3] + "..."


def shown_path(path: str) -> str:
    """Return `path` as seen from the present folder: "./x" if it lies there, else unchanged."""
    try:
        near = os.path.relpath(path)
    except OSError:  # the present folder was deleted
        return path
    return path if near.startswith(os.pardir) else os.path.join(os.curdir, near)


def bytes_text(count: float) -> str:
    """Return a size such as "512 B" or "12.3 MB" (1 MB = 1,000,000 bytes)."""
    if count < 1000:
        return f"{int(count)} B"
    value, unit = count / 1000, 0
    while value >= 999.95 and unit < len(_BYTE_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.1f} {_BYTE_UNITS[unit]}"


def seconds_text(seconds: float) -> str:
    """Return a duration such as "3 ms", "0.42 s", "12 s" or "4 min 10 s"."""
    if seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 0.1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def ms_text(milliseconds: float | None) -> str:
    """Return milliseconds for a column that has the unit in its heading, "-" if not measured."""
    if milliseconds is None:
        return "-"
    digits = 2 if milliseconds < 10 else 1 if milliseconds < 100 else 0
    return f"{milliseconds:.{digits}f}"


def mbit_text(mbit_s: float | None) -> str:
    """Return Mbit/s for a column that has the unit in its heading, "-" if not measured."""
    if mbit_s is None:
        return "-"
    places = 2 if mbit_s < 10 else 1 if mbit_s < 100 else 0
    return f"{mbit_s:.{places}f}"


def bar_text(part: float, width: int) -> str:
    """Return a bar of `width` characters in brackets, of which `part` (0 to 1) is filled."""
    full = int(min(1.0, max(0.0, part)) * width)
    return f"[{'#' * full}{'.' * (width - full)}]"


def loss_text(loss: float | None) -> str:
    """Return a loss with four significant places, "-" if there is none yet."""
    if loss is None:
        return "-"
    if not math.isfinite(loss):
        return str(loss)
    return f"{loss:.4f}" if abs(loss) >= 0.001 or loss == 0 else f"{loss:.3g}"


def rate_text(samples_per_second: float) -> str:
    """Return a training rate such as "5120 samples/s", "- samples/s" if there is none yet."""
    if samples_per_second <= 0:
        return "- samples/s"
    places = 0 if samples_per_second >= 10 else 1
    return f"{samples_per_second:.{places}f} samples/s"


def plural(count: int, word: str, ending: str = "s") -> str:
    """Return "1 member" or "3 members"; `ending` is what makes a plural of the word."""
    return f"{count} {word}" if count == 1 else f"{count} {word}{ending}"
