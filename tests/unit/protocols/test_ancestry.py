"""Histories of states: when the history of one state contains that of another."""

from __future__ import annotations

from protocols import limits
from protocols.cluster.ancestry import Ancestor, Past

OLD, NEW, FAR = (bytes([k]) * limits.LINEAGE_BYTES for k in (1, 2, 3))


def test_whoever_trained_nothing_is_contained_in_everything() -> None:
    assert Past(0, OLD).contains(Past())
    assert Past(7, OLD).contains(Past(0, FAR))


def test_in_one_lineage_the_later_state_contains_the_earlier() -> None:
    assert Past(9, OLD).contains(Past(9, OLD))
    assert Past(9, OLD).contains(Past(3, OLD))
    assert not Past(9, OLD).contains(Past(3, NEW))


def test_the_last_update_of_who_was_lost_is_made_again() -> None:
    cluster, lost = Past(9, OLD), Past(10, OLD)
    assert cluster.stems_from(lost)
    assert not cluster.contains(lost)  # it has fewer iterations so far
    forked = Past(11, NEW, (Ancestor(OLD, 9),))
    assert forked.stems_from(lost)
    # The lineage that was left may have gone on, and may have begun with another update 9 (H67).
    assert not forked.contains(lost)
    assert not Past(11, NEW, (Ancestor(OLD, 8),)).stems_from(lost)  # it left that lineage earlier


def test_a_lineage_that_parted_remembers_where_it_came_from() -> None:
    parted = Past(9, OLD).in_lineage(NEW)
    assert parted == Past(9, NEW, (Ancestor(OLD, 9),))
    assert Past(40, NEW, parted.ancestors).contains(Past(9, OLD))
    assert not Past(40, NEW, parted.ancestors).contains(Past(11, OLD))
    assert not Past(40, OLD).contains(Past(12, NEW, parted.ancestors))


def test_who_founds_anew_and_trains_nothing_is_what_it_was() -> None:
    founded = Past(9, OLD).in_lineage(FAR)
    assert Past(9, OLD).contains(founded)
    assert not Past(20, OLD).contains(Past(10, FAR, founded.ancestors))


def test_what_is_no_new_lineage_adds_nothing() -> None:
    assert Past(9, OLD).in_lineage(OLD) == Past(9, OLD)
    assert Past(9).in_lineage(NEW) == Past(9, NEW)
    assert Past(0, OLD).in_lineage(NEW) == Past(0, NEW)


def test_a_state_of_unknown_past_is_contained_in_none() -> None:
    assert not Past(9).contains(Past(5))
    assert not Past(9, OLD).contains(Past(5))


def test_only_so_many_lineages_are_remembered() -> None:
    past = Past(1, OLD)
    for k in range(limits.MAX_ANCESTORS + 5):
        past = Past(past.iteration + 2, past.lineage, past.ancestors)
        past = past.in_lineage(k.to_bytes(limits.LINEAGE_BYTES, "big"))
    assert len(past.ancestors) == limits.MAX_ANCESTORS
    assert not past.contains(Past(1, OLD))  # the lineage is forgotten, so this is not known
