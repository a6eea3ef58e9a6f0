"""The comparison of learning with and without changes: a small real one, and its figures."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.testbed.convergence import Curve, Plan, draw, greatest_difference, table, train

if TYPE_CHECKING:
    from pathlib import Path

CURVE = Curve(Plan(4), (2.0, 1.0), (0.0, 0.5), (4, 4), None, {"accuracy": 0.5}, "d")


@pytest.mark.long
def test_a_device_that_leaves_changes_no_loss_by_more_than_rounding(tmp_path: Path) -> None:
    said: list[str] = []
    changed = train("digits", Plan(2, -1), 40, tmp_path / "changed", (), said.append)
    alone = train("digits", Plan(1), 40, tmp_path / "alone", (), said.append)
    assert changed.changed_at is not None
    assert 2 in changed.members  # the founder does the first iterations alone
    assert changed.members[-1] == 1
    assert alone.changed_at is None
    assert greatest_difference(changed, alone) < 0.02
    assert changed.scores.keys() == alone.scores.keys() == {"accuracy"}


def test_the_table_compares_with_the_first_run() -> None:
    other = replace(CURVE, plan=Plan(4, 1), losses=(2.0, 0.9), changed_at=2, scores={})
    assert greatest_difference(CURVE, other) == pytest.approx(0.1)
    lines = table([CURVE, other])
    assert lines[2] == "| 4 devices | - | 1.0000 | 0.0e+00 | 0.5000 | 0 |"
    assert lines[3] == "| 4 to 5 devices | 2 | 0.9000 | 1.0e-01 | nan | 0 |"


def test_the_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need the extra `bench`")
    other = replace(CURVE, plan=Plan(4, 1), changed_at=2)
    draw([CURVE, other], "a title", tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 10_000
