"""Updates that reach the trainer late because joiners are fed, and states that lack updates."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from protocols import limits
from protocols.cluster.policy import Pull
from protocols.effects import Apply, Publish, Send
from protocols.events import Applied, Published, UpdateDelayed
from protocols.member.copies import Copies
from protocols.member.holds import Holds
from protocols.rounds.control_word import EMPTY
from protocols.wire import messages as m
from tests.unit.protocols.clusters import cluster, node_of
from tests.unit.protocols.records import member
from tests.unit.protocols.test_trainer_debt import Bench, late

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy

LONG_S = 1000.0


# --- the time of the trainer ----------------------------------------------------------------------


def applying(bench: Bench) -> Apply:
    """Have an update applied that follows work which was done."""
    assert bench.debt.give(bench.at, (0, 1))
    assert bench.debt.contributed(bench.said())
    update = Apply(bench.at, EMPTY, 2)
    bench.debt.apply(update)
    return update


def allowed_s(bench: Bench) -> float:
    """Return how many seconds the trainer may take from now on."""
    due = bench.debt.deadline
    assert due is not None
    return due - bench.context.now


def test_a_trainer_owes_nothing_for_an_update_that_it_was_not_given_yet() -> None:
    bench = Bench()
    update = applying(bench)
    allowed = allowed_s(bench)
    for _ in range(10):  # joiners take in what they are sent
        bench.passes(allowed - 0.1)
        assert not bench.is_behind()
        bench.debt.delayed(UpdateDelayed(update.iteration))
    bench.passes(allowed + 0.1)
    assert bench.is_behind()


def test_how_long_an_update_was_delayed_does_not_count_as_how_long_it_takes() -> None:
    bench = Bench()
    usual = applying(bench)
    allowed = allowed_s(bench)
    bench.context.now += LONG_S
    bench.debt.delayed(UpdateDelayed(usual.iteration))
    assert bench.debt.applied(Applied(usual.iteration, b"m"))
    bench.context.iteration += 1
    applying(bench)
    assert allowed_s(bench) == allowed


def test_an_answer_may_come_before_the_word_that_the_delay_is_over() -> None:
    bench = Bench()
    update = applying(bench)
    assert bench.debt.applied(Applied(update.iteration, b"m"))
    bench.debt.delayed(UpdateDelayed(update.iteration))
    assert bench.debt.deadline is None


def test_a_delay_of_another_update_changes_nothing() -> None:
    bench = Bench()
    update = applying(bench)
    before = bench.debt.deadline
    bench.context.now += 1.0
    bench.debt.delayed(UpdateDelayed(update.iteration - 1))
    assert bench.debt.deadline == before


def test_the_time_of_an_update_that_is_replayed_begins_with_its_hand_over_too() -> None:
    bench = late()
    first, second = bench.missed(), bench.missed()
    bench.debt.applied(Applied(first.iteration, b"one"))
    before = bench.debt.deadline
    assert before is not None
    bench.context.now += 1.0
    bench.debt.delayed(UpdateDelayed(second.iteration))
    assert bench.debt.deadline == before + 1.0


def test_results_may_take_as_long_as_the_last_ones_did() -> None:
    bench = Bench()
    update = applying(bench)
    assert bench.debt.applied(Applied(update.iteration, b"m"))
    for _ in range(limits.TRAINER_FIRST_ITERATIONS):  # after which usual times count
        bench.context.iteration += 1
        update = applying(bench)
        bench.passes(0.1)
        assert bench.debt.applied(Applied(update.iteration, b"m"))
    at = bench.context.iteration = bench.context.iteration + 1
    assert bench.debt.give(at, (0, 1))
    assert bench.debt.contributed(bench.said())

    def published_within(seconds: float, attempt: int, *, delayed: bool = False) -> bool:
        """Return whether results are in time that take so long."""
        bench.debt.publish(Publish(at, attempt, EMPTY, 2, (0,)))
        if delayed:  # slots had to be stepped first
            bench.passes(seconds)
            bench.debt.delayed(UpdateDelayed(at))
            assert not bench.debt.is_late_publisher
        bench.passes(seconds)
        in_time = not bench.debt.is_late_publisher
        bench.debt.published(Published(at, attempt))
        assert not bench.debt.is_late_publisher
        return in_time

    long_s = limits.TRAINER_LEAST_SECONDS + 1.0
    assert published_within(limits.TRAINER_LEAST_SECONDS - 0.5, 0)
    assert published_within(limits.TRAINER_LEAST_SECONDS - 0.5, 1, delayed=True)
    assert published_within(long_s, 2), "the last two took nearly as long"
    bench.debt._results.clear()
    assert not published_within(long_s, 3)


# --- a state that lacks updates -------------------------------------------------------------------


class Source:
    """A member that is the only source of the join of member 9, and what it says."""

    def __init__(self) -> None:
        _, hosts = cluster(0, size=2)
        self.context = node_of(hosts[0]).context
        self.context.now = 100.0
        self.told: list[m.Message] = []  # to the scheduler
        self.context.links[member(9).node] = member(9)
        self.context.effects = []
        copies = Copies(self.context, lambda _to, message: self.told.append(message))
        self.holds = Holds(self.context, copies)

    @property
    def offers(self) -> list[str]:
        """The names of the messages to the joiner."""
        sent = [e.envelope for e in self.context.effects if isinstance(e, Send)]
        return [type(x.message).__name__ for x in sent if x.tags.destination == member(9).node]

    def begins(self, *, beside: bool = False, join: int = 5) -> None:
        """A policy with the pull comes into force while the state here lacks updates."""
        me, policy = self.context.node, self.context.policy
        assert policy is not None
        pull = Pull(join, member(9), (me,), me, beside)
        named = cast("Policy", SimpleNamespace(pulls=(pull,), key=policy.key, view=policy.view))
        self.holds.begin(named, is_whole=False)

    def deadline(self) -> float | None:
        """Return when something is done although nothing has happened."""
        return self.holds.deadline

    def passes(self, seconds: float, *, is_whole: bool = False) -> None:
        """Let time pass."""
        self.context.now += seconds
        self.holds.tick(is_whole=is_whole)


def test_a_state_that_lacks_updates_is_offered_once_the_trainer_has_them() -> None:
    source = Source()
    source.begins()
    assert source.deadline() == source.context.now + limits.JOIN_OFFER_SECONDS
    source.passes(1.0)
    assert (source.told, source.offers) == ([], [])
    source.passes(1.0, is_whole=True)
    assert source.offers == ["PullBegins"]
    assert source.deadline() is None
    source.passes(limits.JOIN_OFFER_SECONDS)
    assert source.told == []


def test_the_scheduler_is_told_of_a_state_that_lacks_updates_for_long() -> None:
    source = Source()
    source.begins()
    source.passes(limits.JOIN_OFFER_SECONDS)
    assert source.told == [m.NoSnapshot(5)]
    source.passes(1.0, is_whole=True)
    assert source.offers == []


def test_nothing_is_offered_to_a_joiner_that_was_given_up_meanwhile() -> None:
    for is_fenced in (False, True):
        source = Source()
        source.begins()
        if is_fenced:
            source.holds.drop()
        else:
            source.holds.release(5)
        source.passes(1.0, is_whole=True)
        source.passes(limits.JOIN_OFFER_SECONDS)
        assert (source.told, source.offers) == ([], [])


def test_a_joiner_for_which_nobody_waits_is_refused_at_once() -> None:
    source = Source()
    source.begins(beside=True)
    assert source.told == [m.NoSnapshot(5)]
