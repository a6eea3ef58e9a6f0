"""Which reports to a fence are believed: impossible ones never, others unless reports
contradict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocols import limits
from protocols.cluster.policy import Electorate, Policy
from protocols.cluster.view import make_view
from protocols.scheduler import testimony
from protocols.scheduler.fence import FenceLeader, FenceState, Lost

from .records import node, star_policy
from .reports import CHUNKS, EPOCH, PLANNER, STEPS, report_of

ONE, TWO, THREE, FOUR, FIVE = (node(k) for k in range(1, 6))
OWN = star_policy(3)
TOTAL = sum(OWN.shares)
AT = (5, 0)


def fault(**what: object) -> str:
    """Return what is wrong with a report with these fields."""
    policy = what.pop("policy", OWN)
    assert isinstance(policy, Policy)
    report = report_of(policy, **what)  # type: ignore[arg-type]  # names of its own arguments
    return testimony.fault(report, OWN, *AT, CHUNKS, TOTAL, 1)


def later(policy: Policy, count: int = 2) -> Policy:
    """Return the policy after `policy`, with only its first members."""
    view = policy.view
    members = list(view.members[:count])
    smaller = make_view(view.lineage, view.number + 1, members, list(view.edges))
    plan = PLANNER.plan(smaller, TOTAL, ())
    return Policy(2, 4, smaller, plan.parents, plan.shares, (), "")


def test_what_members_can_be_at_is_believed() -> None:
    for iteration in (4, 5, 6):
        assert fault(iteration=iteration) == ""
    assert fault(attempt=limits.MAX_ATTEMPT_STEP, have=(CHUNKS - 1,), working=(TOTAL - 1,)) == ""
    assert fault(policy=later(OWN), newest=1 + limits.MAX_VERSION_STEP) == ""


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ({"iteration": 3}, "iteration"),
        ({"iteration": 7}, "iteration"),
        ({"iteration": limits.MAX_ITERATION}, "iteration"),
        ({"attempt": limits.MAX_ATTEMPT_STEP + 1}, "attempt"),
        ({"have": (CHUNKS,)}, "chunks"),
        ({"working": (TOTAL,)}, "micro-batches"),
        ({"newest": 2 + limits.MAX_VERSION_STEP}, "cannot have come"),
        ({"policy": replace(OWN, version=2 + limits.MAX_VERSION_STEP)}, "cannot have come"),
        ({"policy": replace(OWN, shares=(2, 2, 9))}, "another job"),
        ({"policy": replace(OWN, reason="another")}, "same version"),
    ],
)
def test_what_cannot_be_is_not_believed(what: dict[str, object], said: str) -> None:
    assert said in fault(**what)


def leader(size: int, known: tuple[Electorate, ...] = ()) -> tuple[FenceLeader, Policy]:
    """Return a fence of member 1 in a cluster of `size`, and the policy in force."""
    policy = star_policy(size)
    total = sum(policy.shares)
    made = FenceLeader(
        ONE, EPOCH, policy, (), Lost(), CHUNKS, total, STEPS, PLANNER, 0.0, at=AT, known=known
    )
    return made, policy


def stands(fence: FenceLeader, state: FenceState) -> bool:
    """Whether the fence is in `state` now."""
    return fence.state is state


def test_one_that_reports_what_cannot_be_is_waited_for_no_more_and_left_out() -> None:
    fence, policy = leader(3)
    fence.report(0.0, ONE, report_of(policy))
    fence.report(0.0, TWO, report_of(policy, iteration=99))
    assert stands(fence, FenceState.REPORTING)
    fence.report(0.0, THREE, report_of(policy))
    assert stands(fence, FenceState.PREPARING)
    assert fence.restart is not None
    assert fence.restart.policy.view.nodes == (ONE, THREE)
    assert "iteration" in fence.disbelieved[TWO]


def test_who_reports_rightly_at_last_is_believed() -> None:
    fence, policy = leader(3)
    fence.report(0.0, TWO, report_of(policy, iteration=99))
    for name in (ONE, TWO, THREE):
        fence.report(0.0, name, report_of(policy))
    assert fence.restart is not None
    assert fence.restart.policy.view.nodes == (ONE, TWO, THREE)
    assert not fence.disbelieved


def test_a_policy_in_force_that_the_others_exclude_is_not_believed() -> None:
    fence, policy = leader(5)
    own = report_of(policy)
    bogus = replace(later(star_policy(5), 2), shares=(5, 5))
    for name in (ONE, THREE, FOUR):
        fence.report(0.0, name, own)
    fence.report(0.0, FIVE, report_of(bogus))
    fence.report(0.0, TWO, own)
    assert fence.restart is not None
    assert fence.restart.policy.view.nodes == (ONE, TWO, THREE, FOUR)
    assert "in force" in fence.disbelieved[FIVE]


def test_a_policy_in_force_that_is_stored_here_is_believed_in_any_lineage() -> None:
    base = star_policy(5)
    view = base.view
    other = make_view(b"O" * 16, 2, list(view.members[:3]), list(view.edges))
    plan = PLANNER.plan(other, 10, ())
    forked = Policy(2, 4, other, plan.parents, plan.shares, (), "")
    fence, policy = leader(5, (policy_key := base.electorate, forked.electorate))
    assert policy.electorate == policy_key
    for name in (ONE, TWO, FOUR, FIVE):
        fence.report(0.0, name, report_of(policy))
    fence.report(0.0, THREE, report_of(forked))
    assert fence.restart is not None
    assert fence.restart.policy.view.nodes == (ONE, TWO, THREE)
    assert fence.restart.policy.version == 5


def test_what_one_member_says_to_have_stored_binds_nobody() -> None:
    strangers = Electorate(7, 9, (node(70), node(80), node(90)))
    fence, policy = leader(3)
    fence.report(0.0, TWO, report_of(policy, stored=(strangers,)))
    assert stands(fence, FenceState.REPORTING)
    fence.report(0.0, ONE, report_of(policy))
    fence.report(0.0, THREE, report_of(policy))
    assert stands(fence, FenceState.PREPARING)
    assert not fence.forks


def test_what_a_quorum_may_have_stored_counts_and_what_follows_from_it() -> None:
    next_one = Electorate(1, 2, (ONE, TWO, FOUR))
    after = Electorate(1, 3, (FOUR,))
    reports = {
        ONE: report_of(OWN, stored=(next_one,)),
        TWO: report_of(OWN, stored=(next_one,)),
        THREE: report_of(OWN, stored=(after,)),
    }
    assert testimony.may_be_in_force(OWN, reports, ()) == (next_one,)
    assert testimony.may_be_in_force(OWN, reports, (after,)) == (next_one, after)
    del reports[TWO]  # it is silent, so it may have stored any policy
    assert testimony.may_be_in_force(OWN, reports, ()) == (next_one, after)


def test_who_claims_what_is_anothers_is_not_believed() -> None:
    fence, policy = leader(3)
    fence.report(0.0, ONE, report_of(policy, working=(0, 1)))
    fence.report(0.0, TWO, report_of(policy, working=(2, 3)))
    fence.report(0.0, THREE, report_of(policy, working=(1, 4, 5)))
    assert "another member works on" in fence.disbelieved[THREE]
    assert fence.restart is not None
    assert fence.restart.policy.view.nodes == (ONE, TWO)


def test_claims_of_different_iterations_do_not_contradict() -> None:
    reports = {
        ONE: report_of(OWN, working=(0, 1)),
        TWO: report_of(OWN, iteration=6, working=(0, 1)),
        node(9): report_of(OWN, working=()),
    }
    assert testimony.contradicting(OWN, reports) == []
    reports[node(9)] = report_of(OWN, working=(1,))
    assert testimony.contradicting(OWN, reports) == [node(9)]
