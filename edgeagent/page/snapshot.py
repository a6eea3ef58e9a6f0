"""What the page is sent, again and again: one JSON object with all that it shows.

Each is whole, so that a page that has missed some shows the same as any other. Names and reasons
come from other devices. They are cleaned here of characters that could steer how text is shown
(line ends, marks that turn the direction of writing), cut, and shown by the page as text alone.
Lists are cut as well, and the page is told how long they are; a page of thousands of rows would
only be slow.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from edgeagent.local.figures import pairs_of, times_of
from edgeagent.terminal.text import clean

if TYPE_CHECKING:
    from edgeagent.local.status_model import Status
    from edgeagent.page.history import History

MAX_MEMBERS = 256
MAX_PAIRS = 1024
MAX_REASONS = 64
MAX_PENDING = 32
_REASON_SEPARATOR = "; "  # between the parts of a policy's reason, as the planner joins them


def snapshot(status: Status, history: History, now: float) -> dict[str, Any]:
    """Return what the page shows at `now` (Unix seconds).

    - `status`: the status without its mesh and its reason, its lists cut;
    - `members_in_all`, `pairs_in_all`: how long the lists were;
    - `times`: how each member spent its last iteration (`local.figures.TimesStatus`);
    - `pairs`: the links (`local.status_model.PairStatus`); `linked`: the names of the members to
      which this agent has one by the policy in force;
    - `reasons`: the parts of the reason of the policy in force;
    - `curve`: [iteration, loss, samples per second] for each point;
    - `lines`: [number, Unix seconds, text] of the last lines of the log, oldest first.
    """
    me, pairs = status["node"], pairs_of(status)
    shown: dict[str, Any] = {
        k: v for k, v in status.items() if k not in ("mesh", "reason", "links")
    }
    members = status["members"][:MAX_MEMBERS]
    shown["members"] = members
    shown["pending"] = status["pending"][:MAX_PENDING]
    ends = {name for pair in status["mesh"] if me in (pair["a"], pair["b"]) for name in _ends(pair)}
    return {
        "now": round(now, 3),
        "status": _cleaned(shown),
        "members_in_all": len(status["members"]),
        "times": _cleaned(times_of(status)[:MAX_MEMBERS]),
        "pairs": _cleaned(pairs[:MAX_PAIRS]),
        "pairs_in_all": len(pairs),
        "linked": [clean(m["name"]) for m in members if m["name"] in ends and not m["me"]],
        "reasons": [clean(part) for part in _parts(status["reason"])],
        "curve": [[p.iteration, _rounded(p.loss), _rounded(p.rate)] for p in history.curve.points],
        "lines": list(history.lines),
    }


def _ends(pair: Any) -> tuple[str, str]:
    return pair["a"], pair["b"]


def _parts(reason: str) -> list[str]:
    return reason.split(_REASON_SEPARATOR)[:MAX_REASONS] if reason else []


def _rounded(value: float | None) -> float | None:
    """Return `value` with six significant digits, None if it is no finite number."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def _cleaned(value: Any) -> Any:
    """Return a JSON value in which each text is one printable line of bounded length."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key): _cleaned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    return value
