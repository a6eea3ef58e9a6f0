"""The benchmarks of a divided optimizer's parts: tables, what moves, and with --long a real run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from protocols.cluster.stripes import Stripe
from tests.testbed.bench import KINDS, moves, parts
from tests.testbed.bench.moves import STRIPES, bound, busiest, join, levelled, loss, ranges, view_of
from tests.testbed.bench.parts import Outcome, table


def test_steps_are_compared_to_the_first_run_of_their_case() -> None:
    first = Outcome("links", "equal links", "whole", (2.0, 1.0, 3.0), 6.25)
    second = Outcome("links", "equal links", "divided", (3.0, 3.0, 5.5), 7.25, 1.0)
    other = Outcome("changes", "x", "has joined", (1.0,), learned_s=12.34)
    failed = Outcome("links", "equal links", "stars", why="no agent")
    rows = table([first, second, other, failed]).splitlines()
    assert rows[2] == "| links | equal links | whole | 2.000 s | 1.000 | 3.000 s | 6.25 |  |  |"
    of_first = "| links | equal links | divided | 3.000 s | 1.500 | 5.500 s"
    assert rows[3] == f"{of_first} | 7.25 | 1.0000 |  |"
    assert rows[4] == "| changes | x | has joined | 1.000 s | 1.000 | 1.000 s |  |  | 12.3 s |"
    assert "failed: no agent" in rows[5]
    assert len({row.count("|") for row in rows}) == 1


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_a_newcomer_gets_its_part_and_nothing_else_moves(count: int) -> None:
    for copies in (0, 1):
        least = bound(count, copies, joins=True)
        assert least - 1 <= join(levelled, count, copies).total() <= least + 1
    # A range for each device moves (D + 1) / 2 times as much.
    others = join(ranges, count, 0).total()
    assert others == pytest.approx(least_of_one(count) * (count + 1) / 2, rel=0.15)


def least_of_one(count: int) -> float:
    return bound(count, 0, joins=True)


def test_a_loss_moves_about_what_was_lost() -> None:
    for count in (4, 5, 8):
        least = bound(count, 1, joins=False)
        assert least - 1 <= loss(levelled, count, 1).total() <= 1.25 * least
    assert bound(2, 1, joins=False) == 0.0  # the other one has all of it


def test_ranges_and_moves() -> None:
    view = view_of(3)
    found = ranges(view, (Stripe(b"\0"),) * 6, 1)
    assert [s.holders for s in found] == [
        bytes(pair) for pair in ((0, 1), (1, 2), (2, 0)) * 1 for _ in (0, 1)
    ]
    went = moves.moved((Stripe(b"\0\1"), Stripe(b"\0\1")), (Stripe(b"\2\0"), Stripe(b"\2\1")))
    assert went == {(0, 2): 1, (1, 2): 1}
    assert busiest(went) == 1
    assert STRIPES == 128


@pytest.mark.long
def test_a_real_run(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    KINDS["parts"].add_options(parser)
    small = ["--parameters", "200000", "--sizes", "200000", "--steps", "3", "--compute-ms", "5"]
    args = parser.parse_args([*small, "--what", "copies", "changes"])
    args.out = tmp_path
    assert parts.run(args) == 0
    runs = json.loads((tmp_path / "parts.json").read_text())["runs"]
    assert [r["way"] for r in runs[:3]] == ["0 copies", "1 copies", "2 copies"]
    assert runs[0]["sent"] < runs[1]["sent"] < runs[2]["sent"]
    assert [round(r["sums"], 2) for r in runs[:3]] == [0.0, 1.0, 2.0]
    assert [r["way"] for r in runs[3:]] == [
        "before",
        "a device has joined",
        "four devices",
        "a device was killed",
        "after",
    ]
