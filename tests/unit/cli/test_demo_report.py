"""The demo's report, from event files written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgeagent.demo.report import (
    compare_digests,
    last_iteration,
    parse_events,
    report_from,
    report_lines,
)
from edgeagent.demo.view import describe
from tests.unit.cli.samples import event, good_events

if TYPE_CHECKING:
    from edgeagent.demo.report import Event


def test_a_good_run() -> None:
    report = report_from(good_events())
    assert report["accuracy"] == 0.97
    assert report["digests_equal"]
    assert report["steps"] == 30
    assert [join["node"] for join in report["joins"]] == ["dave"]
    assert report["joins"][0]["bytes"] == 1_100_000
    assert report["leaves"] == [{"node": "carol", "stall_s": 0.0009}]
    assert report["failures"] == []
    assert report["problems"] == []
    assert report_lines(report) == [
        "accuracy       97.00% on held-out digits",
        "digests equal  yes, every replica to the last bit",
        "steps          30",
        "join           dave: 1.1 MB in 0.12 s (bound 0.10 s) from alice (600.0 kB), "
        "bob (500.0 kB)",
        "leave          carol: the others stalled 0.9 ms",
    ]


def test_nothing_is_wrong_too() -> None:
    report = report_from({})
    assert report["accuracy"] is None
    assert not report["digests_equal"]
    assert report["problems"] == [
        "no node reported an accuracy",
        "no digests of two nodes could be compared",
        "dave did not join in mid-training",
    ]
    assert report_lines(report)[:2] == [
        "accuracy       - on held-out digits",
        "digests equal  NO",
    ]


@pytest.mark.parametrize(
    ("node", "added", "problem"),
    [
        ("bob", [event("digest", iteration=30, state="x")], "differ from step 30 on"),
        (
            "bob",
            [event("evaluated", iteration=30, name="accuracy", value=0.95)],
            "the accuracy is 95.00%, not over 95%",
        ),
        ("bob", [event("member_left", node="eve", reason="failure", stall_s=1.0)], "eve failed"),
        (
            "dave",
            [
                event(
                    "joined",
                    bytes=5,
                    seconds=0.1,
                    sources=[
                        {"node": "bob", "bytes": 5, "seconds": 0.1},
                        {"node": "alice", "bytes": 0, "seconds": 0.0},
                    ],
                ),
            ],
            "from 1 source",
        ),
    ],
)
def test_what_is_wrong_is_named(node: str, added: list[Event], problem: str) -> None:
    events = good_events()
    events[node].extend(added)
    report = report_from(events)
    assert any(problem in p for p in report["problems"])
    assert report_lines(report)


def events_with_a_death() -> dict[str, list[Event]]:
    """Return what the agents wrote when eve, the scheduler, was killed."""
    events = good_events()
    lead = event("scheduler", node="eve", term=1, why="founded")
    events["eve"] = [lead]
    for name in ("alice", "bob", "dave"):
        events[name][-1:-1] = [
            lead,
            event("link_down", node="eve"),
            event("scheduler", node="bob", term=2, why="failed over"),
            event("member_left", node="eve", reason="failure", stall_s=len(name) / 10),
        ]
    return events


def test_a_failure_that_was_meant_is_no_problem() -> None:
    report = report_from(events_with_a_death(), killed=["eve"])
    assert report["problems"] == []
    assert report["failures"] == [{"node": "eve", "stall_s": 0.5}]


@pytest.mark.parametrize(
    ("missing", "problem"),
    [
        ("member_left", "dave did not see eve fail"),
        ("link_down", "dave did not see its link to eve go down"),
    ],
)
def test_all_must_have_seen_a_failure(missing: str, problem: str) -> None:
    events = events_with_a_death()
    events["dave"] = [e for e in events["dave"] if e["event"] != missing]
    assert report_from(events, killed=["eve"])["problems"] == [problem]


def test_a_killed_scheduler_needs_an_heir() -> None:
    events = events_with_a_death()
    for name in events:
        events[name] = [e for e in events[name] if e.get("term") != 2]
    problems = report_from(events, killed=["eve"])["problems"]
    assert problems == ["nobody took the scheduler's role over from eve"]


def test_a_killed_worker_needs_none() -> None:
    events = events_with_a_death()
    for name in events:
        events[name] = [e for e in events[name] if e["event"] != "scheduler"]
    assert report_from(events, killed=["eve"])["problems"] == []


def test_a_node_alone_compares_nothing() -> None:
    assert compare_digests({"alice": good_events()["alice"]}) == 0


def test_a_difference_at_iteration_zero_is_seen() -> None:
    events = {n: [event("digest", iteration=0, state=n)] for n in ("a", "b")}
    assert compare_digests(events) == -1


def test_digests_count_from_the_last_join_on() -> None:
    assert compare_digests(good_events()) == 3


def test_the_last_iteration_of_nothing() -> None:
    assert last_iteration({}) == 0


def test_a_line_that_is_not_finished_is_not_there_yet() -> None:
    assert parse_events('{"event": "a"}\n{"eve') == [{"event": "a"}]
    assert parse_events("") == []


@pytest.mark.parametrize(
    ("happened", "line"),
    [
        (event("joined", sources=[], members=1), "al founded the cluster"),
        (
            event(
                "joined",
                bytes=2000,
                seconds=1.5,
                sources=[{"node": "b\x1bo", "bytes": 2000, "seconds": 1.5}],
            ),
            "al joined and pulled 2.0 kB in 1.50 s from b o (2.0 kB)",
        ),
        (
            event("left", iteration=9, seconds=0.2),
            "al ended at step 9 after 0.20 s",
        ),
        (
            event("evaluated", name="accuracy", value=0.9712, iteration=9),
            "al measured accuracy 97.12%",
        ),
        (event("error", message="no\nluck"), "al: no luck"),
        (
            event("scheduler", node="al", term=2, why="failed over"),
            "al takes over as scheduler (term 2)",
        ),
        (event("scheduler", node="bo", term=2, why="failed over"), None),
        (event("scheduler", node="al", term=1, why="founded"), None),
        (event("member_left", node="bo", reason="leave", stall_s=0.1), None),
        (event("member_left", node="bo", reason="failure", stall_s=None), "al goes on without bo"),
        (
            event("member_left", node="bo", reason="failure", stall_s=0.012),
            "al goes on without bo, after a stall of 12 ms",
        ),
        (event("step", iteration=9), None),
    ],
)
def test_what_is_told_of_an_event(happened: Event, line: str | None) -> None:
    assert describe("al", happened) == line
