"""Which chunks a neighbour can send at which time: all of one round before any of the next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocols import limits
from protocols.errors import RemoteProtocolError
from protocols.rounds.frame_order import FrameOrder, check_place
from protocols.rounds.round import Round, RoundSpec, Spread
from protocols.wire.bulk import BulkHeader, BulkKind

LINEAGE, OTHER = b"L" * 16, b"O" * 16
ABOVE, CHILD = b"A" * 32, b"C" * 32
SPEC = RoundSpec(LINEAGE, 3, 4, 5, 1, ABOVE, (CHILD,), (), 2, True, (), 6)
UP = BulkHeader(BulkKind.UP, LINEAGE, 3, 4, 5, 1, 1, 9, term=6)


def whole(spec: RoundSpec = SPEC) -> Round:
    """Return a round in which the child has sent its whole part."""
    made = Round(spec)
    for chunk in range(spec.chunks):
        made.up(CHILD, chunk)
    return made


def changed(**what: object) -> BulkHeader:
    """Return a header of the running round with some numbers changed."""
    return replace(UP, **what)  # type: ignore[arg-type]  # names of its own fields


NEXT = {"iteration": 6, "attempt": 0}
POSSIBLE = (
    NEXT,
    {"attempt": 2},
    {**NEXT, "policy": 5, "view": 4},
    {"attempt": 2, "policy": 5, "view": 4, "term": 7},
    {"iteration": 4},
    {"iteration": 4, "policy": 3, "view": 2},
    {**NEXT, "policy": 3, "view": 2},  # of before a fence, by who was an iteration ahead
    {"lineage": OTHER, "iteration": 0},
)
IMPOSSIBLE = (
    ({"lineage": b"X" * 16}, "lineage"),
    ({"policy": 5}, "another policy"),
    ({"term": 7}, "another policy"),
    ({"view": 4}, "another policy"),
    ({**NEXT, "view": 4}, "another policy"),
    ({"iteration": 7}, "iteration"),
    ({"iteration": 4, "attempt": 3}, "complete"),
    ({"attempt": 2 + limits.MAX_ATTEMPT_STEP}, "attempt"),
    ({**NEXT, "policy": 5 + limits.MAX_VERSION_STEP}, "cannot be in force"),
)
COMPLETE = (LINEAGE, 3, 4, 4, 3, 6)


@pytest.mark.parametrize("what", POSSIBLE)
def test_what_can_come_passes(what: dict[str, object]) -> None:
    check_place(changed(**what), CHILD, whole(), (LINEAGE, OTHER), COMPLETE)


@pytest.mark.parametrize(("what", "said"), IMPOSSIBLE)
def test_what_cannot_come_is_refused(what: dict[str, object], said: str) -> None:
    with pytest.raises(RemoteProtocolError, match=said):
        check_place(changed(**what), CHILD, whole(), (LINEAGE, OTHER), COMPLETE)


def test_who_owes_chunks_of_this_round_sends_none_of_the_next() -> None:
    running = Round(SPEC)
    running.up(CHILD, 0)
    for sender in (CHILD, ABOVE):
        with pytest.raises(RemoteProtocolError, match="before all of this one"):
            check_place(changed(**NEXT), sender, running, (), None)
    check_place(changed(**NEXT, policy=5), CHILD, running, (), None)  # a fence that we have missed
    running.up(CHILD, 1)
    check_place(changed(**NEXT), CHILD, running, (), None)


def test_a_subscriber_may_be_left_behind() -> None:
    running = Round(replace(SPEC, children=(), contributes=False))
    for chunk in range(2):
        running.down(ABOVE, chunk)
    check_place(changed(iteration=99), ABOVE, running, (), None)
    check_place(changed(lineage=b"X" * 16), ABOVE, running, (), None)


def test_kept_chunks_are_owed_by_those_who_have_them() -> None:
    running = Round(replace(SPEC, spread=(Spread((1,), CHILD, (ABOVE,)),)))
    running.up(CHILD, 0)
    assert running.owes(CHILD)
    running.down(CHILD, 1)
    assert not running.owes(CHILD)
    assert running.owes(ABOVE)
    assert not running.owes(b"N" * 32)


def test_chunks_of_one_neighbour_never_fall_behind() -> None:
    order = FrameOrder()
    for place in ((6, 4, 5, 1), (6, 4, 5, 1), (6, 4, 6, 0), (6, 5, 5, 2), (7, 1, 0, 0)):
        term, policy, iteration, attempt = place
        order.follows(changed(term=term, policy=policy, iteration=iteration, attempt=attempt))
    with pytest.raises(RemoteProtocolError, match="before those"):
        order.follows(UP)
    order.follows(changed(lineage=OTHER))
    order.follows(UP)
