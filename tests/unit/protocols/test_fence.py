"""The scheduler of a fence: reports in any order, late, twice or never; quorums, forks, waiting.

Scheduler and members exchange messages by plain lists here.
`test_every_cell_of_the_table_is_taken` lets anything happen in any order and counts the moves.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from protocols import limits
from protocols.cluster.policy import Electorate, Policy
from protocols.cluster.view import is_quorum, make_view, parts
from protocols.scheduler import fence
from protocols.scheduler.fence import FENCE_TABLE, FenceLeader, FenceState, Lost
from protocols.table import StateTable
from protocols.wire.messages import Commit, Fence, Letter, Prepare, Restart

from .records import node, star_policy, view_of
from .reports import BATCH, CHUNKS, EPOCH, PLANNER, STEPS, report_of

NOTHING = Lost()
AT = (5, 0)  # the iteration and the attempt that are running
ONE, TWO, THREE, FOUR, FIVE = (node(k) for k in range(1, 6))


# --- the scheduler's part -------------------------------------------------------------------------


class Bench:
    """A scheduler and the messages that it sends; the test plays the members."""

    def __init__(
        self,
        size: int,
        lost: Lost = NOTHING,
        node_id: bytes = ONE,
        links: list[tuple[int, int]] | None = None,
        epoch: tuple[int, int] = EPOCH,
    ) -> None:
        self.policy = star_policy(size)
        if links is not None:
            view = view_of(size, links)
            plan = PLANNER.plan(view, BATCH, ())
            self.policy = replace(self.policy, view=view, parents=plan.parents, shares=plan.shares)
        self.now = 0.0
        total = sum(self.policy.shares)
        make = (node_id, epoch, self.policy, (), lost, CHUNKS, total, STEPS, PLANNER, self.now)
        self.leader = FenceLeader(*make, at=AT)
        self.said: list[Letter] = []

    def stands(self, state: FenceState) -> bool:
        return self.leader.state is state

    def hear(self, mail: list[Letter]) -> list[Letter]:
        self.said += mail
        return mail

    def report(self, *names: bytes, **what: object) -> list[Letter]:
        """Let these members report; return what the last one's report leads to."""
        mail: list[Letter] = []
        for name in names:
            links = self.policy.view.neighbours(name)
            told = replace(report_of(self.policy, links=links), **what)  # type: ignore[arg-type]
            mail = self.hear(self.leader.report(self.now, name, told))
        return mail

    def prepared(self, *names: bytes) -> list[Letter]:
        mail: list[Letter] = []
        for name in names:
            mail = self.hear(self.leader.prepared(self.now, name))
        return mail

    def committed(self, *names: bytes) -> None:
        for name in names:
            self.leader.committed(name)

    def wait(self, seconds: float) -> list[Letter]:
        self.now += seconds
        return self.hear(self.leader.tick(self.now))

    @property
    def restart(self) -> Restart:
        assert self.leader.restart is not None
        return self.leader.restart


def to(mail: list[Letter], kind: type) -> list[bytes]:
    """Return the destinations of messages of this kind; there must be no other messages."""
    assert all(isinstance(message, kind) for _, message in mail)
    return [name for name, _ in mail]


def test_a_fence_from_its_beginning_to_its_end() -> None:
    bench = Bench(3, Lost(dead=(THREE,)))
    assert bench.wait(0.0) == [(n, Fence(*EPOCH)) for n in (ONE, TWO, THREE)]
    assert bench.report(ONE) == []
    assert bench.stands(FenceState.REPORTING)
    mail = bench.report(TWO)
    assert bench.stands(FenceState.PREPARING)
    assert mail == [(n, Prepare(*EPOCH, bench.restart)) for n in (ONE, TWO)]
    assert bench.prepared(ONE) == []
    assert bench.stands(FenceState.PREPARING)
    mail = bench.prepared(TWO)
    assert mail == [(n, Commit(*EPOCH, bench.restart)) for n in (ONE, TWO, THREE)]
    assert bench.stands(FenceState.COMMITTING)
    bench.committed(TWO)
    bench.committed(ONE)
    assert bench.stands(FenceState.DONE)
    assert bench.leader.deadline is None
    assert bench.wait(9.0) == []
    assert not bench.leader.forks
    assert bench.restart.policy.view.nodes == (ONE, TWO)


def test_nobody_is_asked_twice_who_has_answered_and_all_others_are_asked_again() -> None:
    again = limits.FENCE_REPEAT_SECONDS
    bench = Bench(4)
    assert to(bench.wait(0.0), Fence) == [ONE, TWO, THREE, FOUR]
    assert bench.wait(again / 2) == []
    bench.report(TWO, ONE)
    assert to(bench.wait(again), Fence) == [THREE, FOUR]
    bench.report(THREE, FOUR)
    bench.prepared(FOUR, FOUR, FOUR, THREE)
    assert bench.stands(FenceState.PREPARING)  # two of four, without the tie-break
    assert to(bench.wait(again), Prepare) == [ONE, TWO]
    bench.prepared(TWO)
    bench.committed(TWO)
    assert to(bench.wait(again), Commit) == [ONE, THREE, FOUR]
    assert bench.wait(0.0) == []
    assert bench.leader.deadline == bench.now + again


def test_those_who_are_out_are_told_once() -> None:
    bench = Bench(3, Lost(dead=(THREE,)))
    bench.report(ONE, TWO)
    assert to(bench.prepared(ONE, TWO), Commit) == [ONE, TWO, THREE]
    assert to(bench.wait(1.0), Commit) == [ONE, TWO]


def test_reports_may_come_in_any_order_twice_and_too_late() -> None:
    bench = Bench(3)
    bench.report(THREE, have=b"\x01")
    bench.report(THREE, have=b"\x03")  # the newest report of a member counts
    bench.report(TWO)
    bench.report(ONE)
    decision = bench.restart
    assert decision.have == (b"", b"", b"\x02")
    assert bench.report(THREE, have=b"\x07") == []
    assert bench.leader.lose(bench.now, Lost(dead=(TWO,))) == []
    assert bench.restart == decision
    bench.prepared(*decision.policy.view.nodes)
    assert bench.prepared(ONE) == []
    assert bench.report(ONE) == []
    assert bench.restart == decision


def test_answers_before_there_is_anything_to_answer_mean_nothing() -> None:
    bench = Bench(2)
    assert bench.prepared(ONE, TWO) == []
    bench.committed(ONE, TWO)
    assert bench.stands(FenceState.REPORTING)
    bench.report(ONE, TWO)
    bench.committed(ONE, TWO)
    assert bench.stands(FenceState.PREPARING)


def test_answers_of_strangers_count_for_nobody() -> None:
    bench = Bench(3)
    bench.report(node(9), ONE, TWO)
    assert bench.stands(FenceState.REPORTING)
    bench.report(THREE)
    assert bench.prepared(node(8), node(9), ONE) == []
    bench.prepared(TWO)
    bench.committed(ONE, TWO, node(9))
    assert bench.stands(FenceState.COMMITTING)


each_patience = pytest.mark.parametrize(
    ("number", "patience"),
    [(1, limits.FENCE_REPORT_SECONDS), (2, limits.FENCE_AGAIN_SECONDS)],
)


@each_patience
def test_a_member_that_does_not_report_is_given_up_after_a_while(
    number: int, patience: float
) -> None:
    bench = Bench(3, epoch=(3, number))
    bench.report(ONE, TWO)
    assert bench.stands(FenceState.REPORTING)
    bench.wait(patience / 2)
    assert bench.stands(FenceState.REPORTING)
    mail = bench.wait(patience / 2)
    assert to(mail, Prepare) == [ONE, TWO]


def test_a_member_that_is_lost_after_its_report_does_not_stay() -> None:
    bench = Bench(4)
    bench.report(ONE, TWO, FOUR)
    bench.leader.lose(bench.now, Lost(dead=(FOUR,)))
    assert bench.stands(FenceState.REPORTING)
    bench.report(THREE)
    assert bench.restart.policy.view.nodes == (ONE, TWO, THREE)


def test_a_loss_ends_the_wait_for_its_report() -> None:
    bench = Bench(3)
    bench.report(ONE, TWO)
    bench.leader.lose(bench.now, Lost(dead=(THREE,)))
    assert bench.stands(FenceState.PREPARING)
    assert bench.restart.policy.view.nodes == (ONE, TWO)


def test_who_is_only_silent_is_waited_for_a_moment() -> None:
    bench = Bench(3, Lost(nodes=(THREE,)))
    bench.report(ONE, TWO)
    assert bench.stands(FenceState.REPORTING)
    bench.wait(limits.FENCE_SILENT_SECONDS)
    assert bench.restart.policy.view.nodes == (ONE, TWO)
    bench = Bench(3, Lost(nodes=(THREE,)))
    bench.report(ONE, TWO, THREE)
    assert bench.restart.policy.view.nodes == (ONE, TWO, THREE)


def test_who_falls_silent_after_its_report_has_to_report_again() -> None:
    bench = Bench(4)
    bench.report(ONE, TWO, FOUR)
    bench.leader.lose(bench.now, Lost(nodes=(FOUR,)))
    bench.report(THREE)
    assert bench.stands(FenceState.REPORTING)
    bench.leader.lose(bench.now, Lost(nodes=(FOUR,)))
    bench.report(FOUR)
    assert bench.restart.policy.view.nodes == (ONE, TWO, THREE, FOUR)


def test_nothing_is_decided_without_the_schedulers_own_report() -> None:
    bench = Bench(3, Lost(nodes=(ONE,)))  # reports that the scheduler itself is lost are ignored
    bench.report(TWO, THREE)
    assert bench.stands(FenceState.REPORTING)
    bench.wait(limits.PARTITION_WAIT_SECONDS)
    assert bench.stands(FenceState.WAITING)
    bench.leader.lose(bench.now, Lost())
    bench.report(ONE)
    assert bench.stands(FenceState.PREPARING)


def test_reporters_that_no_open_link_connects_with_the_scheduler_do_not_stay() -> None:
    bench = Bench(5, links=[(1, 2), (2, 3), (3, 4), (4, 5)])
    bench.report(ONE, TWO, THREE)
    bench.report(FOUR, links=(FIVE,))
    bench.report(FIVE)
    assert bench.restart.policy.view.nodes == (ONE, TWO, THREE)
    assert parts(bench.restart.policy.view) == [(ONE, TWO, THREE)]


# --- without a quorum -----------------------------------------------------------------------------


def test_a_half_that_decides_by_the_tie_break_waits_for_who_may_come_back() -> None:
    bench = Bench(2, Lost(nodes=(TWO,)))
    bench.report(ONE)
    bench.wait(limits.HALF_WAIT_SECONDS - 0.5)
    assert bench.stands(FenceState.WAITING)
    bench.leader.lose(bench.now, Lost())
    assert to(bench.report(TWO), Prepare) == [ONE, TWO]


def test_who_is_back_late_in_the_wait_has_time_to_report() -> None:
    bench = Bench(2, Lost(nodes=(TWO,)))
    bench.report(ONE)
    bench.wait(limits.HALF_WAIT_SECONDS - 0.5)
    mail = bench.leader.lose(bench.now, Lost())
    assert not to(mail, Prepare)
    assert to(bench.wait(limits.FENCE_REPORT_SECONDS / 2), Fence) == [TWO]
    assert bench.stands(FenceState.WAITING)
    assert to(bench.report(TWO), Prepare) == [ONE, TWO]


def test_a_half_with_the_tie_break_does_not_wait_for_the_dead() -> None:
    bench = Bench(4, Lost(nodes=(THREE,), dead=(FOUR,)))
    bench.report(ONE)
    bench.report(TWO)
    assert to(bench.wait(limits.FENCE_SILENT_SECONDS), Prepare) == [ONE, TWO]


def test_of_two_the_one_with_the_smaller_id_goes_on_in_their_lineage() -> None:
    bench = Bench(2, Lost(nodes=(TWO,)))
    bench.report(ONE)
    mail = bench.wait(limits.HALF_WAIT_SECONDS)
    assert to(mail, Prepare) == [ONE]
    assert not bench.leader.forks
    assert to(bench.prepared(ONE), Commit) == [ONE, TWO]
    bench.committed(ONE)
    assert bench.stands(FenceState.DONE)
    assert bench.restart.policy.view.lineage == bench.policy.view.lineage


@pytest.mark.parametrize("dead", [True, False])
def test_the_other_goes_on_in_a_lineage_of_its_own_at_once_only_if_the_first_is_dead(
    dead: bool,
) -> None:
    bench = Bench(2, Lost(dead=(ONE,)) if dead else Lost(nodes=(ONE,)), TWO)
    bench.report(TWO)
    if not dead:
        bench.wait(limits.PARTITION_WAIT_SECONDS - 0.1)
        assert bench.stands(FenceState.WAITING)
        bench.wait(0.1)
    assert bench.stands(FenceState.PREPARING)
    assert bench.leader.forks
    assert bench.restart.policy.view.nodes == (TWO,)
    assert bench.restart.policy.view.lineage != bench.policy.view.lineage


def test_in_a_fork_everybody_must_have_stored_the_decision() -> None:
    bench = Bench(6, Lost(dead=(ONE, FIVE, node(6))), TWO)
    bench.report(TWO, THREE, FOUR)
    assert bench.leader.forks
    bench.prepared(TWO, THREE)
    assert bench.stands(FenceState.PREPARING)
    bench.prepared(FOUR)
    assert bench.stands(FenceState.COMMITTING)


def test_a_minority_waits_for_the_others_and_goes_on_with_them_once_they_are_back() -> None:
    bench = Bench(5, Lost(nodes=(THREE, FOUR, FIVE)))
    bench.report(ONE, TWO)
    assert to(bench.wait(1.0), Fence) == [THREE, FOUR, FIVE]
    assert bench.stands(FenceState.WAITING)
    bench.leader.lose(bench.now, Lost(nodes=(FOUR, FIVE)))
    assert bench.stands(FenceState.WAITING)
    bench.report(THREE)
    assert bench.stands(FenceState.PREPARING)
    assert not bench.leader.forks
    assert bench.restart.policy.view.nodes == (ONE, TWO, THREE)


def test_a_minority_goes_on_once_the_rest_is_proven_dead() -> None:
    bench = Bench(3, Lost(nodes=(TWO,), dead=(THREE,)))
    bench.report(ONE)
    bench.wait(limits.FENCE_SILENT_SECONDS)
    assert bench.stands(FenceState.WAITING)
    bench.leader.lose(bench.now, Lost(dead=(TWO, THREE)))
    assert bench.stands(FenceState.PREPARING)
    assert bench.leader.forks


def test_a_decision_needs_a_quorum_of_the_old_view_and_of_the_new_one() -> None:
    bench = Bench(5, Lost(dead=(FIVE,)))
    bench.report(ONE, TWO, THREE, FOUR)
    bench.prepared(ONE, TWO)
    assert bench.stands(FenceState.PREPARING)  # half of the new view, less of the old one
    bench.prepared(THREE)
    assert bench.stands(FenceState.COMMITTING)


# --- a report that knows more ---------------------------------------------------------------------


def test_the_newest_policy_that_a_report_shows_is_the_one_that_is_replaced() -> None:
    bench = Bench(3)
    view = bench.policy.view
    smaller = make_view(view.lineage, view.number + 1, list(view.members[:2]), list(view.edges))
    plan = PLANNER.plan(smaller, BATCH, ())
    newer = Policy(2, 4, smaller, plan.parents, plan.shares, (), "")
    bench.report(ONE)
    bench.report(TWO, policy=newer)
    assert bench.stands(FenceState.PREPARING)  # node 3 is out, in the newer policy
    assert bench.restart.policy.view.number == view.number + 2
    assert bench.restart.policy.version == 5


# --- a policy that may be in force elsewhere ------------------------------------------------------


def stored(*nodes: bytes) -> dict[str, object]:
    """Return the fields of a report that has stored a newer policy with these members."""
    return {"stored": (Electorate(1, 9, nodes),)}


def test_a_stored_policy_needs_its_quorum_too_unless_nobody_can_act_under_it() -> None:
    bench = Bench(5, Lost(nodes=(FOUR, FIVE)))
    bench.report(ONE, TWO)
    bench.report(THREE, **stored(THREE, FOUR, FIVE))
    bench.wait(limits.FENCE_REPORT_SECONDS)
    assert bench.stands(FenceState.WAITING)  # 4 and 5 may go on under it
    bench.leader.lose(bench.now, Lost(nodes=(FOUR,), dead=(FIVE,)))
    assert bench.stands(FenceState.WAITING)
    bench.leader.lose(bench.now, Lost(dead=(FOUR, FIVE)))
    assert bench.stands(FenceState.PREPARING)
    assert bench.leader.forks, "what looks dead may go on under what it stored"


def test_a_stored_policy_with_a_quorum_here_is_no_hindrance() -> None:
    bench = Bench(5, Lost(nodes=(FIVE,)))
    bench.report(ONE, TWO)
    bench.report(THREE, FOUR, **stored(THREE, FOUR, FIVE))
    bench.wait(limits.FENCE_SILENT_SECONDS)
    bench.prepared(ONE, TWO, THREE)
    assert bench.stands(FenceState.PREPARING), "a quorum of the base, not of what is stored"
    bench.prepared(FOUR)
    assert bench.stands(FenceState.COMMITTING)


def test_without_its_quorum_the_rest_goes_on_in_a_lineage_of_its_own() -> None:
    bench = Bench(5, Lost(nodes=(FOUR, FIVE)))
    bench.report(ONE, TWO)
    bench.report(THREE, **stored(THREE, FOUR, FIVE))
    bench.wait(limits.PARTITION_WAIT_SECONDS)
    assert bench.leader.forks


def test_who_was_to_enter_says_that_it_is_no_member() -> None:
    bench = Bench(2)
    joiners = (THREE, FOUR, FIVE)
    bench.report(ONE, **stored(ONE, TWO, *joiners))
    assert to(bench.wait(1.0), Fence) == [TWO, *joiners]
    bench.report(TWO)
    assert bench.stands(FenceState.REPORTING)
    for joiner in joiners:
        bench.hear(bench.leader.outside(bench.now, joiner))
    assert bench.stands(FenceState.PREPARING)
    assert not bench.leader.forks
    assert bench.leader.outside(bench.now, THREE) == []


@each_patience
def test_a_decision_that_nobody_stores_is_overdue_after_a_while(
    number: int, patience: float
) -> None:
    bench = Bench(3, epoch=(3, number))
    bench.report(ONE, TWO, THREE)
    assert bench.stands(FenceState.PREPARING)
    assert not bench.leader.is_overdue(bench.now + patience - 0.1)
    assert bench.leader.is_overdue(bench.now + patience)
    bench.prepared(ONE, TWO)
    assert not bench.leader.is_overdue(bench.now + patience)


def test_who_has_waited_before_the_election_does_not_wait_twice() -> None:
    bench = Bench(2, Lost(nodes=(ONE,)), TWO)
    total = sum(bench.policy.shares)
    job = (CHUNKS, total, STEPS, PLANNER)
    make = (TWO, EPOCH, bench.policy, (), Lost(nodes=(ONE,)), *job, 0.0)
    bench.leader = FenceLeader(*make, at=AT, waited=True)
    bench.report(TWO)
    bench.wait(limits.FENCE_REPORT_SECONDS - 0.5)
    assert bench.stands(FenceState.WAITING)
    bench.wait(0.5)
    assert bench.stands(FenceState.PREPARING)
    assert bench.leader.forks


def test_one_that_pauses_waits_for_ever() -> None:
    policy = star_policy(3)
    lost = Lost(nodes=(TWO, THREE))
    job = (CHUNKS, sum(policy.shares), STEPS, PLANNER)
    leader = FenceLeader(ONE, EPOCH, policy, (), lost, *job, 0.0, at=AT, pauses=True)
    leader.report(0.0, ONE, report_of(policy))
    leader.tick(1e6)
    assert leader.state is FenceState.WAITING


def test_one_that_pauses_ends_once_all_in_reach_have_the_last_update() -> None:
    policy = star_policy(3)
    lost = Lost(nodes=(THREE,))
    for one, ends in ((STEPS, True), (STEPS - 1, False)):
        job = (CHUNKS, sum(policy.shares), STEPS, PLANNER)
        at = (STEPS, 0)
        leader = FenceLeader(ONE, EPOCH, policy, (), lost, *job, 0.0, at=at, pauses=True)
        alone = Lost(nodes=(TWO, THREE))
        leader.lose(0.0, alone)
        leader.report(0.0, ONE, report_of(policy, iteration=one))
        leader.tick(limits.PAUSED_END_SECONDS - 0.1)
        assert leader.state is FenceState.WAITING
        leader.tick(limits.PAUSED_END_SECONDS + 0.1)
        assert (leader.state is FenceState.WAITING) is not ends


# --- the table ------------------------------------------------------------------------------------


class Counted(StateTable[FenceState]):
    """The table, with the moves that were taken."""

    def __init__(self) -> None:
        super().__init__(FENCE_TABLE.name, *FENCE_TABLE.rows)
        self.taken: set[tuple[FenceState, str, FenceState]] = set()

    def step(self, state: FenceState, event: str, then: FenceState) -> FenceState:
        self.taken.add((state, event, then))
        return super().step(state, event, then)


def test_every_cell_of_the_table_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted()
    monkeypatch.setattr(fence, "FENCE_TABLE", counted)
    for seed in range(400):
        walk(random.Random(seed))
    rows = FENCE_TABLE.rows
    assert counted.taken == {(r.state, r.event, then) for r in rows for then in r.then}


def walk(chance: random.Random) -> None:
    """Let anything happen in any order. A decision must not change, and must not be committed
    before enough members have stored it."""
    size = chance.randint(1, 5)
    bench = Bench(size, some_lost(chance, size), node(chance.randint(1, size)))
    names = bench.policy.view.nodes
    stored: set[bytes] = set()
    for _ in range(30):
        before = bench.leader.restart
        name = chance.choice(names)
        match chance.choice(["report", "report", "prepared", "committed", "lose", "wait"]):
            case "report":
                mail = bench.report(name)
            case "prepared":
                stored |= {name} if bench.stands(FenceState.PREPARING) else set()
                mail = bench.prepared(name)
            case "committed":
                bench.committed(name)
                mail = []
            case "lose":
                mail = bench.hear(bench.leader.lose(bench.now, some_lost(chance, size)))
            case _:
                mail = bench.wait(chance.choice([0.1, 0.5, 2.0, 5.0]))
        assert before in (None, bench.leader.restart)
        if any(isinstance(message, Commit) for _, message in mail):
            here, after = dict.fromkeys(sorted(stored)), bench.restart.policy.view
            enough = is_quorum(bench.policy.view.nodes, here) and is_quorum(after.nodes, here)
            assert all(n in stored for n in after.nodes) if bench.leader.forks else enough


def some_lost(chance: random.Random, size: int) -> Lost:
    """Return any loss."""
    fate = [chance.choice(["here", "here", "silent", "dead"]) for _ in range(size)]
    silent, dead = (
        tuple(node(k + 1) for k in range(size) if fate[k] == f) for f in ("silent", "dead")
    )
    return Lost(silent, dead)
