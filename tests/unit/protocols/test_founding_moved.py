"""A search whose device has moved to another network, or whose cluster still counts its node."""

from __future__ import annotations

from protocols.cluster.founding import Ask, Heard, JoinAt
from tests.unit.protocols.test_founding import YOUNGER, founder


def test_who_has_moved_asks_everywhere_again_at_once() -> None:
    search, _ = founder()
    search.hint(0.0, "h:1")
    for _ in range(5):
        search.silent("h:1")
    late = 1000.0
    assert Ask("h:1") in search.tick(late, 1, ready=True)
    assert Ask("h:1") not in search.tick(late + 1.0, 1, ready=True)
    search.moved(late + 1.0)
    assert Ask("h:1") in search.tick(late + 1.0, 1, ready=True)


def test_a_cluster_that_has_not_gone_on_without_us_is_no_other() -> None:
    search, own = founder()
    ahead = Heard(YOUNGER, True, 999, 9, b"z", counts_us=True)
    assert search.standing(0.0, "z:1", ahead, own, ready=True) == []
    gone_on = Heard(YOUNGER, True, 999, 9, b"z")
    assert search.standing(0.0, "z:1", gone_on, own, ready=True) == [JoinAt("z:1")]
