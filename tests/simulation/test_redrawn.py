"""Plans follow links that change, and do not swing where nothing but measurements does."""

from __future__ import annotations

import statistics

import pytest

from tests.simulation.redrawn import CLEARLY_WORTH, FOLLOW_S, RedrawnWorld
from tests.variants import variants

SETTLE_S = 20.0  # in which the first ways are found


@pytest.mark.parametrize("seed", variants(range(1), long=range(6)))
def test_noise_alone_makes_no_other_plan(seed: int) -> None:
    world = RedrawnWorld(seed, 5)
    world.watch(SETTLE_S)
    assert world.policy.ways
    story = world.watch(120.0)
    assert story.steps > 60
    assert story.changes == []


@pytest.mark.parametrize("seed", variants(range(1), long=range(6)))
def test_a_plan_follows_links_that_change_at_once_and_only_once(seed: int) -> None:
    world = RedrawnWorld(seed, 5)
    world.watch(SETTLE_S)
    story = world.watch(150.0, every_s=30.0, links=8)
    waits = story.waits_s(CLEARLY_WORTH)
    assert waits, "rounds would have become slower"
    assert max(waits) <= FOLLOW_S
    assert len(story.changes) <= 2 * len(story.redrawn)
    assert statistics.median(story.over_best) < 1.15
