"""When a member stands for election: heirs keep their order, and each round has more time."""

from __future__ import annotations

import pytest

from protocols import limits
from protocols.cluster.election import Election
from protocols.recovery.candidacy import Candidacy
from tests.unit.protocols.records import node

STEP = limits.ELECTION_STEP_SECONDS
WAIT = limits.PARTITION_WAIT_SECONDS


def candidacy(*, pauses: bool = False) -> tuple[Candidacy, Election]:
    election = Election(node(1))
    return Candidacy(election, pauses=pauses), election


def test_heirs_stand_in_their_order() -> None:
    for rank in range(4):
        heir, _ = candidacy()
        assert heir.deadline is None
        heir.lost(100.0, rank, 4)
        assert heir.deadline == pytest.approx(100.0 + rank * STEP)
        heir.lost(101.0, rank, 4)  # looked at again
        assert heir.deadline == pytest.approx(100.0 + rank * STEP)
        assert heir.lost_since == 100.0
        heir.over()
        assert heir.deadline is heir.lost_since is None


def waits(rank: int, heirs: int, vain: int) -> float:
    """How long who has just stood or voted waits, after so many candidacies in vain."""
    heir, election = candidacy(pauses=True)
    heir.lost(0.0, rank, heirs)
    election.voted_term = 1 + vain
    heir.leave_time(0.0)
    assert heir.deadline is not None
    return heir.deadline


def test_heirs_keep_their_order_and_leave_more_time_after_each_candidacy_in_vain() -> None:
    for vain in range(4):
        step = waits(1, 3, vain) - waits(0, 3, vain)
        assert step == pytest.approx(waits(2, 3, vain) - waits(1, 3, vain))
        assert step == pytest.approx(STEP * 2**vain)
    assert waits(0, 3, 0) == pytest.approx(4 * STEP)


@pytest.mark.parametrize("heirs", [2, 9, 40, 200])
def test_no_wait_grows_without_limit(heirs: int) -> None:
    most = max(limits.MOST_ELECTION_SECONDS, heirs * STEP)
    assert waits(heirs - 1, heirs, 10_000) <= 2 * most
    assert waits(0, heirs, 10_000) >= waits(0, heirs, 1)


def test_the_first_heir_stands_once_those_out_of_reach_are_needed_no_more() -> None:
    heir, election = candidacy()
    heir.lost(0.0, 1, 4)
    election.voted_term = 50
    heir.leave_time(WAIT - 0.1)
    assert not heir.has_waited(WAIT - 0.1)
    assert heir.deadline == pytest.approx(WAIT + STEP)
    heir.leave_time(WAIT)  # it votes for the heir before it
    assert heir.has_waited(WAIT)
    assert heir.deadline is not None
    assert heir.deadline > WAIT + 1.0


def test_who_is_left_alone_stands_at_once_and_fewer_heirs_sooner() -> None:
    for heirs, soon in ((1, 0.0), (2, 2 * 8 * STEP), (3, None)):
        heir, election = candidacy()
        heir.lost(0.0, 1, 3)
        election.voted_term = 4  # three candidacies in vain
        heir.leave_time(WAIT)
        before = heir.deadline
        assert before is not None
        assert before == pytest.approx(WAIT + 5 * 8 * STEP)
        heir.lost(WAIT + 0.5, 0 if heirs == 1 else 1, heirs)
        assert heir.deadline == (before if soon is None else pytest.approx(WAIT + 0.5 + soon))
        heir.lost(WAIT + 0.6, 0, heirs)
        assert heir.deadline is not None
        assert heir.deadline <= before


def test_who_pauses_without_a_quorum_never_does_without_votes() -> None:
    heir, _ = candidacy(pauses=True)
    heir.lost(0.0, 0, 2)
    heir.leave_time(0.0)
    heir.lost(1000.0, 0, 2)
    assert not heir.has_waited(1000.0)


def test_who_pauses_does_without_votes_some_time_after_the_last_step() -> None:
    heir, _ = candidacy(pauses=True)
    heir.lost(0.0, 0, 2, at_end=True)
    heir.leave_time(0.0)
    before, after = limits.PAUSED_END_SECONDS - 0.1, limits.PAUSED_END_SECONDS + 0.1
    heir.lost(before, 0, 2, at_end=True)
    assert not heir.has_waited(before)
    assert heir.has_waited(after)


def test_who_was_let_go_never_stands() -> None:
    heir, _ = candidacy()
    heir.lost(1.0, 0, 2)
    heir.hopeless(2.0)
    heir.leave_time(3.0)  # nor if it has voted
    assert (heir.deadline, heir.lost_since) == (None, 1.0)
    heir.over()
    heir.hopeless(5.0)
    assert heir.lost_since == 5.0


def test_who_stands_when_the_wait_is_over_does_not_stand_again_at_once() -> None:
    """For some of these times `since + WAIT - since` is less than `WAIT`."""
    for since in (k / 7 for k in range(1, 2000)):
        heir, election = candidacy()
        heir.lost(since, 0, 2)
        election.voted_term = election.term + 40  # so many in vain that the next wait is long
        heir.leave_time(since)
        heir.leave_time(since)
        assert heir.deadline == since + WAIT
        assert heir.has_waited(since + WAIT)
        heir.leave_time(since + WAIT)
        assert heir.deadline is not None
        assert heir.deadline > since + WAIT
