"""The benchmark of trouble: its figures from events, its table, and one short case with agents."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.testbed.bench import trouble
from tests.testbed.bench import trouble_figures as figures
from tests.testbed.bench.trouble_cases import ALL, CASES
from tests.testbed.bench.trouble_stage import BYTES, CONNECTION, REJECTS, Outcome, check_tree
from tests.testbed.namespaces import TestbedError
from tests.testbed.shaping import UNSHAPED

Event = dict[str, Any]


def steps(*times: float, first: int = 1, members: int = 2) -> list[Event]:
    """Return events of steps that were complete at these times."""
    return [
        {"t": t, "event": "step", "iteration": first + k, "members": members}
        for k, t in enumerate(times)
    ]


def near(seconds: float) -> Any:
    """Return what is equal to a computed time, except for rounding."""
    return pytest.approx(seconds)


def event(t: float, kind: str, **values: Any) -> Event:
    return {"t": t, "event": kind, **values}


def test_how_long_others_stood_is_the_longest_step_around_the_trouble() -> None:
    found = steps(1.0, 5.0, 5.1, 5.2, 7.7, 7.8)
    assert figures.longest_stand(found, 5.15, 8.0) == (near(2.5), False)
    assert figures.longest_stand(found, 7.75, 7.8) == (near(0.1), False)


def test_who_stands_on_did_so_until_the_end() -> None:
    found = steps(1.0, 1.1)
    assert figures.longest_stand(found, 1.1, 31.1) == (near(30.0), True)
    assert figures.longest_stand([], 1.0, 31.0) == (30.0, True)
    left = [*found, event(2.1, "left")]
    assert figures.longest_stand(left, 1.1, 31.1) == (near(1.0), False)


def test_steps_that_were_done_apart_are_set_aside_if_their_device_joins_again() -> None:
    begin = event(0.0, "joined")
    lost = event(2.5, "member_left", node="bob", reason="failure")
    apart = [begin, *steps(1.0, 2.0), lost, *steps(3.0, 4.0, first=3, members=1)]
    assert figures.set_aside(apart) == 0, "it has gone on, and nobody knows better"
    joins = [event(4.9, "link_up", node="bob"), event(5.0, "joined")]
    again = [*apart, *joins, *steps(6.0, 7.0, first=9)]
    assert figures.set_aside(again) == 2
    twice = [begin, *steps(1.0, 2.0, 3.0), *joins, *steps(6.0, first=3)]
    assert figures.set_aside(twice) == 1
    left = event(2.5, "member_left", node="bob", reason="leave")
    assert figures.set_aside([begin, *steps(1.0), left, *joins]) == 0


def test_digests_are_compared_where_the_history_is_the_same() -> None:
    def digest(iteration: int, commit: str, state: str) -> Event:
        return event(0.0, "digest", iteration=iteration, commit=commit, state=state)

    alice = [digest(10, "x", "a"), digest(20, "y", "b"), digest(30, "z", "c")]
    bob = [digest(10, "x", "a"), digest(20, "y", "B"), digest(30, "other", "d")]
    assert figures.digests({"alice": alice, "bob": bob}) == (2, 1)


def test_a_device_is_back_when_its_trainer_has_caught_up_and_all_make_a_step() -> None:
    late = [event(2.0, "member_late", node="bob"), *steps(3.0, 5.5)]
    assert figures.back("bob", late, 1.0, 5.0, 2) is None
    found = [*late, event(6.0, "member_back", node="bob"), *steps(6.5, first=3)]
    assert figures.back("bob", found, 1.0, 5.0, 2) == pytest.approx(1.5)
    assert figures.back("bob", found, 1.0, 5.0, 3) is None
    assert figures.back("alice", found, 1.0, 5.0, 2) == pytest.approx(0.5)
    again = [*late, event(6.0, "joined"), *steps(6.5, first=3)]
    assert figures.back("bob", again, 1.0, 5.0, 2) == pytest.approx(1.5)


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    trouble.add_options(parser)
    return parser.parse_args(words)


def test_the_cases_parse() -> None:
    assert len(CASES) == len(ALL)
    assert options().case is None
    assert options("--case", "loop", "--case", "away").case == ["loop", "away"]
    with pytest.raises(SystemExit):
        options("--case", "nothing")
    for case in ALL:
        assert set(case.others) <= set(case.names)
        assert case.in_namespaces or case.victim  # without one it is about a link
        assert not (case.moves or case.rate < UNSHAPED) or case.in_namespaces
    assert all(kind in REJECTS for kind in ("rst", "reject", "drop", "mtu", "loss"))


def test_the_busiest_connection_is_known_from_the_system() -> None:
    line = "0 0 10.90.0.2:41234 10.90.0.1:7430 cubic bytes_sent:9 bytes_acked:5 bytes_received:7"
    found = CONNECTION.match(line)
    assert found is not None
    assert found.groups() == ("41234", "7430")
    assert BYTES.findall(line) == ["5", "7"]


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="is no checkout of edgeagent"):
        check_tree(tmp_path)
    check_tree(trouble.ROOT)


def test_the_table_has_both_trees_side_by_side() -> None:
    statuses = {"alice": "0", "bob": "1"}
    now = Outcome("loop", stood=2.04, back=0.5, digests=3, equal=3, statuses=statuses)
    then = Outcome("loop", stood=45.0, stood_on=True, files=["bob.safetensors"], notes=["no end"])
    text = trouble.table([asdict(now)], {"loop": asdict(then)})
    _, _, before, after, _, remark = text.splitlines()
    assert before.startswith("| a loop without end, of two | before | > 45.00 s | 0 | 0 of 0 equal")
    assert before.endswith("| bob |")
    assert after == "|  | after | 2.04 s | 0 | 3 of 3 equal | 0.50 s | alice 0, bob 1 | none |"
    assert remark == "- a loop without end, of two, before: no end"


@pytest.mark.slow
@pytest.mark.long
def test_a_case_is_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = options("--case", "own-step")
    args.out = tmp_path
    assert trouble.run(args) == 0
    assert "one of three calls" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "trouble.json").read_text())["outcomes"]
    assert row["statuses"] == {"alice": "0", "bob": "1", "carol": "0"}
    assert row["equal"] == row["digests"] > 0
    assert not row["problems"]
    assert not row["stood_on"]
    assert any("the script called optimizer.step()" in line for line in row["said"]["bob"])
