"""The end of a pull: what a source that has become slow owes is also asked of one that is done."""

from __future__ import annotations

from protocols.member.pull import AskShards, Pull, PullDone, PullEffect, PullState
from protocols.scheduler.planning import Offer

from .test_pull import A, B, C, asked, evenly, leaves, right

SHARDS = 8
SHARD_BYTES = 100
FAST, SLOW = 10_000.0, 100.0  # bytes/s: a shard in 0.01 and in 1 s


class Ending:
    """A pull from A and others, of which B is slow from the moment on when all is asked for."""

    def __init__(self, *sources: bytes, twice: bool = True) -> None:
        self.rates: dict[bytes, float | None] = dict.fromkeys(sources, FAST)
        self.pull = Pull(SHARDS, SHARD_BYTES, sources, self.offer, evenly, manifests=1, twice=twice)
        self.last: list[PullEffect] = []
        for source in sources:
            self.pull.began(source)
        self.pull.manifest(A, leaves(SHARDS))

    def offer(self, source: bytes, busy_bytes: int) -> Offer:
        return Offer(source, "", self.rates[source], 0.001, busy_bytes)

    def owes(self, source: bytes) -> list[int]:
        return [k for k in range(SHARDS) if self.pull.expects(source, k)]

    def send(self, source: bytes, shard: int) -> list[PullEffect]:
        """Let a shard arrive from `source`."""
        self.last = self.pull.shard(source, shard, right(shard))
        return self.last

    def until_only_slow_is_left(self, slow: float | None = SLOW) -> None:
        """Let all others deliver what they owe, while B becomes slow and sends nothing more."""
        self.rates[B] = slow
        others = [source for source in self.rates if source != B]
        while owed := [(s, k) for s in others for k in self.owes(s) if k not in self.owes(B)]:
            self.send(*owed[0])


def ending(*sources: bytes, slow: float | None = SLOW) -> Ending:
    """Return a pull in which only what B owes is not here."""
    end = Ending(*sources)
    end.until_only_slow_is_left(slow)
    return end


def test_who_is_done_is_asked_for_what_another_would_send_late() -> None:
    end = ending(A, B)
    twice = asked(end.last, A)
    assert twice, "A is done"
    assert all(end.pull.expects(source, k) for source in (A, B) for k in twice)
    assert list(twice) == sorted(twice, reverse=True), "the last ones first"


def test_what_comes_first_counts_and_the_other_one_is_not_expected_any_more() -> None:
    end = ending(A, B)
    first, *_ = asked(end.last, A)
    end.send(B, first)
    assert not end.pull.expects(A, first)
    assert end.pull.verified[first] == B
    while end.pull.state is not PullState.DONE:
        end.send(A, end.owes(A)[0])
    assert end.last == [PullDone()]
    assert not end.owes(B)


def test_nobody_is_asked_twice_for_what_comes_as_soon() -> None:
    for slow in (FAST, None):
        end = ending(A, B, slow=slow)
        assert not any(isinstance(e, AskShards) for e in end.last)
        assert not end.owes(A)


def test_parts_of_updates_are_asked_of_one_only() -> None:
    """Otherwise what a slow source owes would grow from update to update."""
    end = Ending(A, B, twice=False)
    end.until_only_slow_is_left()
    assert end.owes(B)
    assert not end.owes(A)
    assert not any(isinstance(e, AskShards) for e in end.last)


def test_a_shard_is_asked_of_two_at_most() -> None:
    end = ending(A, B, C)
    twice = [k for k in end.owes(B) if end.pull.expects(A, k) or end.pull.expects(C, k)]
    assert twice
    assert not any(end.pull.expects(A, k) and end.pull.expects(C, k) for k in twice)


def test_whichever_of_the_two_is_lost_the_other_one_still_owes_it() -> None:
    for lost, left in ((A, B), (B, A)):
        end = ending(A, B)
        shard, *_ = asked(end.last, A)
        again = end.pull.lost(lost)
        assert end.pull.expects(left, shard)
        assert shard not in asked(again, left), "it was asked for it already"


def test_who_has_sent_a_wrong_copy_is_not_asked_for_that_one_again() -> None:
    end = Ending(A, B)
    first = end.owes(A)[0]
    effects = end.pull.shard(A, first, b"wrong")
    assert not asked(effects, A) or first not in asked(effects, A)
    end.until_only_slow_is_left()
    assert not end.pull.expects(A, first)


def test_a_source_that_is_found_slow_when_nothing_arrives_any_more() -> None:
    end = ending(A, B, slow=FAST)
    assert not end.owes(A), "B was expected to be done soon"
    assert end.pull.waits
    assert end.pull.look() == []
    end.rates[B] = SLOW
    assert asked(end.pull.look(), A)


def test_there_is_nothing_to_look_at_before_all_is_asked_for_or_with_one_source() -> None:
    def offer(source: bytes, busy_bytes: int) -> Offer:
        return Offer(source, "", FAST, 0.001, busy_bytes)

    many = Pull(100, SHARD_BYTES, (A, B), offer, evenly, manifests=1)
    for source in (A, B):
        many.began(source)
    assert not many.waits
    assert not ending(A, B, slow=None).pull.look()
    alone = Ending(A)
    for shard in alone.owes(A)[:-1]:
        alone.send(A, shard)
    assert not alone.pull.waits
    assert alone.pull.look() == []
