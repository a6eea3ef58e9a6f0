"""A control word that is held back at the root, so that a policy can still be named in it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from protocols.rounds.round import (
    LAST_PART,
    Add,
    Complete,
    Finish,
    Lane,
    Round,
    RoundEffect,
    SendDown,
    Spread,
)

from .records import node
from .test_round import spec_of

if TYPE_CHECKING:
    from collections.abc import Iterable

ONE, TWO = node(1), node(2)
CHUNKS = 41  # with the word
FEW = int(LAST_PART * (CHUNKS - 1))
SUMMED = [Add(0, ONE, True), Add(0, TWO, False)]
SPREAD = [Finish(0, False), SendDown(0, (ONE, TWO))]


def root(chunks: int = CHUNKS, spread: tuple[Spread, ...] = ()) -> Round:
    """Return the round of a root with two children, which has contributed."""
    found = Round(spec_of(None, (ONE, TWO), chunks=chunks, spread=spread))
    found.contribute()
    return found


def ups(here: Round, chunks: Iterable[int]) -> list[RoundEffect]:
    """Let both children's sums of these chunks arrive; return the effects."""
    effects: list[RoundEffect] = []
    for chunk in chunks:
        effects += here.up(ONE, chunk)
        effects += here.up(TWO, chunk)
    return effects


def test_the_word_comes_when_hardly_anything_else_is_missing() -> None:
    here = root()
    here.hold_word()
    assert ups(here, (0,)) == SUMMED
    assert not any(e in SPREAD for e in ups(here, range(1, CHUNKS - FEW - 1)))
    (last,) = range(CHUNKS - FEW - 1, CHUNKS - FEW)
    assert ups(here, (last,))[-2:] == SPREAD
    effects = ups(here, range(CHUNKS - FEW, CHUNKS))
    assert effects.count(Complete()) == 1
    assert here.complete


def test_it_comes_as_soon_as_it_is_released() -> None:
    here = root()
    here.hold_word()
    ups(here, (0,))
    assert here.release_word() == SPREAD
    assert here.release_word() == []
    assert ups(here, range(1, CHUNKS))[-1] == Complete()


def test_it_comes_with_its_last_part_if_it_was_released_before() -> None:
    here = root()
    here.hold_word()
    here.up(ONE, 0)
    assert here.release_word() == []
    assert here.up(TWO, 0) == [SUMMED[1], *SPREAD]


def test_it_waits_for_this_nodes_own_part() -> None:
    here = Round(spec_of(None, (ONE, TWO), chunks=CHUNKS))
    here.hold_word()
    ups(here, (0,))
    assert here.release_word() == []
    assert here.contribute()[:4] == [*SUMMED, *SPREAD]


def test_a_round_of_few_chunks_is_completed_once() -> None:
    here = root(chunks=4)
    here.hold_word()
    ups(here, (0, 1, 2))
    effects = ups(here, (3,))
    assert effects[-3:] == [*SPREAD, Complete()]
    assert effects.count(Complete()) == 1


def test_it_is_the_last_chunk_if_it_is_the_last_to_come() -> None:
    here = root()
    here.hold_word()
    ups(here, range(1, CHUNKS))
    assert ups(here, (0,)) == [*SUMMED, *SPREAD, Complete()]


def test_it_is_not_held_where_others_would_wait_for_it() -> None:
    only = root(chunks=1)
    only.hold_word()
    assert ups(only, (0,)) == [*SUMMED, *SPREAD, Complete()]
    late = root()
    ups(late, range(1, CHUNKS - FEW))
    late.hold_word()
    assert ups(late, (0,)) == [*SUMMED, *SPREAD], "little else is missing"
    done = root()
    ups(done, (0,))
    done.hold_word()
    assert done.release_word() == [], "it is summed"


def test_it_is_not_held_where_it_is_not_summed() -> None:
    leaf = Round(spec_of(ONE, chunks=CHUNKS))
    leaf.contribute()
    leaf.hold_word()
    assert leaf.release_word() == []
    kept = root(spread=(Spread((0,), None, (ONE,)),))
    kept.begin()
    kept.hold_word()
    assert kept.release_word() == []


def test_it_is_not_held_where_chunks_have_holders() -> None:
    spec = spec_of(None, (ONE, TWO), chunks=CHUNKS)
    lane = Lane(None, (ONE, TWO), None, (ONE, TWO), held=True)
    here = Round(replace(spec, lanes=(lane,), turns=(0,), is_held=True))
    here.hold_word()
    assert here.release_word() == []


def test_the_window_moves_without_the_word() -> None:
    child = Round(replace(spec_of(ONE, chunks=9), window=2))
    sent = child.contribute()
    assert len(sent) == 3, "the word and two chunks"
    assert len(child.down(ONE, 1)) == 1
    assert len(child.down(ONE, 2)) == 1
