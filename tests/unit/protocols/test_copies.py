"""Joins beside the training, piece by piece: what a source keeps, and what a joiner believes."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from protocols import limits
from protocols.cluster.policy import Pull as PullPlan
from protocols.effects import (
    Apply,
    DropSnapshot,
    DropUpdates,
    LogUpdate,
    Report,
    SendUpdate,
    TakeSnapshot,
)
from protocols.errors import RemoteProtocolError
from protocols.events import Applied, SnapshotTaken, UpdateArrived, UpdateCopied, UpdateLogged
from protocols.member.copies import Copies, update_parts
from protocols.member.copying import Copying
from protocols.member.pull import Spared
from protocols.rounds.control_word import EMPTY
from protocols.scheduler import fence
from protocols.scheduler.join_cost import JoinWay
from protocols.scheduler.planning import Offer
from protocols.wire import messages as m
from tests.simulation.copies import UPDATE_BYTES
from tests.simulation.world import World, member
from tests.unit.protocols import records
from tests.unit.protocols.clusters import node_of

if TYPE_CHECKING:
    from protocols.member.context import Context

A, B, C, D = (member(k).node for k in (1, 2, 3, 4))
PARTS = update_parts(UPDATE_BYTES)
BEGINS = m.PullBegins(7, 5, 1, 1, bytes(32), 0, b"meta 5", ())


def context() -> Context:
    world = World(0)
    world.join_way = JoinWay.BESIDE
    return node_of(world.add(0)).context


def digests(content: bytes = b"x") -> tuple[bytes, ...]:
    return tuple(hashlib.sha256(content + bytes([k])).digest() for k in range(PARTS))


def record(iteration: int, content: bytes = b"x", *, stop: bool = False) -> m.UpdateRecord:
    word = replace(EMPTY, stop=stop).encode()
    return m.UpdateRecord(7, iteration, word, 2, bytes([iteration]) * 32, digests(content))


class Joiner:
    """A joiner that copies from `A` and `B`, or other sources, and why it has failed."""

    def __init__(self, *sources: bytes) -> None:
        self.failed: list[str] = []
        self.context = context()
        self._sources = sources or (A, B)
        self.copying = Copying(self.context, BEGINS, self._sources, offer, self.failed.append)

    def wrong(self) -> list[str]:
        """Return the names of the sources that were told to be wrong."""
        told = [e for e in self.context.effects if isinstance(e, Report)]
        return [e.values["node"] for e in told if e.event == "wrong_source"]

    def fetch(self, iteration: int, *, wrong: bool = False) -> None:
        """Deliver every part of an update that was asked for, from whoever was asked."""
        for part, digest in enumerate(digests()):
            for source in self._sources:
                if self.copying.expects(source, iteration, part):
                    said = bytes(32) if wrong else digest
                    self.copying.arrived(UpdateArrived(source, iteration, part, said))

    def applied(self) -> list[int]:
        """Return the iterations whose updates the trainer was given, and forget them."""
        given = [e.iteration for e in self.context.effects if isinstance(e, Apply)]
        self.context.effects.clear()
        return given


def offer(node: bytes, busy: int) -> Offer:
    return Offer(node, "", None, 0.0, busy)


def test_updates_are_applied_in_order_whatever_order_they_come_in() -> None:
    joiner = Joiner()
    copying = joiner.copying
    copying.complete()
    for iteration in (7, 6, 5):
        copying.record(A, record(iteration))
        copying.record(A, record(iteration))  # a repetition
        copying.record(B, record(iteration))
    assert copying.behind == 3
    for iteration in (6, 7, 5):
        joiner.fetch(iteration)
    copying.record(B, record(7))  # it is here already
    for iteration in (5, 6, 7):
        assert joiner.applied() == [iteration]
        assert not copying.applied(Applied(iteration + 1, b""))
        assert copying.applied(Applied(iteration, b"meta"))
    assert (copying.behind, copying.next, copying.commit) == (0, 8, bytes([7]) * 32)
    assert joiner.context.commit == copying.commit
    assert copying.is_close
    assert not joiner.failed


def test_a_joiner_is_close_if_what_it_lacks_is_new() -> None:
    joiner = Joiner()
    copying = joiner.copying
    for iteration in (5, 6, 7):
        copying.record(A, record(iteration))
    seen = [copying.is_close]
    copying.complete()
    seen.append(copying.is_close)
    joiner.context.now += limits.COPY_CLOSE_SECONDS
    seen.append(copying.is_close)
    assert seen == [False, True, False]


def test_nothing_is_fetched_that_the_rounds_bring() -> None:
    joiner = Joiner()
    copying = joiner.copying
    copying.complete()
    for iteration in (5, 6, 7):
        copying.record(A, record(iteration))
    assert copying.awaited
    copying.stop_at(6)
    copying.record(B, record(8))
    assert not copying.expects(A, 6, 0)
    joiner.fetch(5)
    assert joiner.applied() == [5]
    assert copying.applied(Applied(5, b""))
    assert copying.is_done
    assert joiner.applied() == []
    copying.remind()
    copying.lost(A)
    copying.lost(B)
    assert not joiner.failed


def test_an_update_that_is_being_applied_is_not_noted_again() -> None:
    joiner = Joiner()
    joiner.copying.complete()
    joiner.copying.record(A, record(5))
    joiner.fetch(5)
    assert joiner.applied() == [5]
    joiner.copying.record(B, record(5))
    joiner.copying.applied(Applied(5, b"", b""))
    joiner.copying.lost(B)
    assert not joiner.copying._records


def test_an_update_that_was_missed_is_asked_for() -> None:
    joiner = Joiner()
    joiner.copying.record(A, record(6))
    joiner.copying.remind()
    joiner.copying.record(A, record(5))
    joiner.copying.remind()
    joiner.fetch(5)
    joiner.fetch(6)
    joiner.copying.complete()
    assert joiner.applied() == [5]


def test_the_last_update_ends_training() -> None:
    joiner = Joiner()
    joiner.copying.complete()
    joiner.copying.record(A, record(5, stop=True))
    joiner.fetch(5)
    assert joiner.context.steps == 6


def test_what_no_update_can_be_is_an_error() -> None:
    joiner = Joiner()
    with pytest.raises(RemoteProtocolError, match="number of parts"):
        joiner.copying.record(A, replace(record(5), leaves=()))
    with pytest.raises(RemoteProtocolError, match="control word"):
        joiner.copying.record(A, replace(record(5), word=b"\xc1"))
    with pytest.raises(RemoteProtocolError, match="not asked for"):
        joiner.copying.arrived(UpdateArrived(A, 5, 0, bytes(32)))


def test_sources_that_disagree_end_the_join() -> None:
    joiner = Joiner()
    joiner.copying.record(A, record(5))
    joiner.copying.record(C, record(5, b"y"))  # it is no source
    joiner.copying.record(A, record(4, b"y"))  # it is in the snapshot
    assert not joiner.failed
    joiner.copying.record(B, record(5, b"y"))
    assert "different updates of iteration 5" in joiner.failed[0]


def test_two_sources_are_believed_against_a_third() -> None:
    joiner = Joiner(A, B, D)
    joiner.copying.began(D)
    joiner.copying.complete()
    joiner.copying.record(A, record(5, b"y"))
    assert joiner.copying.expects(A, 5, 0)
    joiner.copying.record(B, record(5))
    assert not joiner.copying.expects(A, 5, 0), "nobody knows yet who is wrong"
    joiner.copying.record(B, record(5))
    joiner.copying.record(D, record(5))
    assert joiner.wrong() == [joiner.context.name(A)]
    joiner.fetch(5)
    assert joiner.applied() == [5]
    assert not joiner.failed


def test_two_that_differ_and_are_left_end_the_join() -> None:
    joiner = Joiner(A, B, D)
    joiner.copying.began(D)
    joiner.copying.record(A, record(5, b"y"))
    joiner.copying.record(B, record(5))
    assert not joiner.failed
    joiner.copying.lost(D)
    assert "different updates of iteration 5" in joiner.failed[0]
    joiner = Joiner(A, B, D)
    joiner.copying.began(D)
    joiner.copying.record(A, record(5, b"y"))
    joiner.copying.record(B, record(5))
    joiner.copying.lost(A)
    assert joiner.copying.expects(B, 5, 0)


def test_parts_that_match_nowhere_end_the_join() -> None:
    joiner = Joiner()
    joiner.copying.record(A, record(5))
    joiner.copying.record(B, record(5))
    for _ in range(3):
        joiner.fetch(5, wrong=True)
    assert "the update of iteration 5" in joiner.failed[0]


def test_what_sources_say_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_RECORD_BYTES", 300)
    joiner = Joiner()
    joiner.copying.record(A, record(5))
    joiner.copying.record(A, record(6))
    assert "too far ahead" in joiner.failed[0]


def test_a_joiner_keeps_no_more_than_it_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_COPY_LOG_STATES", 1)  # one state is as large as one update
    joiner = Joiner()
    for iteration in (5, 6, 7):
        joiner.copying.record(A, record(iteration))
    asked = [i for i in (5, 6, 7) if joiner.copying.expects(A, i, 0)]
    assert asked == [5, 6]


def test_a_lost_source_is_done_without() -> None:
    joiner = Joiner()
    copying = joiner.copying
    copying.record(A, record(5))
    copying.record(B, record(30))  # too far ahead to be fetched yet
    copying.record(A, record(30))
    copying.record(A, record(31))
    copying.record(B, record(32))
    copying.lost(A)
    copying.record(B, record(5))
    joiner.fetch(5)
    copying.complete()
    assert joiner.applied() == [5]
    copying.lost(B)
    assert "every source" in joiner.failed[0]


def test_no_part_of_an_update_is_spared() -> None:
    joiner = Joiner()
    joiner.copying.record(A, record(5))
    pull = joiner.copying._pulls[5]
    with pytest.raises(AssertionError, match="before it is fetched"):
        joiner.copying._follow(5, pull, [Spared((0,))])
    del joiner.copying._pulls[5]
    joiner.copying._follow(5, pull, [Spared((0,))])  # given up meanwhile


# --- sources --------------------------------------------------------------------------------------


class Source:
    """A source with links to `A` and `B`, and what it has said to itself."""

    def __init__(self) -> None:
        self.context = context()
        self.said: list[m.Message] = []
        self.context.links = {A: member(1), B: member(2)}
        self.copies = Copies(self.context, lambda _to, message: self.said.append(message))

    def begin(self, join: int, number: int, iteration: int = 5) -> None:
        plan = PullPlan(join, member(number), (self.context.node,), self.context.node, True)
        self.copies.begin(plan, replace(BEGINS, join=join, iteration=iteration))

    def kinds(self, kind: type[object]) -> int:
        """Return how many effects of this kind there were since the last call."""
        found = sum(isinstance(e, kind) for e in self.context.effects)
        self.context.effects.clear()
        return found


def test_joiners_of_one_iteration_share_a_snapshot() -> None:
    source = Source()
    source.begin(1, 1)
    source.begin(2, 2)
    source.begin(3, 3)  # no neighbour
    assert source.kinds(TakeSnapshot) == 1
    source.copies.taken(SnapshotTaken(5, True))
    source.context.links[C] = member(3)
    source.begin(4, 3)
    assert source.kinds(TakeSnapshot) == 0
    source.begin(5, 3, 6)
    source.copies.taken(SnapshotTaken(6, False))
    assert [join in source.copies for join in (1, 2, 3, 4, 5)] == [True, True, False, True, False]
    assert source.said == [m.NoSnapshot(5)]


def test_updates_are_kept_only_while_they_are_needed() -> None:
    source = Source()
    copies = source.copies
    copies.applying(4, b"", 1, bytes(32))
    assert source.kinds(LogUpdate) == 0
    source.begin(1, 1)
    copies.taken(SnapshotTaken(5, True))
    copies.applying(5, b"", 1, bytes(32))
    copies.applying(6, b"", 1, bytes(32))
    copies.update_wanted(A, m.UpdateRequest(1, 5, 5, ()))  # it is not hashed yet
    copies.logged(UpdateLogged(5, digests()))
    copies.logged(UpdateLogged(9, digests()))
    copies.update_wanted(A, m.UpdateRequest(1, 5, 5, ()))
    copies.update_wanted(A, m.UpdateRequest(1, 5, 5, (0, 1)))
    copies.update_wanted(B, m.UpdateRequest(1, 5, 5, (0,)))  # it is another's join
    copies.update_wanted(A, m.UpdateRequest(1, 8, 5, (0,)))  # there is none yet
    copies.manifest_wanted(B, m.ManifestRequest(1, 64))
    copies.shards_wanted(B, 1, 64, (0,))
    assert source.kinds(SendUpdate) == 1
    copies.update_wanted(A, m.UpdateRequest(1, 6, 6, (0,)))
    copies.logged(UpdateLogged(5, digests()))  # it is not kept any more
    assert source.kinds(DropUpdates) == 1
    for parts in ((PARTS,), (0, 0)):
        with pytest.raises(RemoteProtocolError, match="do not exist"):
            copies.update_wanted(A, m.UpdateRequest(1, 6, 6, parts))
    copies.end(1)
    copies.end(1)
    assert source.kinds(DropUpdates) == 1


def test_an_update_waits_until_the_one_before_is_copied() -> None:
    source = Source()
    copies, context = source.copies, source.context

    def waits(iteration: int) -> bool:
        context.iteration = iteration
        return copies.is_reading

    source.begin(1, 1)
    assert waits(5), "the snapshot is not there"
    copies.taken(SnapshotTaken(5, True))
    assert not waits(5)
    copies.applying(5, b"", 1, bytes(32))
    assert not waits(5), "the trainer may read what is being copied"
    assert waits(6)
    copies.copied(UpdateCopied(5))
    assert not waits(6), "nobody waits for digests"
    copies.logged(UpdateLogged(5, digests()))
    copies.applying(6, b"", 1, bytes(32))
    assert waits(7)
    copies.end(1)
    assert not waits(7), "nobody needs it any more"


def test_an_update_that_finds_no_memory_ends_the_copies_that_need_it() -> None:
    source = Source()
    copies = source.copies
    source.begin(1, 1)
    copies.taken(SnapshotTaken(5, True))
    for iteration in (5, 6):
        copies.applying(iteration, b"", 1, bytes(32))
    copies.logged(UpdateLogged(5, digests()))
    source.begin(2, 2, 7)
    copies.taken(SnapshotTaken(7, True))
    copies.logged(UpdateLogged(6, ()))
    assert [join in copies for join in (1, 2)] == [False, True]
    source.context.effects.clear()
    copies.update_wanted(B, m.UpdateRequest(2, 6, 6, ()))
    assert not source.context.effects, "there is nothing to tell of it"


def test_a_joiner_is_told_only_of_updates_that_it_lacks() -> None:
    source = Source()
    copies = source.copies
    source.begin(1, 1)
    copies.taken(SnapshotTaken(5, True))
    for iteration in (5, 6):
        copies.applying(iteration, b"", 1, bytes(32))
    source.begin(2, 2)
    copies.logged(UpdateLogged(6, digests()))
    copies.update_wanted(A, m.UpdateRequest(1, 6, 6, (0,)))
    copies.logged(UpdateLogged(5, digests()))
    assert copies.deadline is not None


def test_only_pulls_beside_the_training_outlive_a_fence() -> None:
    nodes = [records.node(k) for k in (1, 2, 3)]
    plans = (
        PullPlan(4, records.member(9), (nodes[1], nodes[2]), nodes[2], True),
        PullPlan(5, records.member(8), (nodes[1],), nodes[1], False),
        PullPlan(6, records.member(7), (nodes[2],), nodes[2], True),
        PullPlan(8, records.member(6), (nodes[1],), nodes[1], True),
    )
    carried = fence._carried(records.star_policy(3, plans), nodes[:2], ())
    assert [(p.join, p.sources, p.parent) for p in carried] == [
        (4, (nodes[1],), nodes[1]),
        (8, (nodes[1],), nodes[1]),
    ]


def test_who_asked_is_told_of_an_update_again_once_it_is_hashed() -> None:
    source = Source()
    copies = source.copies
    source.begin(1, 1)
    copies.taken(SnapshotTaken(5, True))
    copies.applying(5, b"", 1, bytes(32))
    copies.logged(UpdateLogged(5, digests()))
    source.context.effects.clear()
    copies.update_wanted(A, m.UpdateRequest(1, 5, 5, ()))
    assert len(source.context.effects) == 1


def test_a_joiner_that_keeps_up_frees_updates_although_the_next_is_not_made_yet() -> None:
    source = Source()
    copies = source.copies
    source.begin(1, 1)
    copies.taken(SnapshotTaken(5, True))
    copies.applying(5, b"", 1, bytes(32))
    copies.update_wanted(A, m.UpdateRequest(1, 900, 900, ()))
    assert source.kinds(DropUpdates) == 0, "it may have another one, and has to hear of this one"
    copies.logged(UpdateLogged(5, digests()))
    copies.update_wanted(A, m.UpdateRequest(1, 900, 900, ()))
    assert [e.before for e in source.context.effects if isinstance(e, DropUpdates)] == [6]


def test_what_no_source_can_have_is_not_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_UPDATES_BEHIND", 10)
    joiner = Joiner()
    joiner.copying.record(A, record(15))
    assert joiner.copying.behind == 0
    assert not joiner.failed


def test_sources_may_have_counted_other_members() -> None:
    joiner = Joiner()
    joiner.copying.record(A, record(5))
    joiner.copying.record(B, replace(record(5), members=7))
    assert not joiner.failed


def test_a_source_that_keeps_nothing_is_none() -> None:
    joiner = Joiner()
    joiner.copying.began(A)
    joiner.copying.lost(A)
    assert joiner.failed == ["every source of the updates was lost"]


def test_what_nobody_asks_for_is_not_kept_for_ever() -> None:
    source = Source()
    copies = source.copies
    source.begin(1, 1)
    copies.taken(SnapshotTaken(5, True))
    assert 1 in copies
    copies.tick(source.context.now + limits.COPY_IDLE_SECONDS)
    assert 1 not in copies
    assert source.kinds(DropSnapshot) == 1


def test_what_the_others_have_made_again_ends_the_join() -> None:
    """A source that was lost had shipped an update, and the others have made another one."""
    joiner = Joiner(A, B, D)
    for source in (B, D):
        joiner.copying.began(source)
    joiner.copying.complete()
    joiner.copying.record(A, record(5, b"x"))
    joiner.fetch(5)
    assert joiner.applied() == [5]
    joiner.copying.lost(A)
    joiner.copying.record(B, record(5, b"again"))
    assert joiner.failed == ["the others have made iteration 5 again"]
    assert not joiner.copying.has_state, "nobody goes on from that state"


def test_who_contradicts_later_what_two_have_said_is_wrong() -> None:
    joiner = Joiner(A, B, D)
    joiner.copying.complete()
    joiner.copying.record(A, record(5))
    joiner.copying.record(B, record(5))
    joiner.fetch(5)
    joiner.copying.record(D, record(5, b"y"))
    assert joiner.wrong() == [joiner.context.name(D)]
    joiner.copying.record(D, record(6, b"y"))
    assert not joiner.copying.expects(D, 6, 0)
    assert not joiner.failed


def test_what_a_lost_source_has_said_counts_no_more() -> None:
    joiner = Joiner(A, B, D)
    for source in (B, D):
        joiner.copying.began(source)
    joiner.copying.complete()
    joiner.copying.record(A, record(5, b"y"))
    assert joiner.copying.expects(A, 5, 0)
    joiner.copying.lost(A)
    joiner.copying.record(B, record(5))
    assert joiner.copying.expects(B, 5, 0), "B and the lost one are no tie"
    joiner.copying.record(D, record(5))
    joiner.fetch(5)
    assert joiner.applied() == [5]
    assert not joiner.failed


def test_a_source_that_has_sent_a_wrong_part_is_asked_for_no_other_update() -> None:
    joiner = Joiner()
    joiner.copying.complete()
    for source in (A, B):
        for iteration in (5, 6):
            joiner.copying.record(source, record(iteration))
    for iteration in (5, 6):
        part = next(k for k in range(PARTS) if joiner.copying.expects(A, iteration, k))
        joiner.copying.arrived(UpdateArrived(A, iteration, part, bytes(32)))
    assert joiner.wrong() == [joiner.context.name(A)], "it is told once"
    for _ in range(3):
        joiner.fetch(5)
    joiner.copying.record(A, record(7))
    assert not any(joiner.copying.expects(A, 7, k) for k in range(PARTS))
    joiner.copying.record(B, record(7))
    assert joiner.copying.expects(B, 7, 0)
    assert joiner.applied() == [5]
    assert not joiner.wrong()


def test_two_that_say_different_things_are_both_wrong_against_two_others() -> None:
    joiner = Joiner(A, B, C, D)
    for source in (A, B, C, D):
        joiner.copying.began(source)
    joiner.copying.complete()
    for source, content in ((C, b"y"), (D, b"z"), (A, b"x"), (B, b"x")):
        joiner.copying.record(source, record(5, content))
    assert joiner.wrong() == [joiner.context.name(C), joiner.context.name(D)]
    joiner.fetch(5)
    assert joiner.applied() == [5]


def test_the_history_of_what_was_copied() -> None:
    joiner = Joiner()
    copying = joiner.copying
    copying.complete()
    copying.record(A, record(5))
    copying.record(B, record(5))
    joiner.fetch(5)
    past, meta, commit = copying.own
    assert (past.iteration, meta, commit) == (5, BEGINS.meta, BEGINS.commit), "it is not applied"
    copying.applied(Applied(5, b"meta 6"))
    past, meta, commit = copying.own
    assert (past.iteration, meta, commit) == (6, b"meta 6", record(5).commit)
    copying.stop_at(6)
    joiner.context.iteration, joiner.context.meta = 7, b"meta 7"
    assert copying.own[0].iteration == 7, "the rounds have taken over"
    assert copying.own[1] == b"meta 7"
