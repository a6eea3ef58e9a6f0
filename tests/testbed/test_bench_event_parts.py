"""`scripts/bench events`: which part of a step an event makes longer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.testbed.bench.event_parts import Parts, parts_of_longest, table


def step(compute: float, sync: float, stall: float) -> dict[str, Any]:
    return {"compute_s": compute, "sync_s": sync, "stall_s": stall}


def test_the_longest_step_is_compared_with_usual_ones() -> None:
    steps = [(n, float(n)) for n in range(10)] + [(10, 12.5), (11, 13.6)]
    events = {n: step(0.5, 0.3, 0.0) for n in range(10)}
    events |= {10: step(0.6, 1.3, 0.1), 11: step(0.5, 0.4, 0.0)}
    found = parts_of_longest(steps, events, 9.5, 13.0, 5)
    assert found is not None
    assert found.computing == pytest.approx(0.1)
    assert found.summing == pytest.approx(1.0)
    assert found.holding == pytest.approx(0.1)
    assert found.rest == pytest.approx(2.5 - 1.2)
    assert parts_of_longest(steps, events, 20.0, 21.0, 5) is None
    assert parts_of_longest(steps, {11: events[11]}, 9.5, 13.0, 5) is None


def test_the_table_has_medians_in_milliseconds() -> None:
    text = table({"kill -9": [Parts(0.001, 0.02, 0.0, 0.1), Parts(0.003, 0.04, 0.0, 0.3)]})
    assert "| kill -9 | 2.0 | 30.0 | 0.0 | 200.0 |" in text
