"""Which part of a step an event makes longer, as the observer's own agent tells.

A step consists of *computing* (of this device's micro-batches), *summing* (from its own sum to that
of all), *holding* (the sum is there, and the update waits) and the *rest*: applying the update, and
everything between two steps, such as a new policy that has to come into force before work is given.
While a member is lost, *summing* contains that it is noticed, that the others agree to go on, and
what is computed again.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NAMES = ("computing", "summing", "holding", "rest")
_FIELDS = ("compute_s", "sync_s", "stall_s")


@dataclass(frozen=True, slots=True)
class Parts:
    """By how many seconds each part of a step was longer than usual; below 0 if it was shorter."""

    computing: float
    summing: float
    holding: float
    rest: float


def parts_of_longest(
    steps: Sequence[tuple[int, float]],
    events: Mapping[int, Mapping[str, Any]],
    began: float,
    ended: float,
    usual_steps: int,
) -> Parts | None:
    """Return the parts of the longest step between these times; None if the agent's events lack it,
    or lack the `usual_steps` before.

    `steps`: numbers and times of ends, as the script tells. `events`: number -> the event `step`.
    """
    gaps = [(number, a, b) for (_, a), (number, b) in pairwise(steps)]
    window = [(b - a, number) for number, a, b in gaps if b > began and a < ended]
    if not window:
        return None
    took, longest = max(window)
    first = min(number for _, number in window)
    before = [(b - a, number) for number, a, b in gaps if number < first][-usual_steps:]
    known = [events[number] for _, number in before if number in events]
    if longest not in events or not known:
        return None
    computing, summing, holding = (
        float(events[longest][name]) - statistics.median(float(e[name]) for e in known)
        for name in _FIELDS
    )
    whole = took - statistics.median(gap for gap, _ in before)
    return Parts(computing, summing, holding, whole - computing - summing - holding)


def table(found: Mapping[str, Sequence[Parts]]) -> str:
    """Return Markdown: for each kind of event the medians, in milliseconds."""
    lines = [
        "| longest step of an event, over the usual one | " + " | ".join(NAMES) + " |",
        "|---|" + "---|" * len(NAMES),
    ]
    for kind, many in found.items():
        cells = [f"{1e3 * statistics.median(getattr(p, n) for p in many):.1f}" for n in NAMES]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", "(milliseconds, medians)"])
