"""The cluster with more samples is ahead: what a device does that has trained and is no member."""

from __future__ import annotations

from protocols import limits
from protocols.cluster.ancestry import Past
from protocols.cluster.founding import LISTEN_SECONDS, Found, Founding, FoundingState, Heard, JoinAt

from .records import node

ME, ELDER, YOUNGER = node(5), node(1), node(9)
LATE = LISTEN_SECONDS + 0.1

PART, FAR = (bytes([k]) * limits.LINEAGE_BYTES for k in (1, 2))
TRAINED = Heard(ME, False, 320, elder=ME, past=Past(10, PART))


def test_who_is_ahead_joins_nobody_but_founds_from_its_own_state() -> None:
    search = Founding(ME, (), True, 0.0)
    behind = Heard(YOUNGER, True, 64, 2, FAR, past=Past(2, FAR))
    assert search.standing(1.0, "y:1", behind, TRAINED, ready=True) == []
    assert search.elder == ME
    assert search.tick(LATE, 0, ready=True) == [Found()]


def test_who_is_ahead_waits_no_more_for_whom_it_deferred_to() -> None:
    search = Founding(ME, (), True, 0.0)
    search.standing(0.5, "e:1", Heard(ELDER, False, elder=ELDER), TRAINED, ready=True)
    assert search.state is FoundingState.DEFERRING
    behind = Heard(ELDER, True, 64, 2, FAR, past=Past(2, FAR))
    assert search.standing(1.0, "e:1", behind, TRAINED, ready=True) == []
    assert search.tick(LATE, 0, ready=True) == [Found()]


def test_who_is_behind_or_level_joins() -> None:
    for samples in (320, 352):
        ahead = Heard(YOUNGER, True, samples, 2, FAR, past=Past(samples // 32, FAR))
        answer = Founding(ME, (), True, 0.0).standing(1.0, "y:1", ahead, TRAINED, ready=True)
        assert answer == [JoinAt("y:1")]


def test_the_cluster_that_was_lost_catches_up_first() -> None:
    search = Founding(ME, (), True, 0.0)
    one_less = Heard(YOUNGER, True, 288, 2, PART, past=Past(9, PART))
    assert search.standing(1.0, "y:1", one_less, TRAINED, ready=True) == []
    assert search.tick(LATE, 0, ready=True) == []  # and it does not found either
    level = Heard(YOUNGER, True, 320, 2, PART, past=Past(10, PART))
    assert search.standing(3.0, "y:1", level, TRAINED, ready=True) == [JoinAt("y:1")]


def test_who_may_not_found_joins_whom_it_finds() -> None:
    search = Founding(ME, (), True, 0.0)
    search.refused(0.0, may_found=False)
    behind = Heard(YOUNGER, True, 64, 2, FAR, past=Past(2, FAR))
    assert search.standing(1.0, "y:1", behind, TRAINED, ready=True) == [JoinAt("y:1")]
