"""What a trainer owes: deadlines, hand-backs, updates that are replayed, being let go."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from protocols import limits
from protocols.effects import Apply, Depart, Effect, GiveWork, KeepUpdate, Report
from protocols.events import Applied, AwayWanted, Contributed, LeaveWanted, Tick
from protocols.member.cycle_table import CycleState
from protocols.member.trainer_debt import DebtState, TrainerDebt
from protocols.network.measures import KeepingUp
from protocols.rounds.control_word import EMPTY
from tests.unit.protocols.clusters import ENDLESS, cluster, go_on, node_of, policy_of, reported
from tests.variants import variants

if TYPE_CHECKING:
    from protocols.member.context import Context
    from tests.simulation.world import Host, World

USUAL_S = 1.0


class Bench:
    """A `TrainerDebt` without a node, with a clock that the test sets."""

    def __init__(self, *, size: int = 2, vector_bytes: int = 1 << 20) -> None:
        _, hosts = cluster(0, size=size)
        self.context: Context = node_of(hosts[0]).context
        self.context.config = replace(self.context.config, vector_bytes=vector_bytes)
        self.context.effects, self.context.own = [], deque()
        self.context.now = 1000.0
        self.wishes: list[bool] = []
        self.backs = 0
        self.debt = TrainerDebt(self.context, self.wishes.append, self._back)
        self.debt.began()
        for _ in range(limits.TRAINER_FIRST_ITERATIONS):
            self.iteration()

    @property
    def at(self) -> int:
        return self.context.iteration

    def state(self) -> DebtState:
        return self.debt.state

    def is_behind(self) -> bool:
        return self.debt.is_behind

    def is_stale(self) -> bool:
        return self.debt.is_stale

    def _back(self) -> None:
        self.backs += 1

    def iteration(self, seconds: float = USUAL_S) -> None:
        """Play a whole iteration of a trainer that keeps up."""
        assert self.debt.give(self.at, (0, 1))
        self.context.now += seconds
        assert self.debt.contributed(self.said())
        self.debt.apply(Apply(self.at, EMPTY, 2))
        self.context.now += 0.01
        assert self.debt.applied(Applied(self.at, b"m"))
        self.context.iteration += 1

    def said(self, turn: int | None = None) -> Contributed:
        turn = self.debt.turn if turn is None else turn
        return Contributed(self.at, (0, 1), 1.0, b"", b"", True, turn)

    def passes(self, seconds: float) -> None:
        self.context.now += seconds
        self.debt.tick()

    def missed(self) -> Apply:
        """Play an iteration that the others do without this trainer; return its update."""
        update = Apply(self.at, EMPTY, 2)
        self.debt.apply(update)
        self.context.iteration += 1
        return update

    def taken(self) -> list[Effect]:
        found, self.context.effects = self.context.effects, []
        return [e for e in found if isinstance(e, GiveWork | Apply | KeepUpdate)]


def late() -> Bench:
    """Return a bench whose trainer has missed the deadline of its work."""
    bench = Bench()
    bench.debt.give(bench.at, (0, 1))
    bench.passes(limits.TRAINER_FACTOR * USUAL_S + 0.1)
    assert bench.state() is DebtState.LATE
    bench.taken()
    return bench


def test_the_deadline_follows_what_the_trainer_took_before() -> None:
    bench = Bench()
    assert (bench.debt.deadline, bench.debt.waiting_since) == (None, None)
    assert bench.debt.standing == (KeepingUp.PROMPT, 0.0)
    bench.debt.give(bench.at, (0, 1))
    assert bench.debt.waiting_since == bench.context.now
    assert bench.debt.standing == (KeepingUp.PROMPT, 0.0)
    assert bench.debt.deadline == pytest.approx(bench.context.now + limits.TRAINER_FACTOR * USUAL_S)
    bench.passes(limits.TRAINER_FACTOR * USUAL_S - 0.1)
    assert bench.state() is DebtState.PROMPT
    assert bench.debt.standing[0] is KeepingUp.SLOW
    bench.passes(0.2)
    assert bench.state() is DebtState.LATE
    assert (bench.wishes, bench.backs, bench.debt.turn) == ([True], 1, 1)
    assert bench.debt.standing == (KeepingUp.LATE, 0.0)
    assert bench.debt.waiting_since == bench.context.now
    assert not bench.debt.give(bench.at + 1, (0,))


def test_an_update_that_nobody_asked_for_tells_nothing_of_the_speed() -> None:
    bench = Bench()
    deadline = bench.debt.deadline
    assert bench.debt.applied(Applied(bench.at, b"m"))
    assert bench.debt.deadline == deadline


def test_quick_work_may_take_the_least_time_and_the_first_iterations_longer() -> None:
    bench = Bench()
    for _ in range(limits.TRAINER_SAMPLES):
        bench.iteration(0.001)
    bench.debt.give(bench.at, (0, 1))
    bench.passes(limits.TRAINER_LEAST_SECONDS - 0.01)
    assert not bench.is_behind()
    bench.passes(0.02)
    assert bench.is_behind()
    bench.debt.began()
    assert not bench.is_behind()
    bench.debt.give(bench.at, (0, 1))
    bench.passes(limits.TRAINER_FIRST_SECONDS - 0.01)
    assert not bench.is_behind()
    bench.passes(0.02)
    assert bench.is_behind()


def test_the_only_member_waits_for_its_trainer_as_long_as_it_takes() -> None:
    bench = Bench(size=1)
    bench.debt.give(bench.at, (0, 1))
    bench.passes(1e6)
    assert bench.debt.deadline is None
    assert not bench.is_behind()


def test_an_answer_that_comes_too_late_counts_for_nothing_but_ends_the_lateness() -> None:
    bench = late()
    assert not bench.debt.contributed(bench.said(turn=0))
    assert bench.state() is DebtState.PROMPT
    assert bench.wishes == [True, False]
    assert bench.debt.give(bench.at, (3,))
    assert bench.taken() == [GiveWork(bench.at, (3,), 1)]
    assert not bench.debt.contributed(bench.said(turn=0))
    assert bench.debt.contributed(bench.said(turn=1))


def test_updates_are_kept_and_replayed_in_order() -> None:
    bench = late()
    first, second = bench.missed(), bench.missed()
    assert bench.is_stale()
    assert bench.debt.kept == (first.iteration, second.iteration)
    kept = [KeepUpdate(first.iteration), first, KeepUpdate(second.iteration)]
    assert bench.taken() == kept
    assert [e.iteration for e in bench.context.own] == [first.iteration, second.iteration]
    assert not bench.debt.contributed(bench.said(turn=0))
    assert bench.state() is DebtState.LATE
    assert not bench.debt.applied(Applied(first.iteration, b"one"))
    assert bench.state() is DebtState.CATCHING_UP
    assert bench.taken() == [second]
    assert not bench.debt.applied(Applied(first.iteration, b"again"))
    assert not bench.debt.applied(Applied(second.iteration, b"two"))
    assert (bench.state(), bench.context.meta) == (DebtState.PROMPT, b"two")
    assert not bench.is_stale()


def test_a_trainer_that_hangs_in_an_update_is_replayed_that_one_too() -> None:
    bench = Bench()
    update = Apply(bench.at, EMPTY, 2)
    bench.debt.apply(update)
    assert bench.debt.waiting_since == bench.context.now
    bench.taken()
    bench.passes(limits.TRAINER_LEAST_SECONDS + 0.01)
    assert bench.is_behind()
    assert bench.backs == 0
    assert bench.taken() == [KeepUpdate(update.iteration)], "it may not have been sent yet"
    assert [e.iteration for e in bench.context.own] == [update.iteration]
    bench.context.iteration += 1
    second = bench.missed()
    assert bench.taken() == [KeepUpdate(second.iteration)]
    bench.debt.applied(Applied(update.iteration, b"one"))
    assert bench.taken() == [second]


def test_who_hangs_again_while_it_catches_up_is_late_again() -> None:
    bench = late()
    first, _ = bench.missed(), bench.missed()
    bench.debt.applied(Applied(first.iteration, b"one"))
    deadline = bench.debt.deadline
    assert deadline is not None
    bench.passes(deadline - bench.context.now + 0.01)
    assert bench.state() is DebtState.LATE
    assert not bench.context.stalled


def test_who_stays_late_is_let_go() -> None:
    bench = late()
    assert bench.debt.deadline == bench.context.now + limits.TRAINER_LET_GO_SECONDS
    bench.passes(limits.TRAINER_LET_GO_SECONDS - 0.01)
    assert not bench.context.stalled
    bench.passes(0.02)
    assert bench.context.departs == "stalled"
    assert bench.debt.deadline is None


def test_who_is_away_is_let_go_only_when_too_much_has_to_be_kept() -> None:
    bench = Bench(vector_bytes=limits.MAX_KEPT_UPDATE_BYTES // 2)
    bench.debt.give(bench.at, (0, 1))
    bench.debt.away(True)
    bench.passes(0.0)
    assert (bench.state(), bench.backs) == (DebtState.LATE, 1)
    assert bench.debt.standing == (KeepingUp.AWAY, 0.0)
    assert bench.debt.deadline is None
    bench.passes(10 * limits.TRAINER_LET_GO_SECONDS)
    for _ in range(2):
        bench.missed()
        bench.passes(0.0)
    assert not bench.context.stalled
    bench.missed()
    bench.passes(0.0)
    assert bench.context.departs == "stalled"
    for _ in range(limits.MOST_KEPT_UPDATE_BYTES // bench.context.config.vector_bytes - 3):
        bench.missed()
    bench.context.own.clear()
    bench.taken()
    update = Apply(bench.at, EMPTY, 2)
    bench.debt.apply(update)
    assert not bench.context.own, "what cannot be kept is waited for"
    bench.debt.away(False)
    for iteration in bench.debt.kept:
        bench.debt.applied(Applied(iteration, b"m"))
    assert bench.taken()[-1] == update
    assert bench.state() is DebtState.PROMPT
    assert bench.debt.applied(Applied(update.iteration, b"m"))


def test_who_was_away_and_missed_nothing_takes_part_at_once() -> None:
    bench = Bench()
    bench.debt.away(True)
    bench.passes(0.0)
    assert bench.is_behind()
    bench.debt.contributed(bench.said(turn=0))
    assert bench.is_behind(), "it is still away"
    bench.debt.away(False)
    assert bench.state() is DebtState.PROMPT
    bench.debt.away(True)
    bench.debt.away(False)
    bench.passes(0.0)
    assert bench.state() is DebtState.PROMPT


def test_the_time_behind_counts_from_when_the_others_went_on() -> None:
    bench = Bench()
    bench.debt.away(True)
    bench.passes(0.0)
    missed = bench.missed()
    bench.passes(5.0)
    bench.debt.away(False)
    bench.passes(0.5)
    bench.debt.applied(Applied(missed.iteration, b"m"))
    reports = [e for e in bench.context.effects if isinstance(e, Report)]
    seconds = [(e.event, dict(e.values).get("seconds")) for e in reports]
    assert seconds == [("member_late", None), ("member_back", 5.5)]


def test_who_applies_an_update_while_away_is_away_still() -> None:
    bench = Bench()
    bench.debt.away(True)
    bench.passes(0.0)
    missed = bench.missed()
    bench.debt.applied(Applied(missed.iteration, b"m"))
    assert bench.is_behind()
    assert not bench.is_stale()


def test_where_all_are_late_the_work_comes_back_and_may_take_twice_as_long() -> None:
    bench = late()
    bench.debt.give_anyway(bench.at, (0, 1))
    assert bench.state() is DebtState.PROMPT
    assert bench.taken() == [GiveWork(bench.at, (0, 1), 1)]
    bench.passes(2 * limits.TRAINER_FACTOR * USUAL_S - 0.1)
    assert not bench.is_behind()
    bench.passes(0.2)
    assert bench.is_behind()
    bench.debt.give_anyway(bench.at, (0, 1))
    assert bench.debt.deadline == pytest.approx(
        bench.context.now + 4 * limits.TRAINER_FACTOR * USUAL_S
    )
    bench.debt.give_anyway(bench.at, (1,))  # of a trainer that is prompt now


def test_who_did_what_nobody_else_could_asks_for_a_share_again() -> None:
    bench = late()
    assert bench.wishes == [True]
    bench.debt.give_anyway(bench.at, (0, 1))
    bench.debt.contributed(bench.said(turn=0))
    assert bench.wishes == [True], "that was the work that came too late"
    bench.debt.contributed(bench.said())
    assert bench.wishes == [True, False]
    bench.debt.give(bench.at, (0, 1))
    bench.debt.contributed(bench.said())
    assert bench.wishes == [True, False], "once is enough"


def test_who_is_away_asks_for_no_share_although_nobody_else_could() -> None:
    bench = Bench()
    bench.debt.away(True)
    bench.passes(0.0)
    bench.debt.give_anyway(bench.at, (0, 1))
    assert bench.debt.contributed(bench.said())
    assert bench.wishes == [True]


def test_work_that_nobody_else_can_do_waits_for_what_is_replayed() -> None:
    for same in (True, False):
        bench = late()
        missed = bench.missed()
        bench.debt.give_anyway(bench.at, (0, 1))
        assert bench.is_behind()
        bench.taken()
        if not same:
            bench.context.iteration += 1
        at = bench.at
        bench.debt.applied(Applied(missed.iteration, b"m"))
        assert bench.taken() == ([GiveWork(at, (0, 1), 1)] if same else [])


def test_work_that_waits_goes_back_with_what_is_given_later() -> None:
    bench = late()
    missed = bench.missed()
    bench.debt.give_anyway(bench.at, (0, 1))
    assert not bench.debt.give(bench.at, (2,))
    bench.taken()
    bench.debt.applied(Applied(missed.iteration, b"m"))
    assert bench.taken() == []


def test_work_that_waits_for_a_trainer_that_stays_away_goes_back_in_time() -> None:
    bench = late()
    bench.debt.away(True)
    missed = bench.missed()
    for times in (2, 4):
        bench.debt.give_anyway(bench.at, (0, 1))
        backs, usual = bench.backs, limits.TRAINER_FACTOR * USUAL_S
        assert bench.debt.deadline == pytest.approx(bench.context.now + times * usual)
        bench.passes(times * usual - 0.1)
        assert bench.backs == backs
        bench.passes(0.2)
        assert bench.backs == backs + 1
        assert bench.debt.deadline is None
    bench.taken()
    bench.debt.applied(Applied(missed.iteration, b"m"))
    assert bench.taken() == []


def test_work_that_waits_in_the_first_iterations_goes_back_as_soon_as_later() -> None:
    bench = Bench()
    bench.debt.began()  # so that the next iterations are the first ones
    bench.debt.away(True)
    bench.passes(0.0)
    bench.missed()
    bench.debt.give_anyway(bench.at, (0, 1))
    usual = limits.TRAINER_FACTOR * USUAL_S
    assert bench.debt.deadline == pytest.approx(bench.context.now + 2 * usual)
    assert 2 * usual < limits.TRAINER_FIRST_SECONDS


@pytest.mark.parametrize("hangs", [1, 2])
def test_what_took_long_once_is_no_pace_but_twice_is(hangs: int) -> None:
    bench = Bench()
    for _ in range(hangs):
        bench.iteration(60.0)
    for _ in range(limits.TRAINER_SAMPLES - hangs):
        bench.iteration()
    bench.debt.give(bench.at, (0, 1))
    usual = USUAL_S if hangs == 1 else 60.0
    assert bench.debt.deadline == bench.context.now + limits.TRAINER_FACTOR * usual


# --- in a cluster ---------------------------------------------------------------------------------


def test_an_answer_to_older_work_leaves_newer_work_its_deadline() -> None:
    bench = late()
    bench.debt.give_anyway(bench.at, (0, 1))  # the trainers of all others are late, too
    due = bench.debt.deadline
    assert not bench.debt.contributed(bench.said(turn=bench.debt.turn - 1))
    assert bench.debt.deadline == due
    bench.passes(10_000.0)
    assert bench.backs == 2


def fast(seed: int, size: int = 3, steps: int = ENDLESS) -> tuple[World, list[Host]]:
    """Return a cluster past its first iterations, in which trainers are given more time."""
    world, hosts = cluster(seed, size=size, steps=steps)
    world.most_compute = 0.1  # so that few iterations pass while a trainer hangs
    begun = hosts[0].iteration
    world.run(lambda: all(h.iteration > begun + 5 for h in hosts))
    return world, hosts


def ahead(host: Host, world: World, by: int) -> None:
    """Run until `host` has done `by` more iterations."""
    begun = host.iteration
    world.run(lambda: host.iteration >= begun + by)


@pytest.mark.parametrize("seed", variants(range(1), long=range(4)))
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("promised", [True, False])
def test_the_others_go_on_without_a_trainer_that_does_not_answer(
    seed: int, size: int, promised: bool
) -> None:
    world, hosts = fast(seed, size)
    victim = hosts[seed % size]
    other = hosts[(seed + 1) % size]
    begun = world.now
    victim.hang(20.0, promised=promised)
    ahead(other, world, 20)
    assert world.now - begun < 20.0
    assert victim.hangs
    world.run(lambda: not victim.hangs)
    world.run(lambda: not node_of(victim).debt.is_behind and victim.iteration == other.iteration)
    assert [e["away"] for e in reported(victim, "member_late")] == [promised]
    assert len(reported(victim, "member_back")) == 1
    world.run(lambda: len(policy_of(other).micro_batches(victim.me.node)) > 0)
    go_on(world)


@pytest.mark.parametrize("seed", variants(range(1), long=range(4)))
def test_the_others_go_on_though_the_scheduler_hangs_and_everybody_may_leave(seed: int) -> None:
    world, hosts = fast(seed)
    for host in hosts[:2]:
        host.hang(28.0)
    begun = world.now
    hosts[2].handle(LeaveWanted())
    world.run(lambda: hosts[2].gone == "left")
    assert world.now - begun < 28.0
    world.run(lambda: not any(h.hangs for h in hosts[:2]))
    go_on(world)


@pytest.mark.parametrize("seed", variants(range(1), long=range(4)))
def test_where_all_trainers_hang_they_go_on_together(seed: int) -> None:
    world, hosts = fast(seed)
    for host in hosts:
        host.hang(15.0)
    world.run(lambda: not any(h.hangs for h in hosts))
    go_on(world)


@pytest.mark.parametrize("seed", variants(range(1), long=range(4)))
def test_where_all_scripts_were_away_nobody_waits_for_the_last_one(seed: int) -> None:
    world, hosts = fast(seed)
    world.run(lambda: all(node_of(h).cycle.state is CycleState.APPLYING for h in hosts))
    for host, seconds in zip(hosts, (3.0, 1000.0, 3.0), strict=True):
        host.hang(seconds, promised=True)
    world.run(lambda: hosts[0].hangs is hosts[2].hangs is False)
    begun = world.now
    ahead(hosts[0], world, 20)
    assert world.now - begun < 4 * limits.TRAINER_LEAST_SECONDS


def test_who_was_away_after_it_had_contributed_still_takes_the_work_of_others() -> None:
    world, hosts = fast(0, size=2)
    world.run(lambda: all(node_of(h).cycle.state is CycleState.COMPUTING for h in hosts))
    hosts[1].hang(1000.0)
    world.run(lambda: node_of(hosts[0]).cycle.state is CycleState.REDUCING)
    hosts[0].handle(AwayWanted(True))
    hosts[0].handle(AwayWanted(False))
    assert node_of(hosts[0]).debt.turn == 1  # what it computes from now on lacks what it had done
    begun = world.now
    ahead(hosts[0], world, 1)
    assert world.now - begun < 2 * limits.TRAINER_FIRST_SECONDS
    assert not hosts[1].hangs or node_of(hosts[1]).debt.is_behind


@pytest.mark.parametrize("seed", variants(range(1), long=range(4)))
def test_a_hung_trainers_node_leaves_and_goes_without_waiting_for_ever(seed: int) -> None:
    world, hosts = fast(seed)
    hosts[1].hang(1000.0)
    world.run(lambda: node_of(hosts[1]).debt.is_behind)
    ahead(hosts[0], world, 3)
    begun = world.now
    hosts[1].handle(LeaveWanted())
    world.run(lambda: hosts[1].gone == "left")
    assert world.now - begun < 2 * limits.LEAVER_CATCHES_UP_SECONDS
    go_on(world)


@pytest.mark.parametrize("seed", variants(range(2), long=range(4)))
def test_a_trainer_that_hangs_for_long_is_let_go(seed: int) -> None:
    world, hosts = fast(seed)
    hosts[seed % 3].hang(1000.0)
    world.run(lambda: hosts[seed % 3].gone == "stalled")
    go_on(world)


@pytest.mark.parametrize("seed", variants(range(1), long=range(4)))
def test_a_late_trainer_ends_with_the_state_of_the_others(seed: int) -> None:
    world, hosts = cluster(seed, steps=40)
    world.run(lambda: all(h.iteration > 30 for h in hosts))
    hosts[1].hang(12.0)
    world.run(lambda: all(h.gone == "steps" for h in hosts))
    assert hosts[1].iteration == 40
    assert hosts[1].state == hosts[0].state
    assert not node_of(hosts[1]).debt.is_stale


def test_a_node_whose_trainer_is_behind_offers_its_state_to_nobody() -> None:
    world, hosts = fast(1, size=2)
    hosts[1].hang(25.0)
    world.run(lambda: node_of(hosts[1]).debt.is_stale)
    joiner = world.join(2, hosts[0])
    world.run(lambda: node_of(joiner).context.is_member)
    assert not hosts[1].serves
    go_on(world)


def test_work_of_a_fence_goes_back_too() -> None:
    world, hosts = fast(2)
    hosts[1].hang(25.0)
    world.run(lambda: node_of(hosts[1]).debt.is_behind)
    world.kill(hosts[2])
    world.run(lambda: len(policy_of(hosts[0]).view.nodes) == 2)
    go_on(world)


@pytest.mark.parametrize("moment", range(14, 19))
def test_sums_that_lack_a_late_trainers_work_are_not_kept_over_a_fence(moment: int) -> None:
    world, hosts = fast(0)
    hosts[1].hang(3.0, promised=True)  # it comes back while the fence is decided, or after that
    world.before(moment, lambda: world.kill(hosts[2]))
    world.run(lambda: hosts[2].gone == "killed")
    go_on(world)


def test_nobody_is_told_of_a_wish_when_all_is_over() -> None:
    world, hosts = fast(0, size=2)
    node = node_of(hosts[0])
    node.cycle.leave("left", "")
    assert node.cycle.state is CycleState.OVER
    found = node.handle(world.now, AwayWanted(True))
    assert [type(e) for e in found] == [Depart]
    assert node.handle(world.now + 1e3, Tick()) == []


def test_leaving_twice_is_leaving_once() -> None:
    world, hosts = fast(0)
    hosts[0].hang(1000.0)
    hosts[2].hang(1000.0)
    begun = world.now
    hosts[1].handle(LeaveWanted())
    world.later(limits.LEAVE_SECONDS / 2, lambda: hosts[1].handle(LeaveWanted()))
    world.run(lambda: hosts[1].gone == "left")
    assert world.now - begun < 1.5 * limits.LEAVE_SECONDS


@pytest.mark.parametrize("seed", variants([5], long=[0]))
def test_nobody_waits_for_ever_for_a_joiner_whose_trainer_hangs_in_its_first_updates(
    seed: int,
) -> None:
    world, hosts = fast(seed, size=2)
    joiner = world.join(2, hosts[0])
    pulled = joiner.iteration
    world.run(lambda: node_of(joiner).joining is not None and joiner.iteration > pulled)
    world.run(lambda: joiner.iteration > pulled + seed % 3)
    joiner.hang(1000.0)
    begun = world.now
    ahead(hosts[0], world, 200)
    assert world.now - begun < 2 * limits.TRAINER_FIRST_SECONDS
    world.run(lambda: joiner.gone == "stalled")
    go_on(world)


def test_who_is_away_when_its_state_is_found_to_differ_goes_all_the_same() -> None:
    bench = late()
    turn = bench.debt.turn
    bench.debt.diverge()
    assert bench.is_behind()
    assert bench.debt.is_stale
    assert bench.debt.turn == turn + 1
    assert bench.context.departs == "diverged"
