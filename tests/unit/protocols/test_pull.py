"""Pulls in a simple world of sources that corrupt shards, die and delay.

The world knows the right digest of every shard. A source is honest, corrupts some shards, or dies
after some answers. Whatever happens, a pull that ends DONE has verified every shard, and it ends
FAILED only if no source was left that could have helped.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.planner.shards import even_runs
from protocols.errors import RemoteProtocolError
from protocols.member.pull import (
    AskManifest,
    AskShards,
    Pull,
    PullDone,
    PullEffect,
    PullFailed,
    PullState,
    Spared,
    WasWrong,
)
from protocols.scheduler.planning import Offer

from .records import node

A, B, C = node(1), node(2), node(3)


def right(shard: int) -> bytes:
    """Return the digest that `shard` must have."""
    return shard.to_bytes(32, "big")


def leaves(count: int) -> tuple[bytes, ...]:
    """Return the true manifest."""
    return tuple(right(k) for k in range(count))


def pull_from(*sources: bytes, shards: int = 4, own: int = 0, are_right: bool = False) -> Pull:
    """Return a new pull."""
    return Pull(shards, 16, sources, no_rate, evenly, own, are_right=are_right)


def no_rate(source: bytes, busy_bytes: int) -> Offer:
    """Say that nothing is known of a source."""
    return Offer(source, "", None, 0.0, busy_bytes)


def evenly(
    shards: tuple[int, ...], shard_bytes: int, offers: tuple[Offer, ...]
) -> dict[bytes, tuple[int, ...]]:
    """Divide without a look at rates."""
    runs = even_runs(len(shards), len(offers))
    return {o.node: shards[r.start : r.stop] for o, r in zip(offers, runs, strict=True)}


def asked(effects: list[PullEffect], source: bytes) -> tuple[int, ...]:
    """Return the shards that `effects` ask `source` for."""
    return tuple(
        k for e in effects if isinstance(e, AskShards) and e.source == source for k in e.shards
    )


# --- one step at a time ---------------------------------------------------------------------------


def test_sources_share_the_work_and_two_give_the_manifest() -> None:
    pull = pull_from(A, B, C)
    assert pull.manifest(A, leaves(4)) == []  # nobody was asked for it
    assert pull.began(B)[0] == AskManifest(B)
    assert pull.began(A)[0] == AskManifest(A)
    assert not any(isinstance(e, AskManifest) for e in pull.began(C))
    pull = pull_from(A, B)
    assert pull.began(B) == [AskManifest(B), AskShards(B, (2, 3))]
    assert pull.began(A) == [AskManifest(A), AskShards(A, (0,))]
    assert pull.expects(A, 0)
    assert not pull.expects(B, 0)
    assert pull.manifest(C, leaves(4)) == []  # this source was not asked for the manifest
    assert pull.manifest(B, leaves(4)) == []
    assert pull.shard(B, 2, right(2)) == [AskShards(B, (1,))]
    assert pull.shard(A, 0, right(0)) == []
    assert pull.verified == {2: B, 0: A}
    assert pull.shard(B, 3, right(3)) == []
    assert pull.shard(B, 1, right(1)) == []
    assert pull.awaited == {}, "nobody is given up because it takes long to hash its state"
    assert pull.manifest(A, leaves(4)) == [PullDone()]
    assert pull.state is PullState.DONE
    assert pull.lost(A) == []


def test_shards_that_came_before_the_manifest_are_verified_with_it() -> None:
    pull = pull_from(A, shards=2)
    pull.began(A)
    pull.shard(A, 0, right(0))
    pull.shard(A, 1, right(1))
    assert not pull.verified
    assert pull.manifest(A, leaves(2)) == [PullDone()]


def test_a_state_without_bytes_is_pulled_with_its_manifest() -> None:
    pull = pull_from(A, shards=0)
    assert pull.began(A) == [AskManifest(A)]
    assert pull.manifest(A, ()) == [PullDone()]


def test_a_shard_that_does_not_match_is_asked_for_elsewhere() -> None:
    pull = pull_from(A, B, shards=2)
    pull.began(A)
    pull.began(B)
    pull.manifest(A, leaves(2))
    pull.manifest(B, leaves(2))
    assert pull.shard(A, 0, b"wrong") == [WasWrong(A), AskShards(B, (0,))]
    assert not pull.verified
    assert pull.shard(B, 0, right(0)) == []
    assert pull.shard(B, 1, right(1)) == [PullDone()]
    assert pull.verified == {0: B, 1: B}


def test_a_shard_that_matches_nowhere_fails_the_pull() -> None:
    pull = pull_from(A, B, shards=2)
    pull.began(A)
    pull.began(B)
    pull.manifest(A, leaves(2))
    pull.shard(A, 0, b"wrong")
    effects = pull.shard(B, 0, b"wrong too")
    assert not any(isinstance(e, PullFailed) for e in effects), "a manifest is still to come"
    failed = pull.manifest(B, leaves(2))
    assert failed[-1] == PullFailed("shard 0 matches its digest from no source")
    assert pull.state is PullState.FAILED


def test_what_arrives_after_the_failure_is_no_longer_expected() -> None:
    pull = pull_from(A, B, shards=2)
    pull.began(A)
    pull.manifest(A, leaves(2))
    pull.lost(B)
    assert pull.shard(A, 0, b"wrong") == [PullFailed("shard 0 matches its digest from no source")]
    assert not pull.expects(A, 1)
    with pytest.raises(RemoteProtocolError, match="not asked for"):
        pull.shard(A, 1, right(1))
    assert pull.manifest(A, leaves(2)) == []
    assert pull.lost(A) == []


def test_the_other_source_of_a_bad_shard_may_begin_later() -> None:
    pull = pull_from(A, B, shards=2)
    pull.began(A)
    pull.manifest(A, leaves(2))
    assert pull.shard(A, 0, b"wrong") == [AskShards(A, (1,))]  # the others may never begin
    assert pull.began(B) == [AskManifest(B), AskShards(B, (0,))]


def test_a_shard_fails_the_pull_when_those_who_have_not_tried_it_are_lost() -> None:
    pull = pull_from(A, B, shards=2)
    pull.began(A)
    pull.manifest(A, leaves(2))
    pull.shard(A, 0, b"wrong")
    assert pull.lost(B) == [PullFailed("shard 0 matches its digest from no source")]
    assert pull.state is PullState.FAILED


def test_a_fast_source_is_asked_for_more_at_a_time() -> None:
    def known(source: bytes, busy_bytes: int) -> Offer:
        return Offer(source, "", 1000.0 if source == A else 10.0, 0.05, busy_bytes)

    pull = Pull(100, 16, (A, B), known, evenly)
    assert len(asked(pull.began(A), A)) == 13  # what 1000 B/s bring in 0.1 s and a round trip
    assert len(asked(pull.began(B), B)) == 2
    got = [pull.shard(A, k, right(k)) for k in range(13) if pull.expects(A, k)]
    assert [len(asked(effects, A)) for effects in got[:7]] == [0, 0, 0, 0, 0, 0, 7]


def test_a_source_that_has_sent_little_is_asked_for_what_its_link_can_carry() -> None:
    def known(source: bytes, busy_bytes: int) -> Offer:
        return Offer(source, "", 300.0 if source == A else 100.0, 0.05, busy_bytes, 1000.0)

    pull = Pull(100, 16, (A, B), known, evenly)
    assert len(asked(pull.began(A), A)) == 13
    assert len(asked(pull.began(B), B)) == 5, "and not for ten times what it has sent"
    assert pull.owes(A) == 13


def test_a_lost_source_hands_over_only_what_is_not_here() -> None:
    pull = pull_from(A, B, C, shards=12)
    wanted = {s: asked(pull.began(s), s) for s in (A, B, C)}
    pull.manifest(A, leaves(12))
    pull.manifest(B, leaves(12))
    first, second = wanted[B]
    pull.shard(B, first, right(first))
    assert not asked(pull.lost(B), A)  # it still has enough to send
    assert pull.sources == (A, C)
    assert pull.verified == {first: B}
    with pytest.raises(RemoteProtocolError, match="not asked for"):
        pull.shard(B, second, right(second))
    while waiting := [(s, k) for s in (A, C) for k in range(12) if pull.expects(s, k)]:
        source, shard = waiting[0]
        pull.shard(source, shard, right(shard))
    assert pull.state is PullState.DONE
    assert pull.verified[second] in (A, C)


def test_another_source_gives_the_manifest_when_its_giver_is_lost() -> None:
    pull = pull_from(A, B, shards=2)
    pull.began(A)
    pull.began(B)
    assert pull.lost(A) == [AskShards(B, (0,))], "it was asked for the manifest before"
    assert pull.manifest(B, leaves(2)) == []


def test_another_one_is_asked_for_the_manifest_in_place_of_one_that_is_lost() -> None:
    pull = pull_from(A, B, C)
    for source in (A, B, C):
        pull.began(source)
    assert [e for e in pull.lost(A) if isinstance(e, AskManifest)] == [AskManifest(C)]


def test_the_next_source_to_begin_gives_it_when_nobody_else_is_ready() -> None:
    pull = pull_from(A, B, shards=2)
    pull.began(A)
    assert pull.lost(A) == []
    assert pull.began(B) == [AskManifest(B), AskShards(B, (0, 1))]


def test_sources_may_be_lost_before_anything_began() -> None:
    pull = pull_from(A, B)
    assert pull.lost(A) == []
    assert pull.lost(A) == []
    assert pull.lost(C) == []
    assert pull.state is PullState.WAITING
    assert pull.lost(B) == [PullFailed("every source of the training state was lost")]


def test_a_second_manifest_changes_nothing() -> None:
    pull = pull_from(A, shards=2)
    pull.began(A)
    pull.manifest(A, leaves(2))
    pull.shard(A, 0, right(0))
    assert pull.manifest(A, (b"other",) * 2) == []
    assert pull.shard(A, 1, right(1)) == [PullDone()]


def test_what_nobody_asked_for_is_refused() -> None:
    pull = pull_from(A, B, shards=2)
    assert pull.manifest(A, leaves(2)) == []  # nothing began yet
    with pytest.raises(RemoteProtocolError, match="no source"):
        pull.began(C)
    pull.began(A)
    assert pull.began(A) == []  # a source repeats this until it is asked for something
    with pytest.raises(RemoteProtocolError, match="wrong number of shards"):
        pull.manifest(A, leaves(3))
    for source, shard in ((B, 1), (C, 0), (A, 7)):
        with pytest.raises(RemoteProtocolError, match="not asked for"):
            pull.shard(source, shard, right(shard))
    pull.shard(A, 0, right(0))
    with pytest.raises(RemoteProtocolError, match="not asked for"):
        pull.shard(A, 0, right(0))


def test_a_source_that_begins_after_the_end_is_not_asked() -> None:
    pull = pull_from(A, B, shards=1)
    pull.began(B)
    pull.manifest(B, leaves(1))
    pull.shard(B, 0, right(0))
    assert pull.state is PullState.DONE
    assert pull.began(A) == []


def test_what_is_here_already_is_not_asked_for() -> None:
    pull = pull_from(A, shards=4, own=2)
    assert pull.began(A) == [AskManifest(A), AskShards(A, (2, 3))]
    assert not pull.expects(A, 0)
    pull.shard(A, 2, right(2))
    pull.shard(A, 3, right(3))
    assert pull.awaited == {A: 2}  # its manifest
    assert pull.manifest(A, leaves(4)) == []
    assert pull.awaited == {}  # the joiner waits for itself
    assert pull.own_shards((right(0), right(1))) == [Spared((0, 1)), PullDone()]
    assert pull.spared == 2
    assert pull.verified == {2: A, 3: A}


def test_of_what_is_known_to_be_right_not_even_digests_are_asked_for() -> None:
    pull = pull_from(A, shards=4, own=2, are_right=True)
    assert pull.keeps_own
    assert pull.spared == 2
    assert pull.began(A) == [AskManifest(A, 2), AskShards(A, (2, 3))]
    assert pull.shard(A, 2, right(2)) == []
    with pytest.raises(RemoteProtocolError, match="wrong number"):
        pull.manifest(A, leaves(4))
    assert pull.manifest(A, leaves(4)[2:]) == []
    assert asked(pull.shard(A, 3, b"broken"), A) == ()
    assert pull.state is PullState.FAILED  # the manifest counts from the first shard it was for


def test_what_differs_here_is_asked_for_after_all() -> None:
    pull = pull_from(A, B, shards=4, own=3)
    pull.began(A)
    pull.began(B)
    pull.shard(A, 3, right(3))
    assert pull.own_shards((right(0), b"other", b"other")) == []
    assert pull.spared == 0
    effects = pull.manifest(A, leaves(4))
    assert effects[0] == Spared((0,))
    pull.manifest(B, leaves(4))
    assert sorted(asked(effects, A) + asked(effects, B)) == [1, 2]
    for source, shard in ((A, 1), (B, 2)):
        last = pull.shard(source, shard, right(shard))
    assert last == [PullDone()]


def test_a_pull_is_done_when_the_last_thing_to_come_is_what_is_here() -> None:
    pull = pull_from(A, shards=2, own=1)
    pull.began(A)
    pull.manifest(A, leaves(2))
    assert pull.shard(A, 1, right(1)) == []
    assert pull.state is PullState.COPYING
    assert pull.own_shards((right(0),)) == [Spared((0,)), PullDone()]
    assert pull.own_shards((right(0),)) == []  # nothing is open any more


def test_another_base_is_pulled_whole_and_spares_nothing() -> None:
    pull = pull_from(A, shards=3, own=2)
    assert pull.own_shards((b"other", b"other")) == []  # before any source has begun
    assert pull.state is PullState.WAITING
    pull.began(A)
    assert pull.own_shards((right(0), right(1))) == []  # told twice: the first counts
    assert asked(pull.manifest(A, leaves(3)), A) == (0,)
    pull.shard(A, 2, right(2))
    pull.shard(A, 0, right(0))
    assert pull.shard(A, 1, right(1)) == [PullDone()]
    assert pull.spared == 0


def test_a_manifest_that_lies_about_what_is_here_fails_the_pull() -> None:
    """The joiner does not take its own bytes for right, and no source has what the lie asks for."""
    pull = pull_from(A, B, shards=2, own=1)
    pull.began(A)
    pull.began(B)
    lie = (b"lie", right(1))
    pull.own_shards((right(0),))
    first = pull.manifest(A, lie)
    (source,) = [s for s in (A, B) if asked(first, s) == (0,)]
    (other,) = [s for s in (A, B) if s != source]
    pull.shard(A if pull.expects(A, 1) else B, 1, right(1))
    assert asked(pull.shard(source, 0, right(0)), other) == (0,)
    pull.shard(other, 0, right(0))
    failed = pull.manifest(B, leaves(2))
    assert failed == [PullFailed("shard 0 matches its digest from no source")]


# --- worlds ---------------------------------------------------------------------------------------


@dataclass
class Source:
    """A member that is asked: corrupts the shards in `bad`, dies after `answers` answers. Its
    manifest is of what it sends if it `lies`, and otherwise right."""

    bad: set[int]
    answers: int
    lies: bool = False
    queue: list[int | None] = field(default_factory=list)  # None: the manifest


@dataclass
class World:
    """Sources answer in any order; the pull's effects go to their queues."""

    pull: Pull
    shards: int
    sources: dict[bytes, Source]
    chance: random.Random
    begun: set[bytes] = field(default_factory=set)
    dead: set[bytes] = field(default_factory=set)
    ends: list[PullEffect] = field(default_factory=list)
    own: tuple[bytes, ...] | None = None  # digests of what the joiner has, until it is told them
    first: int = 0  # the first shard of the manifest
    sent: list[tuple[bytes, int]] = field(default_factory=list)

    def follow(self, effects: list[PullEffect]) -> None:
        for effect in effects:
            match effect:
                case AskManifest(source, self.first):
                    assert source in self.begun - self.dead
                    self.sources[source].queue.append(None)
                case AskShards(source, shards):
                    assert source in self.begun - self.dead
                    assert shards
                    assert not set(shards) & set(self.pull.verified)
                    assert min(shards) >= self.first
                    self.sources[source].queue += shards
                case Spared(shards):
                    assert not set(shards) & {k for _, k in self.sent}
                case WasWrong(source):
                    assert self.sources[source].bad, "an honest source was blamed"
                case PullDone() | PullFailed():
                    self.ends.append(effect)

    def step(self) -> bool:
        """Let one thing happen; return False when nothing can any more."""
        alive = [n for n in self.sources if n not in self.dead]
        able = [n for n in alive if n not in self.begun or self.sources[n].queue]
        if self.own is not None and (not able or self.chance.random() < 0.3):
            self.follow(self.pull.own_shards(self.own))
            self.own = None
            return True
        if not able:
            return False
        name = self.chance.choice(able)
        source = self.sources[name]
        if source.answers == 0:
            self.dead.add(name)
            self.follow(self.pull.lost(name))
        elif name not in self.begun:
            source.answers -= 1
            self.begun.add(name)
            self.follow(self.pull.began(name))
        else:
            source.answers -= 1
            self.answer(name, source)
        return True

    def answer(self, name: bytes, source: Source) -> None:
        wanted = source.queue.pop(self.chance.randrange(len(source.queue)))
        wrong = {k: b"corrupt" + name for k in source.bad}
        if wanted is None:
            told = [wrong.get(k, right(k)) if source.lies else right(k) for k in range(self.shards)]
            self.follow(self.pull.manifest(name, tuple(told)[self.first :]))
        elif self.pull.expects(name, wanted):
            self.sent.append((name, wanted))
            self.follow(self.pull.shard(name, wanted, wrong.get(wanted, right(wanted))))


def play(shards: int, sources: dict[bytes, Source], chance: random.Random) -> World:
    """Run a world to its end. The joiner has the first few shards already, either known to be right
    or some of them wrong."""
    own, are_right = chance.randrange(shards), chance.random() < 0.3
    pull = Pull(shards, 16, tuple(sources), no_rate, evenly, own, are_right=are_right)
    had = tuple(right(k) if are_right or chance.random() < 0.7 else b"other" for k in range(own))
    own_digests, first = (None, own) if are_right else (had, 0)
    world = World(pull, shards, sources, chance, own=own_digests, first=first)
    while world.step():
        for shard, giver in pull.verified.items():
            assert shard not in sources[giver].bad
    assert len(world.ends) == 1
    done = pull.state is PullState.DONE
    whole = len(pull.verified) + pull.spared == shards
    assert done == (whole and world.ends == [PullDone()])
    wanted = sum(digest == right(k) for k, digest in enumerate(had))
    assert pull.spared == wanted or not done
    assert done != (pull.state is PullState.FAILED)
    return world


@st.composite
def casts(draw: st.DrawFn) -> tuple[int, dict[bytes, Source]]:
    """Up to four sources, some of which lie or die."""
    shards = draw(st.integers(1, 12))
    bad = st.sets(st.integers(0, shards - 1), max_size=4)
    answers = st.integers(0, 8) | st.just(1000)
    count = draw(st.integers(1, 4))
    return shards, {node(k): Source(draw(bad), draw(answers)) for k in range(count)}


@given(casts(), st.randoms(use_true_random=False))
def test_a_pull_ends_and_holds_only_what_matches(
    cast: tuple[int, dict[bytes, Source]], chance: random.Random
) -> None:
    world = play(*cast, chance)
    assert len(world.sent) <= 2 * world.shards * len(world.sources) ** 2
    if world.pull.state is PullState.FAILED:
        living = [s for n, s in world.sources.items() if n not in world.dead]
        nowhere = set.intersection(*(s.bad for s in living)) if living else {0}
        assert nowhere


@given(casts(), st.randoms(use_true_random=False))
def test_an_honest_source_that_stays_is_enough(
    cast: tuple[int, dict[bytes, Source]], chance: random.Random
) -> None:
    shards, sources = cast
    sources[node(9)] = Source(set(), 1000)
    assert play(shards, sources, chance).pull.state is PullState.DONE


@given(casts(), st.booleans(), st.randoms(use_true_random=False))
def test_two_honest_sources_are_right_against_one_whose_manifest_lies(
    cast: tuple[int, dict[bytes, Source]], begins_first: bool, chance: random.Random
) -> None:
    """What it has sent itself is found out, too, because its manifest is compared."""
    shards, _ = cast
    liar = Source({*chance.sample(range(shards), 1)}, 1000, lies=True)
    honest = {node(k): Source(set(), 1000) for k in (8, 9)}
    sources = {node(1): liar, **honest} if begins_first else {**honest, node(1): liar}
    own = chance.randrange(shards)
    pull = Pull(shards, 16, tuple(sources), no_rate, evenly, own)
    had = tuple(right(k) for k in range(own))
    world = World(pull, shards, sources, chance, own=had)
    for name in sources:  # a copy that ends before the second source has begun believes the first
        world.begun.add(name)
        world.follow(pull.began(name))
    while world.step():
        pass
    assert pull.state is PullState.DONE
    assert not any(k in liar.bad for k, giver in pull.verified.items() if giver == node(1))


@given(st.integers(1, 30), st.integers(1, 4), st.randoms(use_true_random=False))
def test_honest_sources_send_every_shard_once(
    shards: int, count: int, chance: random.Random
) -> None:
    world = play(shards, {node(k): Source(set(), 1000) for k in range(count)}, chance)
    asked_for = sorted(k for _, k in world.sent)
    assert len(asked_for) == shards - world.pull.spared
    assert len(asked_for) == len(dict.fromkeys(asked_for))
