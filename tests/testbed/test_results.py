"""The summary of a run: what it finds wrong with histories written by hand, and its figures.

No agents run here. Each fault that is planted in a history has to show as a problem.
"""

from __future__ import annotations

import tomllib
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.testbed import results
from tests.testbed.play import Life, Played
from tests.testbed.scenario import Scenario, parse

BATCH = 64
BEGAN_T = 0.5
PLAIN = """
nodes = ["al", "bo", "cy"]
end_s = 100
[job]
name = "digits"
steps = 1000
[network]
rate = 50
"""
CUT = '[[event]]\nat_s = 5\ndo = "cut"\nbetween = ["al", "bo"]\n'
APART = '[[event]]\nat_s = 5\ndo = "partition"\ngroups = [["al"], ["bo", "cy"]]\n'
HEAL = '[[event]]\nat_s = 9\ndo = "heal"\n'

Event = dict[str, Any]


def scenario(text: str = "") -> Scenario:
    return parse(tomllib.loads(PLAIN + text), "x.toml", "x")


def member(
    name: str, first: int, last: int, fork: str = "", founded: bool = False, at: float = 0.0
) -> list[Event]:
    """Return the events of a member with one step per second, the n-th of them at n + `at`."""
    entry = {"t": first + at, "event": "joined", "members": [name] if founded else ["x", name]}
    found: list[Event] = [{**entry, "sources": [] if founded else [{"node": "x"}]}]
    for k in range(first, last + 1):
        step: Event = {"t": k + at, "event": "step", "iteration": k, "samples": BATCH}
        step["members"] = 1 if founded and fork else 2
        state = {"state": f"s{k}{fork}", "commit": f"c{k}{fork}"}
        found += [step, {"t": k + at, "event": "digest", "iteration": k, **state}]
    return found


def life(name: str, events: list[Event], end: str = "ctrl-c", stayed: bool = True) -> Life:
    """Return an agent's run that has ended."""
    process = SimpleNamespace(poll=lambda: -9 if end == "kill" else 0)
    agent = SimpleNamespace(events=events, log="", process=process)
    return Life(name, name, cast("Any", agent), end, stayed=stayed)


def judged(*lives: Life, text: str = "") -> dict[str, Any]:
    played = Played(BEGAN_T, 100.0, list(lives))
    return results.summary(scenario(text), played)


def test_one_history_has_no_problems() -> None:
    killed = life("cy", [*member("cy", 5, 8), *member("cy", 9, 9, "y")[1:]], "kill", False)
    found = judged(life("al", member("al", 1, 9, founded=True)), life("bo", member("bo", 4, 9)))
    assert found["problems"] == []
    assert found["digests_equal"]
    assert found["digest_comparisons"] == 6
    assert judged(life("al", member("al", 1, 9)), killed)["problems"] == []


AL = member("al", 1, 9, founded=True)
WRONG: list[tuple[list[Event], str]] = [
    ([*member("bo", 1, 3), *member("bo", 5, 9)[1:]], "bo: step 5 follows 3"),
    ([*member("bo", 1, 3), *member("bo", 3, 9)[1:]], "bo: step 3 follows 3"),
    (member("bo", 4, 9, "z"), "bo and al: two histories at step 4"),
    (member("bo", 4, 9, "z"), "not the same model at the end: al and bo at step 9"),
    ([{**e, "samples": 60} if e["event"] == "step" else e for e in member("bo", 4, 5)], "bo: not"),
    ([{**e, "state": "z"} if e["event"] == "digest" else e for e in member("bo", 9, 9)], "bo and"),
]


@pytest.mark.parametrize(("bo", "problem"), WRONG)
def test_what_is_wrong_with_the_history_is_a_problem(bo: list[Event], problem: str) -> None:
    found = judged(life("al", AL), life("bo", bo))
    assert any(said.startswith(problem) for said in found["problems"]), found["problems"]
    assert len(set(found["problems"])) == len(found["problems"])


def test_a_step_that_nobody_did_is_a_problem() -> None:
    both = [life(name, [*member(name, 1, 3), *member(name, 5, 9)]) for name in ("al", "bo")]
    assert f"{8 * BATCH} samples in 9 steps of {BATCH}" in judged(*both)["problems"]
    resumed = [life(name, member(name, 101, 109)) for name in ("al", "bo")]
    assert judged(*resumed)["problems"] != []
    played = Played(BEGAN_T, 100.0, resumed)
    options = 'steps = 1000\noptions = ["--resume", "x"]'
    text = PLAIN.replace("steps = 1000", options)
    read = parse(tomllib.loads(text), "x.toml", "x")
    assert results.summary(read, played)["problems"] == []


def test_who_was_cut_off_may_go_on_apart_for_a_while_but_not_for_good() -> None:
    back = [*member("bo", 1, 6, "z"), *member("bo", 7, 9)]
    assert judged(life("al", AL), life("bo", back))["problems"] != []
    for text in (CUT, APART + HEAL):
        assert judged(life("al", AL), life("bo", back), text=text)["problems"] == []
    for_good = life("bo", [*member("bo", 1, 4), *member("bo", 5, 9, "z")[1:]])
    for text in (CUT, APART + HEAL):  # "cy" joins those whose link is cut, but it was never there
        found = judged(life("al", AL), for_good, text=text)
        assert not found["digests_equal"]
        assert (found["problems"] == []) == (text == CUT)
    joint = life("cy", member("cy", 1, 9))
    assert judged(life("al", AL), for_good, joint, text=CUT)["problems"] != []
    twice = life("bo", [*member("bo", 1, 6), *member("bo", 6, 9)[1:]])
    assert judged(life("al", AL), twice, text=CUT)["problems"] == ["bo: step 6 follows 6"]


def test_two_that_never_were_at_the_same_step_are_not_equal() -> None:
    slow = [e for e in member("bo", 1, 9) if e["event"] != "digest" or e["iteration"] < 4]
    fast = [e for e in AL if e["event"] != "digest" or e["iteration"] >= 4]
    late = [{**e, "t": e["t"] + 3} for e in slow]
    assert not judged(life("al", fast), life("bo", late))["digests_equal"]


def test_clusters_given_up_before_all_trained_together_do_not_count() -> None:
    link_up = {"t": -5.0, "event": "link_up", "node": "al"}
    early = [*member("bo", 1, 3, "z", at=-9), link_up, *member("bo", 4, 9, at=-4)]
    assert judged(life("al", AL), life("bo", early))["problems"] == []
    alone = member("bo", 1, 3, "z", founded=True, at=2)
    assert (
        judged(life("al", AL), life("bo", [*alone, link_up, *member("bo", 6, 9)]))["problems"] == []
    )
    later = [*member("bo", 1, 3), *alone, link_up, *member("bo", 6, 9)]
    assert judged(life("al", AL), life("bo", later))["problems"] != []


def test_each_time_that_a_node_goes_is_a_figure() -> None:
    def left(t: float, stall_s: float | None) -> Event:
        return {
            "t": t,
            "event": "member_left",
            "node": "bo",
            "reason": "failure",
            "stall_s": stall_s,
        }

    events = {
        "al": [left(2.0, 0.1), left(5.0, 0.3)],
        "cy": [left(2.1, 0.2), left(5.1, None), left(40.0, 0.4)],
        "dy": [left(5.2, 0.25)],
    }
    found = results.member_stalls(events, 1.0)
    assert [entry["stall_s"] for entry in found] == [0.2, 0.3, 0.4]
    assert [entry["t_s"] for entry in found] == pytest.approx([1.1, 4.2, 39.0])
