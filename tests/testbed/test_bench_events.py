"""The arithmetic of the events' benchmark, and the job that it runs."""

from __future__ import annotations

import math
import time
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.testbed import synthetic
from tests.testbed.bench import events
from tests.testbed.bench.events import JOIN, KILL, Seen, Steps

USUAL = 0.1
MANY = events.QUIET_STEPS + 10  # quiet steps before an event


def ends_of(*gaps: float) -> list[float]:
    """Return the ends of steps that are these gaps apart, after quiet steps."""
    return list(accumulate([0.0] + [USUAL] * MANY + list(gaps)))


QUIET_S = ends_of()[-1]


def test_a_stall_is_the_longest_step_around_the_event_less_the_usual_one() -> None:
    ends = ends_of(0.1, 0.4, 0.15, 0.1, 0.9)
    found = events.seen(JOIN, ends, QUIET_S + 0.05, QUIET_S + 0.6)
    assert found.steps == 3
    assert found.usual == pytest.approx(USUAL)
    assert found.stall == pytest.approx(0.3)
    assert found.idle == pytest.approx(0.35)
    assert found.floor == found.floor_idle == pytest.approx(0.0)
    assert found.difference == pytest.approx(0.3)
    assert found.idle_difference == pytest.approx(0.35)


def test_the_control_is_as_many_steps_directly_before() -> None:
    gaps = [0.1, 0.1, 0.3, 0.1, 0.2, 0.1]  # the last four are quiet, then the event
    ends = ends_of(*gaps, 0.5, 0.1, 0.1, 0.1, 0.1)
    began = QUIET_S + sum(gaps) + 0.01
    short = events.seen(KILL, ends, began, began + 0.5)
    assert short.steps == 2
    assert short.floor == pytest.approx(0.1)
    longer = events.seen(KILL, ends, began, began + 0.7)
    assert longer.steps == 4
    assert longer.floor == pytest.approx(0.2)
    assert longer.floor_idle == pytest.approx(0.3)
    assert longer.difference == pytest.approx(0.2)


def test_the_usual_step_is_that_of_the_steps_before_the_control() -> None:
    ends = ends_of(*[0.2] * 20, *[0.5] * 20, 0.1)
    began = QUIET_S + 20 * 0.2 + 0.01
    found = events.seen(KILL, ends, began, began + 20 * 0.5 - 0.02)
    assert found.steps == 20
    assert found.usual == pytest.approx(USUAL)
    assert found.floor == pytest.approx(0.1)
    assert found.stall == pytest.approx(0.4)


def test_what_disturbs_before_the_event_is_not_quiet() -> None:
    ends = ends_of(0.5, 0.5, 0.1, 0.1)
    found = events.seen(JOIN, ends, QUIET_S + 1.01, QUIET_S + 1.05, QUIET_S)
    assert found.floor == pytest.approx(0.0)
    assert found.stall == pytest.approx(0.0)
    assert events.seen(JOIN, ends, QUIET_S + 1.01, QUIET_S + 1.05).floor == pytest.approx(0.4)


def test_too_few_steps_are_refused() -> None:
    few = ends_of()[: events.QUIET_STEPS + 2]  # one gap more than the usual ones
    after = [few[-1] + 0.1, few[-1] + 0.2, few[-1] + 0.3]
    assert events.seen(KILL, few + after, few[-1] + 0.01, few[-1] + 0.05).steps == 1
    with pytest.raises(ValueError, match="only 31 before"):
        events.seen(KILL, few + after, few[-1] + 0.01, few[-1] + 0.15)
    with pytest.raises(ValueError, match="before it"):
        events.seen(KILL, ends_of(0.1), QUIET_S + 0.05, QUIET_S + 0.5)  # not over yet
    with pytest.raises(ValueError, match="0 steps around"):
        events.seen(KILL, ends_of(), QUIET_S, QUIET_S + 1)


def test_the_agents_times_must_agree_with_those_from_outside() -> None:
    outside = [(k, 100.0 + 0.1 * k) for k in range(7, 7 + 2 * events.QUIET_STEPS)]
    near = {k: t + (0.5 if k % 3 == 0 else 0.004) for k, t in outside}
    assert events.apart(outside, near) == pytest.approx(0.004)
    with pytest.raises(ValueError, match=r"own times of steps are 25\.0 ms from"):
        events.apart(outside, {k: t - 0.025 for k, t in outside})
    with pytest.raises(ValueError, match="only 2 steps are in both"):
        events.apart(outside, {7: 100.7, 8: 100.8})
    with pytest.raises(ValueError, match="not one after the other"):
        events.apart(outside[:5] + outside[6:], near)


def test_steps_are_read_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    path.write_text("1 10.5\n2 11.5\n3 12.")
    steps = Steps(path)
    assert steps.since(0.0) == [(1, 10.5), (2, 11.5)]
    with path.open("a") as file:
        file.write("25\n")
    assert steps.since(11.0) == [(2, 11.5), (3, 12.25)]
    assert steps.since(12.25) == []


def test_links_of_the_observer_are_left_alone() -> None:
    mesh = [{"a": "c", "b": "a"}, {"a": "d", "b": "b"}, {"a": "a", "b": "b"}, {"a": "b", "b": "c"}]
    assert events.links_without(mesh, "a") == [("b", "c"), ("d", "b")]
    assert events.links_without(mesh[:1], "a") == []


def test_quantiles_are_values_that_were_seen() -> None:
    values = [float(k) for k in range(1, 101)]
    assert events.quantile(values, 0.99) == 99.0
    assert events.quantile(values, 0.5) == 50.0
    assert events.quantile([3.0], 0.99) == 3.0


def test_an_interval_holds_the_quantile_as_often_as_it_says() -> None:
    chance = np.random.default_rng(1)
    for part, count in ((0.5, 20), (0.99, 500)):
        tries = [events.interval(list(chance.random(count)), part) for _ in range(150)]
        hits = sum((low or 0.0) <= part <= (1.0 if high is None else high) for low, high in tries)
        assert hits >= 0.9 * len(tries)
    assert events.interval([1.0, 2.0, 3.0], 0.99)[1] is None
    assert events.interval([float(k) for k in range(500)], 0.99)[1] is not None


def found_of(kind: str, decision: float | None = None) -> list[Seen]:
    """Return twenty events of which the stalls rise and the noise falls."""
    return [
        Seen(kind, 0.0, 1.0, 0.1, 3, 0.01 * k, 0.001 * (21 - k), 0.02 * k, 0.001, decision=decision)
        for k in range(1, 21)
    ]


def test_the_table_has_a_line_for_each_kind_that_was_seen() -> None:
    rows = events.summary(found_of(JOIN) + found_of(KILL, 0.04))
    assert [(row["event"], row["count"]) for row in rows] == [(JOIN, 20), (KILL, 20)]
    text = events.table(rows)
    stall, noise = "105.0 (60.0 to 150.0) | 200.0 (190.0 to ?)", "10.5 (6.0 to 15.0) | 20.0 "
    assert f"| scale-out | 20 | {stall} | {noise}" in text
    idle = "Idle time of the members during a scale-out: median 210.0 (120.0 to 300.0) ms"
    assert idle in text
    assert "where nothing happens: median 1.0 (1.0 to 1.0) ms" in text
    assert "last survivor's decision: median 40.0 (40.0 to 40.0) ms" in text
    heading, rule, first, *_ = text.splitlines()
    assert heading.count("|") == rule.count("|") == first.count("|")


def test_differences_are_taken_event_by_event() -> None:
    (row,) = events.summary(found_of(KILL))
    differences = [0.01 * k - 0.001 * (21 - k) for k in range(1, 21)]
    assert row["difference"]["median"] == pytest.approx(float(np.median(differences)))
    assert row["difference"]["median_interval"] == pytest.approx((differences[5], differences[14]))
    assert "decision" not in row


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert events.draw(events.summary(found_of(JOIN)), "title", tmp_path / "events.png")
    assert (tmp_path / "events.png").stat().st_size > 1000


# --- the job --------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [1, 4])
def test_shapes_hold_exactly_what_is_asked_for(blocks: int) -> None:
    for numbers in (0, 1, 63, 64, 1000, 4001, 24_999, 25_000, 2_500_000, 14_975_000):
        found = synthetic.shapes(numbers, blocks)
        assert sum(math.prod(shape) for shape in found) == numbers
        assert all(length > 0 for shape in found for length in shape)
    whole = synthetic.shapes(250_000, blocks)
    width = whole[0][1]
    assert len(whole) in (12 * blocks + 1, 12 * blocks + 2)
    assert width % 16 == 0
    assert whole.count((3 * width, width)) == whole.count((width, 4 * width)) == blocks
    assert math.prod(whole[0]) < 150_000  # the embedding


def test_the_model_has_the_sizes_that_are_asked_for() -> None:
    for state, gradient in ((1_000_000, 100_000), (100_000, 500_000), (0, 100_000), (60_000, 0)):
        model = synthetic.Synthetic(state, gradient)
        trained = sum(4 * layer.numel() for layer in model.layers)
        whole = sum(4 * parameter.numel() for parameter in model.parameters())
        assert trained == max(4 * synthetic.LEAST, gradient)
        assert whole == max(state, trained)
        assert [p.requires_grad for p in model.frozen] == [False] * len(model.frozen)


def test_every_trainable_tensor_gets_a_dense_gradient_and_comes_back_from_a_file() -> None:
    model = synthetic.Synthetic(0, 100_000)
    model(torch.ones(2, 1)).backward()
    assert all(layer.grad is not None and layer.grad.all() for layer in model.layers)
    saved = {f"model.{k}": v.detach() + 3.0 for k, v in model.state_dict().items()}
    other = synthetic.Synthetic(0, 100_000)
    other.load(saved)
    assert all((layer == 3.0).all() for layer in other.layers)


def test_a_step_is_noted_at_once_and_by_this_clock(tmp_path: Path) -> None:
    path, before = tmp_path / "steps", time.time()
    with synthetic.notes(str(path)) as note:
        note(4)
        note(5)
        found = Steps(path).since(0.0)
    assert [number for number, _ in found] == [4, 5]
    assert before - 1e-5 <= found[0][1] <= found[1][1] <= time.time()
    with synthetic.notes("") as note:
        note(1)
