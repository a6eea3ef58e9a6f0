"""`scripts/bench scales`: what its table says of runs."""

from __future__ import annotations

from tests.testbed.bench.scales import Outcome, table


def test_a_cell_has_the_end_of_all_runs_and_when_it_was_there() -> None:
    good = Outcome("SGD", "sqrt", "equal parts", 1, (0.5, 0.91, *[0.95] * 5))
    bad = Outcome("SGD", "sqrt", "equal parts", 2, (0.5,) * 7)
    late = Outcome("SGD", "sqrt", "equal parts", 3, (0.5, 0.5, *[0.9] * 5))
    other = Outcome("SGD", "none", "equal parts", 1, (0.2,) * 7)
    lines = table([good, bad, late, other], 0.9).splitlines()
    assert lines[0] == "| optimizer | sqrt, equal parts | none, equal parts |"
    assert lines[2] == "| SGD | 78 % (50 to 95; 3) | 20 % (20 to 20; never) |"
