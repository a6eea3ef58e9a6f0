"""The curves in an event file: loss, members and the time of a step, over the iterations.

There is no I/O here. Lines that are no event of the README's table are counted and left out, since
a file may have been cut off, or be another program's.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

_CHANGES = {"member_joined": "joined", "member_left": "gone"}


@dataclass(slots=True)
class Series:
    """What a plot shows. All lists but `changes` and `reported` have one entry a step.

    `seconds` is the time of a step: from the one before to this one, NaN for the first one and
    across a gap in the file. `changes` are (iteration, what happened), `reported` the figures of
    the script, by name, as (iteration, value). `skipped` counts lines that were no events.
    """

    iterations: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    members: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    compute: list[float] = field(default_factory=list)
    sync: list[float] = field(default_factory=list)
    changes: list[tuple[int, str]] = field(default_factory=list)
    reported: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    skipped: int = 0


def series_of(lines: Iterable[str]) -> Series:
    """Return the curves in the lines of an event file."""
    found = Series()
    last: tuple[int, float] | None = None  # iteration and time of the last step
    for line in lines:
        if not line.strip():
            continue
        try:
            event = json.loads(line)
            last = _note(found, event, last)
        except (ValueError, KeyError, TypeError, RecursionError):
            found.skipped += 1
    return found


def _note(found: Series, event: Any, last: tuple[int, float] | None) -> tuple[int, float] | None:
    kind = event["event"]
    if kind == "step":
        iteration, t = int(event["iteration"]), float(event["t"])
        row = (_finite(event["loss"]), int(event["members"]))
        parts = (float(event["compute_s"]), float(event["sync_s"]))
        follows = last is not None and last[0] + 1 == iteration
        found.seconds.append(t - last[1] if last is not None and follows else math.nan)
        found.iterations.append(iteration)
        found.losses.append(row[0])
        found.members.append(row[1])
        found.compute.append(parts[0])
        found.sync.append(parts[1])
        return iteration, t
    at = found.iterations[-1] if found.iterations else 0
    if kind == "evaluated":
        figures = found.reported.setdefault(str(event["name"]), [])
        figures.append((int(event["iteration"]), _finite(event["value"])))
    elif kind in _CHANGES:
        found.changes.append((at, f"{event['node']} {_CHANGES[kind]}"))
    elif kind == "started":
        return None  # another run in the same file: no step lasted from one to the other
    return last


def _finite(value: Any) -> float:
    return math.nan if value is None else float(value)
