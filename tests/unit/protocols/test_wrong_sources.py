"""Sources that send something wrong: two manifests are compared, and the majority is believed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits
from protocols.events import Applied
from protocols.member.pull import AskManifest, Pull, PullDone, PullState, Spared, WasWrong

from .test_copies import Joiner, record
from .test_pull import A, B, C, asked, evenly, leaves, no_rate, pull_from, right

if TYPE_CHECKING:
    import pytest


def test_a_pull_ends_when_whose_manifest_is_missing_is_lost() -> None:
    pull = pull_from(A, B, shards=1)
    pull.began(A)
    pull.began(B)
    pull.manifest(A, leaves(1))
    assert pull.shard(A, 0, right(0)) == []
    assert pull.lost(B) == [PullDone()]


def test_a_third_manifest_decides_and_who_was_wrong_is_asked_no_more() -> None:
    pull = pull_from(A, B, C, shards=6)
    for source in (A, B, C):
        pull.began(source)
    lie = (b"lie", *leaves(6)[1:])
    pull.manifest(A, lie)
    first = next(s for s in (A, B, C) if pull.expects(s, 0))
    pull.shard(first, 0, b"lie" if first == A else right(0))
    effects = pull.manifest(B, leaves(6))
    assert [e for e in effects if isinstance(e, AskManifest)] == [AskManifest(C)]
    effects = pull.manifest(C, leaves(6))
    assert effects[0] == WasWrong(A)
    assert not any(pull.expects(A, k) for k in range(6))
    while waiting := [(s, k) for s in (B, C) for k in range(6) if pull.expects(s, k)]:
        source, shard = waiting[0]
        pull.shard(source, shard, right(shard))
    assert pull.state is PullState.DONE
    assert pull.verified[0] in (B, C)


def test_while_the_others_wait_a_second_manifest_is_asked_for_only_in_doubt() -> None:
    pull = Pull(4, 16, (A, B), no_rate, evenly, manifests=1)
    pull.began(A)
    assert not any(isinstance(e, AskManifest) for e in pull.began(B))
    pull.manifest(A, leaves(4))
    shard = next(k for k in range(4) if pull.expects(B, k))
    assert AskManifest(B) in pull.shard(B, shard, b"wrong")


def test_of_three_manifests_that_all_differ_nobody_is_blamed() -> None:
    pull = pull_from(A, B, C, shards=1)
    for source in (A, B, C):
        pull.began(source)
    pull.manifest(A, leaves(1))
    pull.manifest(B, (b"lie",))
    assert not any(isinstance(e, WasWrong) for e in pull.manifest(C, (b"another lie",)))


def test_of_two_manifests_that_differ_the_first_is_believed() -> None:
    pull = pull_from(A, B, shards=1)
    pull.began(A)
    pull.began(B)
    pull.manifest(A, leaves(1))
    assert pull.manifest(B, (b"lie",)) == [], "nobody can tell which of them is wrong"
    assert pull.shard(A, 0, right(0)) == [PullDone()]


def test_what_was_here_is_compared_anew_if_another_digest_is_believed() -> None:
    pull = pull_from(A, B, C, shards=3, own=2)
    for source in (A, B, C):
        pull.began(source)
    pull.own_shards((b"lie", right(1)))
    assert Spared((0, 1)) in pull.manifest(A, (b"lie", *leaves(3)[1:]))
    pull.manifest(B, leaves(3))
    effects = pull.manifest(C, leaves(3))
    assert effects[0] == WasWrong(A)
    assert pull.spared == 1
    (source,) = [s for s in (B, C) if pull.expects(s, 0)]
    last = [pull.shard(source, 0, right(0))]
    last += [pull.shard(s, 2, right(2)) for s in (B, C) if pull.expects(s, 2)]
    assert last[-1] == [PullDone()]


def test_who_sends_what_two_manifests_contradict_is_asked_only_if_nobody_else_has_it() -> None:
    pull = pull_from(A, B, shards=4)
    pull.began(A)
    pull.began(B)
    pull.manifest(A, leaves(4))
    mine = next(k for k in range(4) if pull.expects(B, k))
    pull.shard(B, mine, b"wrong")
    effects = pull.manifest(B, leaves(4))
    assert effects[0] == WasWrong(B)
    assert not any(pull.expects(B, k) for k in range(4))
    other = next(k for k in range(4) if pull.expects(A, k) and k != mine)
    effects = pull.shard(A, other, b"wrong too")
    assert effects[0] == WasWrong(A)
    assert other in asked(effects, B), "it is the last one that has not sent this"
    while waiting := [k for k in range(4) if pull.expects(A, k)]:
        pull.shard(A, waiting[0], right(waiting[0]))
    while waiting := [k for k in range(4) if pull.expects(B, k)]:
        pull.shard(B, waiting[0], right(waiting[0]))
    assert pull.state is PullState.DONE


def disputed(*sources: bytes) -> Joiner:
    """Return a joiner that has applied what A has told, which B contradicts."""
    joiner = Joiner(*sources)
    for source in sources[1:]:
        joiner.copying.began(source)
    joiner.copying.complete()
    joiner.copying.record(A, record(5))
    joiner.fetch(5)
    assert joiner.applied() == [5]
    joiner.copying.applied(Applied(5, b""))
    joiner.copying.record(B, record(5, b"y"))
    return joiner


def test_two_sources_that_differ_on_what_is_here_end_the_join() -> None:
    joiner = disputed(A, B)
    assert joiner.failed == ["its sources hold different updates of iteration 5"]
    assert joiner.copying.is_refuted
    assert not joiner.copying.has_state, "nobody knows which is right"


def test_nothing_more_is_applied_until_a_third_source_has_told() -> None:
    joiner = disputed(A, B, C)
    for source in (A, B):
        joiner.copying.record(source, record(6))
    joiner.fetch(6)
    assert joiner.applied() == []
    joiner.copying.record(C, record(5))
    assert joiner.wrong() == [joiner.context.name(B)]
    assert joiner.applied() == [6]
    assert not joiner.failed


def test_a_third_source_may_show_that_what_is_here_is_wrong() -> None:
    joiner = disputed(A, B, C)
    joiner.copying.record(C, record(5, b"y"))
    assert joiner.failed == ["the others have made iteration 5 again"]
    assert joiner.wrong() == [joiner.context.name(A)], "and who has sent it"


def test_what_one_has_contradicted_counts_when_the_other_is_lost() -> None:
    joiner = disputed(A, B, C)
    joiner.copying.lost(A)
    assert joiner.failed == ["the others have made iteration 5 again"]
    joiner = disputed(A, B, C)
    joiner.copying.lost(B)
    assert not joiner.failed


def test_a_dispute_about_what_is_long_past_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_PAST_RECORDS", 1)
    joiner = disputed(A, B, C)
    joiner.copying.record(A, record(6))
    joiner.copying.record(A, record(7))
    joiner.fetch(6)
    joiner.fetch(7)
    assert joiner.applied() == [6]
