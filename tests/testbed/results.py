"""The summary of a run of the testbed, made from the agents' event files.

All functions except `write` are pure. The event files and the testbed's own clock are the only
evidence, and what is missing counts as wrong. A cluster must have one history in which each sample
counts once. Parts of it may go on apart only if the scenario cuts, freezes or does not link a node,
or before all nodes have trained together.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

from edgeagent.demo.report import last_iteration
from edgeagent.observer import FAREWELL_SECONDS
from tests.scenarios import histories
from tests.scenarios.histories import counted_samples, memberships
from tests.testbed.shaping import MBIT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.testbed.calibrate import Found
    from tests.testbed.network import Pair
    from tests.testbed.play import Life, Played
    from tests.testbed.scenario import Scenario

STALL_WINDOW_S = 15.0  # after a line of the timeline, in which stalls are attributed to it

Event = dict[str, Any]
Events = Mapping[str, Sequence[Event]]


def summary(scenario: Scenario, played: Played) -> dict[str, Any]:
    """Return the summary as one object for JSON. If its `problems` are empty, all went well.

    Times are seconds after the timeline's start, rates bytes/s unless the name says otherwise.
    """
    events: Events = {life.name: life.agent.events for life in played.lives}
    digests, finals = compare(events), compare_finals(events, played.lives)
    problems = [*played.problems, *digests["differ"]]
    for life in played.lives:
        problems += end_problems(life, scenario.job.steps)
    problems += history_problems(scenario, played)
    if scenario.one_at_end([life.node for life in played.lives if stayed(life)]):
        problems += finals
    return {
        "scenario": scenario.name,
        "nodes": {life.name: node_summary(life, played.began_t) for life in played.lives},
        "digests_equal": not digests["differ"] and not finals and digests["comparisons"] > 0,
        "digest_comparisons": digests["comparisons"],
        "iterations": last_iteration(events),
        "joins": joins(events, played.began_t),
        "timeline": timeline(events, played),
        "stalls": member_stalls(events, played.began_t),
        "throughput": throughput(events, played),
        "calibration": calibration(played.calibration),
        "sent_bytes": {f"{a} > {b}": count for (a, b), count in played.sent.items()},
        "problems": list(dict.fromkeys(problems)),
    }


def node_summary(life: Life, began_t: float) -> dict[str, Any]:
    """Return the summary of one run of one agent."""
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
    """Return how often the states of two agents with equal histories could be compared (each digest
    with the first one of the same commit), and which of them differ."""
    states: dict[str, tuple[str, str]] = {}
    comparisons, differ = 0, []
    for name, written in events.items():
        for part in memberships(written):
            for event in (e for e in part if e["event"] == "digest"):
                state, who = states.setdefault(event["commit"], (event["state"], name))
                comparisons += who != name
                if state != event["state"]:
                    differ.append(f"{name} and {who} differ at step {event['iteration']}")
    return {"comparisons": comparisons, "differ": differ}


def stayed(life: Life) -> bool:
    """Whether it trained to the end."""
    return life.stayed or life.state == "done"


def compare_finals(events: Events, lives: Sequence[Life]) -> list[str]:
    """Return which pairs of the agents that trained to the end differ in the last digest that both
    have in their last memberships, or have none in common although both wrote digests at the same
    time. This finds parts of a cluster that have not come together again."""
    last: dict[str, dict[int, Event]] = {}
    for life in lives:
        parts = memberships(events[life.name])
        digests = [e for part in parts[-1:] for e in part if e["event"] == "digest"]
        if stayed(life) and digests:
            last[life.name] = {e["iteration"]: e for e in digests}
    problems = []
    for a, b in combinations(last, 2):
        common = max((k for k in last[a] if k in last[b]), default=None)
        if common is None:
            times = [[e["t"] for e in last[name].values()] for name in (a, b)]
            if max(map(min, times)) < min(map(max, times)):
                problems.append(f"{a} and {b} have no digest of one step in common at the end")
        elif any(last[a][common][key] != last[b][common][key] for key in ("commit", "state")):
            problems.append(f"not the same model at the end: {a} and {b} at step {common}")
    return problems


def history_problems(scenario: Scenario, played: Played) -> list[str]:
    """Return what the rules of `tests/scenarios/histories.py` say against this run.

    Agents that left in order count like those that stayed: all their steps must be in the history.
    The global batch is the one that most steps had. If the timeline never began, nothing is
    returned.
    """
    lives = {life.name: common_events(life, played.began_t) for life in played.lives}
    steps = [e for written in lives.values() for e in written if e["event"] == "step"]
    if not played.began_t or not steps:
        return []
    resumed = any(option.split("=")[0] == "--resume" for option in scenario.job.options)
    return histories.check(
        lives,
        [life.name for life in played.lives if life.end != "kill"],
        statistics.mode(step["samples"] for step in steps),
        done_before=min(step["iteration"] for step in steps) - 1 if resumed else 0,
        may_fork=scenario.may_fork,
    )


def common_events(life: Life, began_t: float) -> list[Event]:
    """Return the events of an agent without digests from clusters that it gave up for another one.
    These are all clusters before the timeline began, and later the agent's first one if it was
    alone in that because it had not found the others yet."""
    parts = memberships(life.agent.events)
    kept: list[Event] = []
    for k, part in enumerate(parts):
        early = parts[k + 1 :] and parts[k + 1][0]["t"] < began_t
        alone = all(e["members"] == 1 for e in part if e["event"] == "step")
        given_up = early or (k == 0 and alone and parts[k + 1 :])
        kept += [e for e in part if e["event"] != "digest"] if given_up else part
    return kept


def end_problems(life: Life, steps: int) -> list[str]:
    """Return what is wrong with an agent's end, which has to be the one that the timeline says."""
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
    """Return the lines of the timeline with their times, and the longest gap between two steps of
    one agent after each.

    A gap is attributed to the last line before the gap's end. `usual_gap_s` is the median of all
    gaps before the line. Both are None if nothing is known.
    """
    steps = [[float(e["t"]) for e in es if e["event"] == "step"] for es in events.values()]
    gaps = [(a, b) for ends in steps for a, b in pairwise(ends) if a < b]
    marks = played.marks
    found = []
    ends = [*(mark.t for mark in marks[1:]), played.ended_t]
    for mark, until in zip(marks, ends, strict=False):  # there is an end too many if no mark
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
    """Return which members left or were lost, why, and for how long that stopped the slowest of the
    others, by the others' events.

    A node may go several times. Events of several members are about the same time if each member
    has one, and none is later than an agent may delay it.
    """
    said = [
        (e["t"], name, e)
        for name, written in events.items()
        for e in written
        if e["event"] == "member_left"
    ]
    found: list[dict[str, Any]] = []
    current: dict[tuple[str, str], tuple[float, list[str], dict[str, Any]]] = {}
    for t, name, e in sorted(said, key=lambda one: one[:2]):
        key = (e["node"], e["reason"])
        first_t, by, entry = current.get(key, (-math.inf, [], {}))
        if name in by or t - first_t > FAREWELL_SECONDS:
            by, entry = [], {"node": e["node"], "reason": e["reason"], "stall_s": None}
            found.append(entry)
            current[key] = t, by, entry
        by.append(name)
        entry["t_s"] = t - began_t
        if e.get("stall_s") is not None:
            entry["stall_s"] = max(entry["stall_s"] or 0.0, e["stall_s"])
    return sorted(found, key=lambda entry: float(entry["t_s"]))


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
    """Return what was measured on the links; a rate too high to measure is None."""
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
