"""What a run of the testbed came to: the summary, from the agents' event files.

Law: pure but for `write`; the event files and the testbed's own clock are the only evidence, and
what is missing counts as wrong.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from edgeagent.demo.report import last_iteration
from tests.scenarios.histories import counted_samples, memberships
from tests.testbed.shaping import MBIT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.testbed.calibrate import Found
    from tests.testbed.network import Pair
    from tests.testbed.play import Life, Played
    from tests.testbed.scenario import Scenario

STALL_WINDOW_S = 15.0  # after something of the timeline

Event = dict[str, Any]
Events = Mapping[str, Sequence[Event]]


def summary(scenario: Scenario, played: Played) -> dict[str, Any]:
    """Return all that is worth knowing as one object for JSON; no `problems`: all went well.

    Times are seconds after the timeline's start, rates bytes/s unless the name says otherwise.
    """
    events: Events = {life.name: life.agent.events for life in played.lives}
    digests = compare(events)
    problems = [*played.problems, *digests["differ"]]
    for life in played.lives:
        problems += end_problems(life, scenario.job.steps)
    problems += final_problems(events, played.lives)
    return {
        "scenario": scenario.name,
        "nodes": {life.name: node_summary(life, played.began_t) for life in played.lives},
        "digests_equal": not digests["differ"] and digests["compared"] > 0,
        "digests_compared": digests["compared"],
        "iterations": last_iteration(events),
        "joins": joins(events, played.began_t),
        "timeline": timeline(events, played),
        "stalls": member_stalls(events, played.began_t),
        "throughput": throughput(events, played),
        "calibration": calibration(played.calibration),
        "sent_bytes": {f"{a} > {b}": count for (a, b), count in played.sent.items()},
        "problems": problems,
    }


def node_summary(life: Life, began_t: float) -> dict[str, Any]:
    """Return how one life went."""
    events = life.agent.events
    digests = [e for e in events if e["event"] == "digest"]
    last = digests[-1] if digests else {}
    return {
        "node": life.node,
        "state": life.state,
        "status": life.agent.process.poll(),
        "started_s": events[0]["t"] - began_t if events else None,
        "last_iteration": last_iteration({"": events}),
        "digest": last.get("state"),
        "digest_iteration": last.get("iteration"),
        "memberships": len(memberships(events)),
        "errors": [e["message"] for e in events if e["event"] == "error"],
    }


def compare(events: Events) -> dict[str, Any]:
    """Return how many states of equal history were compared, and which of them differ."""
    states: dict[str, tuple[str, str]] = {}
    compared, differ = 0, []
    for name, written in events.items():
        for part in memberships(written):
            for event in (e for e in part if e["event"] == "digest"):
                state, who = states.setdefault(event["commit"], (event["state"], name))
                compared += who != name
                if state != event["state"]:
                    differ.append(f"{name} and {who} differ at iteration {event['iteration']}")
    return {"compared": compared, "differ": differ}


def end_problems(life: Life, steps: int) -> list[str]:
    """Return what is wrong with a life's end: it has to be the one that the timeline meant."""
    status = life.agent.process.poll()
    if life.end == "kill":
        return []
    if status != 0:
        return [f"{life.name} ended with {status}: {last_words(life)}"]
    done = last_iteration({"": life.agent.events})
    if not life.end and done != steps:
        return [f"{life.name} ended at iteration {done} of {steps}"]
    return []


def last_words(life: Life) -> str:
    """Return the last line that an agent printed."""
    lines = [line for line in life.agent.log.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def final_problems(events: Events, lives: Sequence[Life]) -> list[str]:
    """All that trained to the end have the same state there."""
    finals = {}
    for life in lives:
        digests = [e for e in events[life.name] if e["event"] == "digest"]
        if life.state == "done" and digests:
            finals[life.name] = (digests[-1]["iteration"], digests[-1]["state"])
    if len(set(finals.values())) > 1:
        return [f"not the same model at the end: {', '.join(sorted(finals))}"]
    return []


def joins(events: Events, began_t: float) -> list[dict[str, Any]]:
    """Return the joins with a pull, in the order of time."""
    found = [
        {
            "node": name,
            "t_s": e["t"] - began_t,
            **{key: e.get(key) for key in ("bytes", "seconds", "lower_bound_s", "sources")},
        }
        for name, written in events.items()
        for e in written
        if e["event"] == "joined" and e.get("sources")
    ]
    return sorted(found, key=lambda join: float(join["t_s"]))


def timeline(events: Events, played: Played) -> list[dict[str, Any]]:
    """Return what was done when, and the longest gap between two steps of one agent after it.

    A gap counts for what was done last before its end; `usual_gap_s` is the median of all before.
    Both are None where nothing is known.
    """
    steps = [[float(e["t"]) for e in es if e["event"] == "step"] for es in events.values()]
    gaps = [(a, b) for ends in steps for a, b in pairwise(ends) if a < b]
    marks = played.marks
    found = []
    for mark, until in zip(marks, [*(m.t for m in marks[1:]), played.ended_t], strict=True):
        end = min(until, mark.t + STALL_WINDOW_S)
        before = [b - a for a, b in gaps if played.began_t <= b < mark.t]
        found.append(
            {
                "t_s": mark.t - played.began_t,
                "did": mark.text,
                "longest_gap_s": max((b - a for a, b in gaps if mark.t <= b < end), default=None),
                "usual_gap_s": statistics.median(before) if before else None,
            }
        )
    return found


def member_stalls(events: Events, began_t: float) -> list[dict[str, Any]]:
    """Return what members said about others' ends: who, why, and what it cost the slowest."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for written in events.values():
        for e in written:
            if e["event"] == "member_left":
                entry = found.setdefault(
                    (e["node"], e["reason"]),
                    {"node": e["node"], "reason": e["reason"], "t_s": 0.0, "stall_s": None},
                )
                entry["t_s"] = max(entry["t_s"], e["t"] - began_t)
                if e.get("stall_s") is not None:
                    entry["stall_s"] = max(entry["stall_s"] or 0.0, e["stall_s"])
    return sorted(found.values(), key=lambda entry: float(entry["t_s"]))


def throughput(events: Events, played: Played) -> dict[str, Any]:
    """Return the samples of the timeline's time, each iteration once."""
    seconds = played.ended_t - played.began_t
    within = {
        name: [e for e in written if e["t"] >= played.began_t] for name, written in events.items()
    }
    samples = sum(counted_samples(within, list(within)).values())
    return {
        "samples": samples,
        "seconds": seconds,
        "samples_per_s": samples / seconds if seconds > 0 else None,
    }


def calibration(found: Mapping[Pair, Found]) -> dict[str, Any]:
    """Return what the links really do; a rate too high to measure is None."""
    return {
        f"{a} > {b}": {
            "rate_mbit": value.rate / MBIT if math.isfinite(value.rate) else None,
            "delay_ms": value.delay_s * 1e3,
        }
        for (a, b), value in found.items()
    }


def write(folder: Path, result: Mapping[str, Any]) -> None:
    """Write the summary."""
    (folder / "summary.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
