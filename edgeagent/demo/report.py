"""The report of `edgeagent demo`: judges the run by what its agents have written.

The agents' event files are the only evidence about the run, and what is missing there counts as
wrong. There is no I/O in this module.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypedDict

from edgeagent.terminal.text import bytes_text, clean, seconds_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Event = dict[str, Any]

MIN_ACCURACY = 0.95  # on held-out digits
MIN_SOURCES = 2  # from which the joiner has to pull the state


class SourceReport(TypedDict):
    """What one neighbour sent to a joiner."""

    node: str
    bytes: int
    seconds: float


class JoinReport(TypedDict):
    """One join in mid-training; `lower_bound_s` is the shortest time that the links' rates
    allow."""

    node: str
    bytes: int
    seconds: float
    lower_bound_s: float | None
    sources: list[SourceReport]


class StallReport(TypedDict):
    """One node's departure, and the longest stall that it caused to any of the others."""

    node: str
    stall_s: float


class Report(TypedDict):
    """The report; `problems` is empty if the demo passed."""

    accuracy: float | None
    digests_equal: bool
    steps: int
    joins: list[JoinReport]
    leaves: list[StallReport]
    failures: list[StallReport]
    problems: list[str]


def parse_events(text: str) -> list[Event]:
    """Return the events in `text`; a last line without a line end is incomplete and left out."""
    return [json.loads(line) for line in text.split("\n")[:-1] if line]


def report_from(
    events: Mapping[str, Sequence[Event]],
    *,
    joiners: Iterable[str] = ("dave",),
    killed: Iterable[str] = (),
    sources: int = MIN_SOURCES,
) -> Report:
    """Return the report on `events` (by node). `joiners` had to join in mid-training, from at least
    so many `sources`, and `killed` were killed."""
    compared = compare_digests(events)
    report = Report(
        accuracy=_accuracy(events),
        digests_equal=compared > 0,
        steps=last_iteration(events),
        joins=[join for name in joiners if (join := _join(name, events.get(name, ())))],
        leaves=_ends(events, "leave"),
        failures=_ends(events, "failure"),
        problems=[],
    )
    report["problems"] = [
        *_problems(report, compared, list(joiners), sources),
        *_failure_problems(report, events, list(killed)),
    ]
    return report


def compare_digests(events: Mapping[str, Sequence[Event]]) -> int:
    """Return for how many iterations the digests of at least two nodes could be compared.

    If those of iteration k differ, return `-k - 1` instead, so that 0 means that nothing was
    compared. A node's digests count from its last `joined` on, because before that it may have been
    a cluster of its own.
    """
    by_iteration: dict[int, list[str]] = {}
    for node_events in events.values():
        joined = max((k for k, e in enumerate(node_events) if e["event"] == "joined"), default=0)
        for event in node_events[joined:]:
            if event["event"] == "digest":
                by_iteration.setdefault(event["iteration"], []).append(event["state"])
    compared = 0
    for iteration in sorted(by_iteration):
        states = by_iteration[iteration]
        if any(state != states[0] for state in states):
            return -iteration - 1
        compared += len(states) > 1
    return compared


def last_iteration(events: Mapping[str, Sequence[Event]]) -> int:
    """Return the highest iteration that any node reached."""
    kinds = ("step", "digest", "left")
    return max(
        (e["iteration"] for es in events.values() for e in es if e["event"] in kinds), default=0
    )


def _accuracy(events: Mapping[str, Sequence[Event]]) -> float | None:
    found = [
        (event["iteration"], event["value"])
        for node_events in events.values()
        for event in node_events
        if event["event"] == "evaluated" and event["name"] == "accuracy"
    ]
    last = max((iteration for iteration, _ in found), default=0)
    return min((value for iteration, value in found if iteration == last), default=None)


def _join(node: str, events: Sequence[Event]) -> JoinReport | None:
    joined = [e for e in events if e["event"] == "joined" and e.get("sources")]
    if not joined:
        return None
    event = joined[-1]
    sources = [
        SourceReport(node=s["node"], bytes=s["bytes"], seconds=s["seconds"])
        for s in event["sources"]
    ]
    return JoinReport(
        node=node,
        bytes=event["bytes"],
        seconds=event["seconds"],
        lower_bound_s=event.get("lower_bound_s"),
        sources=sources,
    )


def _ends(events: Mapping[str, Sequence[Event]], reason: str) -> list[StallReport]:
    stalls: dict[str, float] = {}
    for node_events in events.values():
        for event in node_events:
            if event["event"] == "member_left" and event["reason"] == reason:
                stall = float(event.get("stall_s") or 0.0)
                stalls[event["node"]] = max(stalls.get(event["node"], 0.0), stall)
    return [StallReport(node=node, stall_s=stall) for node, stall in stalls.items()]


def _problems(report: Report, compared: int, joiners: list[str], least: int) -> list[str]:
    problems = []
    accuracy = report["accuracy"]
    if accuracy is None:
        problems.append("no node reported an accuracy")
    elif accuracy <= MIN_ACCURACY:
        problems.append(f"the accuracy is {accuracy:.2%}, not over {MIN_ACCURACY:.0%}")
    if compared == 0:
        problems.append("no digests of two nodes could be compared")
    elif compared < 0:
        problems.append(f"the replicas differ from step {-compared - 1} on")
    joined = {join["node"]: join for join in report["joins"]}
    for name in joiners:
        if name not in joined:
            problems.append(f"{name} did not join in mid-training")
            continue
        sources = sum(source["bytes"] > 0 for source in joined[name]["sources"])
        if sources < least:
            problems.append(f"{name} pulled the state from {sources} source, not {least}")
    return problems


def _failure_problems(
    report: Report, events: Mapping[str, Sequence[Event]], killed: list[str]
) -> list[str]:
    """Return what was wrong about failures.

    Only the killed nodes may fail. All that finished must have seen that, and that their links to
    those went down. If a scheduler was killed, another node must have become the scheduler.
    """
    others = [failure["node"] for failure in report["failures"] if failure["node"] not in killed]
    problems = [f"{node} failed" for node in others]
    finished = {
        name: list(es)
        for name, es in events.items()
        if any(e["event"] == "left" and e["iteration"] == report["steps"] for e in es)
    }
    for node in killed:
        for name, seen in finished.items():
            lost = [e for e in seen if e["event"] == "member_left" and e["node"] == node]
            if "failure" not in [e["reason"] for e in lost]:
                problems.append(f"{name} did not see {node} fail")
            if node not in [e["node"] for e in seen if e["event"] == "link_down"]:
                problems.append(f"{name} did not see its link to {node} go down")
        terms = [e for es in events.values() for e in es if e["event"] == "scheduler"]
        last_led = max((e["term"] for e in terms if e["node"] == node), default=None)
        if last_led is not None and all(e["term"] <= last_led for e in terms):
            problems.append(f"nobody took the scheduler's role over from {node}")
    return problems


def sources_text(sources: Sequence[SourceReport]) -> str:
    """Return "alice (0.6 MB), bob (0.5 MB)"."""
    return ", ".join(f"{clean(s['node'])} ({bytes_text(s['bytes'])})" for s in sources)


def join_text(join: JoinReport) -> str:
    """Return one line on a join: bytes, time, bound and sources."""
    line = f"{bytes_text(join['bytes'])} in {seconds_text(join['seconds'])}"
    if join["lower_bound_s"] is not None:
        line += f" (bound {seconds_text(join['lower_bound_s'])})"
    return f"{line} from {sources_text(join['sources'])}"


def report_lines(report: Report) -> list[str]:
    """Return the report for people."""
    accuracy = report["accuracy"]
    equal = "yes, every replica to the last bit" if report["digests_equal"] else "NO"
    lines = [
        f"accuracy       {'-' if accuracy is None else f'{accuracy:.2%}'} on held-out digits",
        f"digests equal  {equal}",
        f"steps          {report['steps']}",
    ]
    for join in report["joins"]:
        lines.append(f"join           {clean(join['node'])}: {join_text(join)}")
    for leave in report["leaves"]:
        stall = seconds_text(leave["stall_s"])
        lines.append(f"leave          {clean(leave['node'])}: the others stalled {stall}")
    for failure in report["failures"]:
        stall = seconds_text(failure["stall_s"])
        lines.append(f"failure        {clean(failure['node'])}: the others stalled {stall}")
    return lines
