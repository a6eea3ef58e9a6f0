"""Pictures of a run: labels of the timeline do not cover one another."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from tests.testbed import plots
from tests.testbed.play import Mark, Played


def test_labels_go_below_those_beside_them_and_no_deeper() -> None:
    labels = [(0.0, 2.0, 0.1), (1.0, 3.0, 0.2), (1.5, 3.5, 0.1), (2.0, 4.0, 0.1), (9.0, 11.0, 0.1)]
    shifts = plots.stagger(labels)
    assert shifts == pytest.approx([0.0, 0.1, 0.3, 0.0, 0.0])
    for (a, x), (b, y) in combinations(zip(labels, shifts, strict=True), 2):
        beside = a[1] > b[0]
        assert not beside or x + a[2] <= y + 1e-9 or y + b[2] <= x + 1e-9


def test_a_picture_with_many_marks_at_one_time_is_drawn(tmp_path: Path) -> None:
    if plots.missing():
        pytest.skip(plots.missing())
    times = (3.0, 3.1, 3.2, 3.2, 3.25, 8.0, 20.0, 20.4)
    marks = [Mark(t, t, f"join node-{k}") for k, t in enumerate(times)]
    paths = plots.draw(Played(0.0, 30.0, marks=marks), "marks", tmp_path)
    assert [path.name for path in paths] == ["loss.png", "members.png", "samples-per-s.png"]
