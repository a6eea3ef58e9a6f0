"""A search that asks seldom at the addresses of members to which a link is open."""

from __future__ import annotations

from protocols.cluster.founding import (
    ASK_KIN_SECONDS,
    ASK_LINKED_SECONDS,
    MERGE_SECONDS,
    Ask,
    Heard,
)
from tests.unit.protocols.test_founding import YOUNGER, founder


def test_who_is_linked_is_asked_very_seldom_and_at_once_when_the_link_ends() -> None:
    search, own = founder()
    search.hint(2.0, "z:1")
    assert search.tick(2.0, 2, ready=True) == [Ask("z:1")]
    kin, linked = Heard(YOUNGER, True, 100, 2, own.lineage), (YOUNGER,)
    assert search.standing(2.0, "z:1", kin, own, ready=True) == []
    due = 2.0 + MERGE_SECONDS
    seldom = due + ASK_LINKED_SECONDS - ASK_KIN_SECONDS
    assert search.tick(due + ASK_KIN_SECONDS, 2, ready=True, linked=linked) == []
    assert search.tick(seldom - 0.01, 2, ready=True, linked=linked) == []
    assert search.tick(seldom, 2, ready=True, linked=linked) == [Ask("z:1")]
    again = seldom + ASK_KIN_SECONDS
    assert search.tick(again, 2, ready=True, linked=linked) == []
    assert search.tick(again + 1.0, 2, ready=True) == [Ask("z:1")]  # its link has ended


def test_after_a_move_and_where_another_agent_speaks_links_do_not_count() -> None:
    for news in ("moved", "spoke"):
        search, own = founder()
        search.hint(2.0, "z:1")
        search.tick(2.0, 2, ready=True)
        kin, linked = Heard(YOUNGER, True, 100, 2, own.lineage), (YOUNGER,)
        search.standing(2.0, "z:1", kin, own, ready=True)
        late = 2.0 + ASK_KIN_SECONDS
        assert search.tick(late, 2, ready=True, linked=linked) == []
        if news == "moved":
            search.moved(late)
        else:
            search.spoke(late, "z:1")
        assert search.tick(late, 2, ready=True, linked=linked) == [Ask("z:1")], news
