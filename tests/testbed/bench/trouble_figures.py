"""What the trouble of a device or a link cost, computed from the agents' event files.

The functions are pure. They take unix seconds and return seconds. What the events do not say is
None, and never guessed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from tests.scenarios.histories import memberships

Event = dict[str, Any]


def longest_stand(events: Sequence[Event], began: float, ended: float) -> tuple[float, bool]:
    """Return the longest time between two steps that touches [began, ended], and whether its
    second step never came.

    An agent that left meanwhile counts until then. Without any step it stood still all the time.
    """
    left = [e["t"] for e in events if e["event"] == "left" and began <= e["t"] < ended]
    until = min([ended, *left])
    ends = [e["t"] for e in events if e["event"] == "step" and e["t"] <= until]
    before = max((t for t in ends if t <= began), default=began)
    seen = [before, *(t for t in ends if t > before)]
    closed = max((b - a for a, b in pairwise(seen)), default=0.0)
    still = until - seen[-1]
    return (still, not left) if still > closed else (closed, False)


def set_aside(events: Sequence[Event]) -> int:
    """Return how many steps of an agent are in no history any more.

    Those are the steps that it did after it had lost the others, if it joined them again
    afterwards, and the steps that it did again as a member of the cluster that it joined.
    """
    count = 0
    for part, following in pairwise(memberships(events)):
        begins = [e["iteration"] for e in following if e["event"] == "step"]
        first = min(begins, default=math.inf)
        alone = False
        for event in part:
            alone |= event["event"] == "member_left" and event["reason"] == "failure"
            if event["event"] == "step" and (alone or event["iteration"] >= first):
                count += 1
    return count


def digests(lives: Mapping[str, Sequence[Event]]) -> tuple[int, int]:
    """Return at how many commits several agents have a digest, and at how many of these all digests
    are equal."""
    states: dict[tuple[int, str], list[str]] = {}
    for events in lives.values():
        mine = {(e["iteration"], e["commit"]): e["state"] for e in events if e["event"] == "digest"}
        for point, state in mine.items():
            states.setdefault(point, []).append(state)
    shared = [found for found in states.values() if len(found) > 1]
    return len(shared), sum(len(set(found)) == 1 for found in shared)


def back(name: str, events: Sequence[Event], began: float, over: float, size: int) -> float | None:
    """Return how many seconds after `over` the agent trained with all others again, None if it did
    not.

    It does so once its trainer has caught up, or it has joined again, and `size` members have made
    a step.
    """
    since = over
    for e in events:
        if e["t"] >= began:
            if e["event"] == "member_late" and e["node"] == name:
                since = math.inf
            elif e["event"] == "joined" or (e["event"] == "member_back" and e["node"] == name):
                since = max(over, e["t"])
    steps = (e["t"] for e in events if e["event"] == "step" and e["members"] == size)
    first = next((t for t in steps if t >= since), None)
    return None if first is None else first - over
