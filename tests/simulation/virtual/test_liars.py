"""One member of a cluster of real shells lies; the others go on, and end with the right state.

Each kind of message and each field of bulk frames has its turn; `scripts/liars FIRST LAST` plays
more seeds. The honest members, who are a quorum, must all finish in time, with the state that
contains every micro-batch once. What the liar sends may raise nothing but `RemoteProtocolError`,
and no two honest members may accuse each other. If one of the checks is taken away, a seed must
fail.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from edgeagent.dataplane import reduce, words
from protocols.recovery import fenced
from tests.simulation.virtual.liars import SUBJECTS, play, problem_of
from tests.variants import variants

SEEDS = variants(range(0, SUBJECTS, 2), long=range(2 * SUBJECTS))
Planted = Callable[[], AbstractContextManager[Any]]


def nothing(*_: object) -> None:
    """Stand in for a check, and let everything pass."""


MUTATIONS: dict[str, Planted] = {
    "words_unchecked": partial(patch.object, words, "check_word", nothing),
    "order_unchecked": partial(patch.object, reduce, "check_place", nothing),
    "checksums_unchecked": partial(patch.object, reduce, "checksum", lambda *_: 0),
    "anybody_orders": partial(patch.object, fenced, "may_order", lambda *_: True),
}
FOUND = {
    "words_unchecked": 64,
    "order_unchecked": 50,
    "checksums_unchecked": 162,
    "anybody_orders": 26,
}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_others_go_on(seed: int) -> None:
    play(seed)


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_check_that_is_taken_away_is_missed(mutation: str) -> None:
    with MUTATIONS[mutation]():
        assert problem_of(FOUND[mutation])
    assert not problem_of(FOUND[mutation])
