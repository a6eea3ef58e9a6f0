"""One member of a real cluster lies; the others go on, and end with the right bytes.

Law: each kind of message and each field of bulk frames has its turn; `scripts/liars FIRST LAST`
plays more seeds. The honest ones, who are a quorum, must all finish, in time, with the state that
every micro-batch leads to; nothing but `RemoteProtocolError` may have come out of what was sent;
and no two honest ones part from each other. Each check that is taken away is missed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from edgeagent.dataplane import reduce
from protocols.recovery import fenced
from tests.simulation.virtual.liars import SUBJECTS, play, problem_of
from tests.variants import variants

SEEDS = variants(range(SUBJECTS), long=range(2 * SUBJECTS))
Planted = Callable[[], AbstractContextManager[Any]]


def nothing(*_: object) -> None:
    """A check that lets everything pass."""


MUTATIONS: dict[str, Planted] = {
    "words_unchecked": partial(patch.object, reduce, "check_word", nothing),
    "order_unchecked": partial(patch.object, reduce, "check_place", nothing),
    "checksums_unchecked": partial(patch.object, reduce, "checksum", lambda *_: 0),
    "anybody_orders": partial(patch.object, fenced, "may_order", lambda *_: True),
}
FOUND = {
    "words_unchecked": 55,
    "order_unchecked": 41,
    "checksums_unchecked": 47,
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
