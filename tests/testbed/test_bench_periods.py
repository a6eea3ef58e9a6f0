"""`scripts/bench periods`: the cells of its devices, and what its table says of runs."""

from __future__ import annotations

import pytest

from tests.testbed.bench.periods import CELLS, EQUAL, UNEQUAL, Outcome, shares_of, table


@pytest.mark.parametrize("kind", [EQUAL, UNEQUAL])
def test_all_cells_are_dealt_out_and_a_slower_device_has_fewer(kind: str) -> None:
    fastest, second, slowest, third = shares_of(kind)
    assert fastest + second + slowest + third == CELLS
    if kind == EQUAL:
        assert fastest == slowest == CELLS // 4
    else:
        assert fastest > second > third > slowest > 0


def test_a_run_that_never_came_there_counts_as_later_than_all_others() -> None:
    good = Outcome(EQUAL, 1, 1, (0.5, 0.91, *[0.95] * 5), (1.0,) * 2 + (0.2,) * 5)
    late = Outcome(EQUAL, 1, 2, (0.5, 0.6, 0.7, *[0.9] * 5), (0.4,) * 8)
    bad = Outcome(EQUAL, 1, 3, (0.5,) * 8, (2.4,) * 8)
    some = table([good, late, bad], 0.9).splitlines()[2]
    assert some == "| equal parts | 1 | 3 | 78.3 % (50.0 to 95.0) | 1.000 (0.200 to 2.400) | 4 |"
    other = Outcome(UNEQUAL, 5, 1, bad.accuracies, bad.losses)
    lines = table([good, bad, bad, other], 0.9).splitlines()[2:]
    assert [line.split(" | ")[-1] for line in lines] == ["never |", "never |"]
