"""Standby: who costs the others more than it gives goes, or is not let in, until its links are
better."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from edgeagent.planner.standard import StandardPlanner
from protocols.cluster import standby
from protocols.cluster.policy import Pull
from protocols.cluster.stripes import Stripe
from protocols.network.measures import NOTHING_KNOWN, Measures
from protocols.scheduler.join import JoinState
from protocols.scheduler.join_cost import SMALL_GRADIENT_BYTES, JoinCost, Pace
from protocols.scheduler.joins import MOST_UNMEASURED
from protocols.scheduler.negotiator import Negotiator
from protocols.scheduler.planning import Informed
from protocols.wire import messages as m
from protocols.wire.messages import JoinAborted, JoinRequest
from tests.unit.protocols.clusters import cluster, go_on, node_of, policy_of
from tests.unit.protocols.records import member, node, star_policy

if TYPE_CHECKING:
    from protocols.cluster.view import View
    from protocols.member.node import Node
    from tests.simulation.world import Host, World

FAST, SLOW = 12_500_000, 250_000  # bytes/s
MICRO_BATCH_S = 0.01


def tell(hosts: list[Host], judge: Node, slow: int = FAST) -> None:
    """Tell `judge` what all members have measured; the links of the last one carry `slow`."""
    last = hosts[-1].me.node
    for host in hosts:
        at = host.me.node
        links = tuple(
            m.LinkRate(other.me.node, 1000, slow if last in (at, other.me.node) else FAST)
            for other in hosts
            if other is not host
        )
        said = m.Measured(links, round(MICRO_BATCH_S * 1e6), 50_000, 50_000)
        if at == judge.context.node:
            judge.monitor._said[at] = said
        else:
            judge.monitor.heard(at, said)


def steps_of(judge: Node, seconds: float) -> None:
    """Let the last steps of `judge` have taken so many seconds each."""
    for _ in range(8):
        judge.context.now += seconds
        judge.context.pace.applied(judge.context.now)


def judging(
    size: int = 4, *, stands_by: bool = True, stripes: int = 0
) -> tuple[World, list[Host], Node]:
    """Return a world, its members, and the node of the last one, whose steps take 8 s."""
    world, hosts = cluster(1, size, stripes=stripes)
    judge = node_of(hosts[-1])
    judge.context.config = replace(judge.context.config, stands_by=stands_by)
    judge.context.planner = Informed(StandardPlanner(1 << 20), lambda: judge.monitor.measures)
    steps_of(judge, 8.0)
    return world, hosts, judge


def looks(judge: Node, seconds: float) -> str:
    """Let `judge` look twice, so many seconds apart; return why it wants to leave then."""
    judge.standing.look(judge.context.now)
    judge.context.now += seconds
    judge.standing.look(judge.context.now)
    return judge.context.departs


def test_a_member_whose_links_slow_all_down_goes_after_a_while() -> None:
    _, hosts, judge = judging()
    tell(hosts, judge, SLOW)
    assert looks(judge, standby.PATIENCE_SECONDS / 2) == ""
    assert looks(judge, standby.PATIENCE_SECONDS) == "standby"
    assert "its fastest link carries 2 Mbit/s" in judge.context.standby
    judge.standing.look(judge.context.now + 100.0)
    assert judge.context.departs == "standby"


def test_a_member_that_is_fast_again_in_time_stays() -> None:
    _, hosts, judge = judging()
    tell(hosts, judge, SLOW)
    judge.standing.look(judge.context.now)
    judge.context.now += standby.PATIENCE_SECONDS
    tell(hosts, judge)
    judge.standing.look(judge.context.now)
    tell(hosts, judge, SLOW)
    assert looks(judge, standby.PATIENCE_SECONDS / 2) == ""


@pytest.mark.parametrize(
    ("size", "stands_by", "rate"), [(2, True, SLOW), (4, False, SLOW), (4, True, FAST)]
)
def test_who_stays(size: int, stands_by: bool, rate: int) -> None:
    _, hosts, judge = judging(size, stands_by=stands_by)
    tell(hosts, judge, rate)
    assert looks(judge, standby.PATIENCE_SECONDS) == ""


def test_nobody_goes_while_steps_are_short_or_not_known_or_links_are_not_measured() -> None:
    _, hosts, judge = judging()
    steps_of(judge, 0.05)
    tell(hosts, judge, SLOW)
    judge.standing.look(judge.context.now)
    assert judge.standing._slow_since is None, "the prediction is wrong: steps are short"
    _, hosts, judge = judging()
    judge.standing.look(judge.context.now)
    assert judge.standing._slow_since is None, "nothing is known of the links"
    tell(hosts, judge, SLOW)
    judge.context.pace = Pace()
    judge.standing.look(judge.context.now)
    assert judge.standing._slow_since is None, "no step was seen"


def test_a_device_goes_although_one_alone_would_be_the_fastest() -> None:
    """The links of the other two are slow as well, only less so. Two go on at least."""
    _, hosts, judge = judging(3)
    tell(hosts, judge, SLOW)
    one, two = hosts[0].me.node, hosts[1].me.node
    for ends in ((one, two), (two, one)):
        said = judge.monitor._said[ends[1]]
        links = tuple(replace(x, rate=2 * SLOW) if x.peer == ends[0] else x for x in said.links)
        judge.monitor.heard(ends[1], replace(said, links=links))
    context = judge.context
    times = judge.standing._times(policy_of(hosts[2]).view)
    view, micro_batches = policy_of(hosts[2]).view, context.config.micro_batches
    found = context.planner.costly(view, micro_batches, times, 8.0)
    assert found is not None
    assert found.left_out == (context.node,)
    assert looks(judge, standby.PATIENCE_SECONDS) != ""


def test_a_member_that_stands_by_is_let_go_and_the_others_train_on() -> None:
    world, hosts = cluster(0, 3)
    leaver = node_of(hosts[2])
    leaver.departure.stand_by(world.now, "slow links")
    assert leaver.cycle._hands_back
    world.run(lambda: hosts[2].gone is not None)
    assert "standby" in str(hosts[2].gone)
    world.run(lambda: len(policy_of(hosts[0]).view.nodes) == 2)
    go_on(world)


def test_who_is_not_let_go_goes_after_a_moment_all_the_same() -> None:
    world, hosts = cluster(0, 3)
    leaver = node_of(hosts[2])
    leaver.departure.stand_by(world.now, "slow links")
    assert not leaver.departure._is_overdue(world.now)
    assert leaver.departure._is_overdue(world.now + standby.GO_SECONDS)
    leaver.context.freeze.asked()
    assert not leaver.departure._is_overdue(world.now + 100.0), "a fence may need its report"
    leaver.context.freeze.decided()
    leaver.departure._lacks_parts = lambda: True
    assert not leaver.departure._is_overdue(world.now + 100.0), "it may keep the last copy of some"


def test_members_out_of_reach_are_no_quorum_without_this_one() -> None:
    _, hosts, judge = judging(4)
    tell(hosts, judge, SLOW)
    judge.standing._unheard = lambda: (min(h.me.node for h in hosts[:-1]),)
    assert looks(judge, standby.PATIENCE_SECONDS) == "standby"
    assert not judge.departure._is_overdue(judge.context.now + 1000.0)


def test_a_planner_that_would_leave_one_device_alone_is_not_followed() -> None:
    _, hosts, judge = judging(3)
    tell(hosts, judge, SLOW)
    assert looks(judge, standby.PATIENCE_SECONDS) == "standby"
    judge.departure.stay()
    others = (judge.context.node, hosts[0].me.node)
    found = standby.Costly(others, step_s=8.0, without_s=1.0)
    judge.context.planner.costly = lambda *_: found  # type: ignore[method-assign]  # as a plugin's
    assert looks(judge, standby.PATIENCE_SECONDS) == ""


def test_a_member_that_pauses_does_not_keep_a_slow_one_in() -> None:
    _, hosts, judge = judging(4)
    tell(hosts, judge, SLOW)
    paused = hosts[1].me.node
    said = judge.monitor._said[paused]
    judge.monitor.heard(paused, replace(said, micro_batch_us=0))
    assert paused not in judge.monitor.measures.speeds
    assert looks(judge, standby.PATIENCE_SECONDS) == "standby"


def test_who_is_not_needed_to_decide_goes_at_once_and_others_wait_for_consent() -> None:
    """Three of five have slow links: if all went without consent, nobody could decide any more."""
    for slow, waits in ((1, False), (3, True)):
        _, hosts, judge = judging(5)
        tell(hosts, judge, SLOW)
        fast = {host.me.node for host in hosts[: 5 - slow]}
        for host in hosts[:-1]:
            at = host.me.node
            said = judge.monitor._said[at]
            links = tuple(
                x
                if {at, x.peer} <= fast or judge.context.node in (at, x.peer)
                else replace(x, rate=SLOW + 1)
                for x in said.links
            )
            judge.monitor.heard(at, replace(said, links=links))
        assert looks(judge, standby.PATIENCE_SECONDS) == "standby"
        after = judge.context.now + standby.GO_SECONDS
        assert judge.departure._is_overdue(after) is not waits


def test_who_alone_keeps_a_part_of_the_state_waits_for_consent() -> None:
    world, hosts, judge = judging(5, stripes=8)
    me = policy_of(hosts[-1]).view.nodes.index(judge.context.node)
    world.run(lambda: any(s.owner == me for s in policy_of(hosts[-1]).stripes))
    steps_of(judge, 8.0)
    tell(hosts, judge, SLOW)
    assert looks(judge, standby.PATIENCE_SECONDS) == "standby"
    assert not judge.departure._is_overdue(judge.context.now + 1000.0)


def test_who_keeps_one_of_two_copies_waits_for_consent() -> None:
    """The other one may go at the same moment, or be let go by a policy under way (H96)."""
    _, hosts, judge = judging(5, stripes=1)
    tell(hosts, judge, SLOW)
    assert looks(judge, standby.PATIENCE_SECONDS) == "standby"
    context, after = judge.context, judge.context.now + standby.GO_SECONDS
    policy = context.policy
    assert policy is not None
    me = policy.view.nodes.index(context.node)
    first, second, third, _ = (bytes([k]) for k in range(5) if k != me)

    def goes(holders: bytes, then: bytes | None = None, learners: bytes = b"") -> bool:
        context.policy = replace(policy, stripes=(Stripe(holders, learners),))
        later = replace(policy, version=policy.version + 1, stripes=(Stripe(then or holders),))
        context.policies = {p.key: p for p in (context.policy, later)}
        return judge.departure._is_overdue(after)

    mine = bytes([me])
    assert not goes(mine)
    assert not goes(mine + first)
    assert goes(mine + first + second)
    assert goes(first), "it keeps nothing"
    assert not goes(first, learners=mine), "it may be named the only holder next"
    assert goes(first + second, learners=mine)
    assert not goes(first + second + mine, then=mine + third)
    assert goes(first + second + mine, then=first)


def test_a_member_whose_links_are_good_again_in_time_takes_its_wish_back() -> None:
    _, hosts, judge = judging()
    tell(hosts, judge, SLOW)
    assert looks(judge, standby.PATIENCE_SECONDS) == "standby"
    tell(hosts, judge)
    judge.standing.look(judge.context.now)
    assert judge.context.departs == ""
    assert not judge.cycle._hands_back
    assert judge.context.parts_for == "standby", "the scheduler may have planned without it"


def test_nobody_stands_by_where_too_few_others_are_left() -> None:
    for size, departs in ((1, ""), (2, ""), (3, "standby")):
        _, hosts = cluster(0, size)
        context = node_of(hosts[0]).context
        context.stands_by, context.standby = True, "slow links"
        assert context.departs == departs
        assert context.parting_words("left") == ""
        assert context.parting_words("standby") == "slow links"
    assert context.parts_for == "standby"
    context.stands_by, context.standby = False, ""
    assert context.parts_for == "left"


# --- newcomers ------------------------------------------------------------------------------------

ONE, TWO, JOINER = node(1), node(2), member(9, "tortoise")


class Foreseeing(StandardPlanner):
    """Predicts a step of 1 s without the newcomer, and of `with_s` with it."""

    def __init__(self, with_s: float | None) -> None:
        super().__init__()
        self.with_s = with_s

    def step_s(
        self, view: View, micro_batches: int, measures: Measures = NOTHING_KNOWN
    ) -> float | None:
        return self.with_s if JOINER.node in view.nodes else 1.0


@pytest.mark.parametrize(
    ("members", "stands_by", "with_s", "enters"),
    [
        (2, True, 5.0, False),
        (2, True, standby.ENTERS, True),
        (2, True, None, True),
        (2, False, 5.0, True),
        (1, True, 5.0, True),
    ],
)
def test_a_newcomer_enters_unless_it_slows_the_others_down(
    members: int, stands_by: bool, with_s: float | None, enters: bool
) -> None:
    cost = JoinCost(1000, 1000, stands_by=stands_by)
    scheduler = Negotiator(ONE, 1, star_policy(members), 4, Foreseeing(with_s), cost)
    scheduler.joins.request(0.0, JoinRequest(JOINER, ()))
    (number,) = scheduler.joins.open
    for neighbour in (ONE, TWO)[:members]:
        scheduler.joins.introduced(neighbour, number)
    links = m.LinksOpen(number, (ONE,), (SLOW,))
    mail = scheduler.joins.links_open(0.0, JOINER.node, links)
    if enters:
        assert scheduler.joins.open[number].state is JoinState.LINKED
        return
    [refusal] = [message for _, message in mail if isinstance(message, JoinAborted)]
    assert refusal.stands_by
    assert refusal.pause_ms == 1000 * standby.AGAIN_SECONDS
    assert "about 5 s instead of 1 s" in refusal.reason
    assert "2 Mbit/s" in refusal.reason


@pytest.mark.parametrize("with_s", [5.0, 1.0])
def test_a_newcomer_that_seems_slow_waits_until_its_other_links_are_measured(with_s: float) -> None:
    """One that is fast enough over what is measured enters at once."""
    cost = JoinCost(1000, 1000, stands_by=True)
    scheduler = Negotiator(ONE, 1, star_policy(2), 4, Foreseeing(with_s), cost)
    scheduler.joins.request(0.0, JoinRequest(JOINER, ()))
    (number,) = scheduler.joins.open
    for neighbour in (ONE, TWO):
        scheduler.joins.introduced(neighbour, number)
    some = m.LinksOpen(number, (ONE, TWO), (SLOW, 0))
    for report in range(MOST_UNMEASURED + 1):
        mail = scheduler.joins.links_open(float(report), JOINER.node, some)
        if with_s == 1.0:
            assert scheduler.joins.open[number].state is JoinState.LINKED
            return
        assert bool(mail) is (report == MOST_UNMEASURED)
    assert number not in scheduler.joins.open


@pytest.mark.parametrize(("step_s", "enters"), [(15.0, False), (17.0, True)])
def test_what_takes_long_for_other_reasons_takes_as_long_with_a_newcomer(
    step_s: float, enters: bool
) -> None:
    """Summing and computing take 1 s, and 5 s with the newcomer; the rest of a step remains."""
    pace = Pace()
    for at in range(8):
        pace.applied(step_s * at)
    cost = JoinCost(1000, 1000, pace=pace, stands_by=True)
    scheduler = Negotiator(ONE, 1, star_policy(2), 4, Foreseeing(5.0), cost)
    scheduler.joins.request(0.0, JoinRequest(JOINER, ()))
    (number,) = scheduler.joins.open
    for neighbour in (ONE, TWO):
        scheduler.joins.introduced(neighbour, number)
    scheduler.joins.links_open(0.0, JOINER.node, m.LinksOpen(number, (ONE,), (SLOW,)))
    assert (number in scheduler.joins.open) is enters


def test_a_newcomer_whose_links_show_only_while_it_copies_is_judged_again() -> None:
    cost = JoinCost(1000, 1000, stands_by=True)
    planner = Foreseeing(None)
    scheduler = Negotiator(ONE, 1, star_policy(2), 4, planner, cost)
    joins = scheduler.joins
    joins.request(0.0, JoinRequest(JOINER, ()))
    (number,) = joins.open
    for neighbour in (ONE, TWO):
        joins.introduced(neighbour, number)
    joins.links_open(0.0, JOINER.node, m.LinksOpen(number, (ONE,), (SLOW,)))
    join = joins.open[number]
    join.beside = True
    planner.with_s = 5.0
    scheduler.in_force(0.0, star_policy(2, (Pull(number, JOINER, (ONE,), ONE, beside=True),)))
    assert join.state is JoinState.COPYING
    copied = m.LinksOpen(number, (ONE,), (SLOW,), b"", copied=True)
    [told] = [x for _, x in joins.links_open(1.0, JOINER.node, copied)]
    assert isinstance(told, m.StaysOutside), "it follows, since it has kept up so far"
    assert join.state is JoinState.COPYING


@pytest.mark.parametrize(
    ("gradient_bytes", "stands_by", "waits"),
    [
        (SMALL_GRADIENT_BYTES + 1, True, True),
        (SMALL_GRADIENT_BYTES, True, False),
        (SMALL_GRADIENT_BYTES + 1, False, False),
    ],
)
def test_links_are_measured_first_where_a_newcomer_may_stand_by(
    gradient_bytes: int, stands_by: bool, waits: bool
) -> None:
    cost = JoinCost(1000, gradient_bytes, stands_by=stands_by)
    assert cost.has_to_know((0, 0)) is waits
    assert not cost.has_to_know((0, SLOW))


def test_the_longest_of_the_last_steps_counts_the_running_one() -> None:
    pace = Pace()
    assert pace.longest_s(9.0) == 0.0
    pace.applied(10.0)
    assert pace.longest_s(12.0) == 2.0
    pace.applied(14.0)
    assert pace.longest_s(14.5) == 4.0


def test_figures_have_as_many_digits_as_they_mean() -> None:
    assert "about 36 s instead of 0.52 s" in standby.reason(36.4, 0.5234, None)


def test_the_others_are_told_who_stands_by() -> None:
    world, hosts = cluster(0, 2)
    for stands_by in (False, True):
        refusal = JoinAborted(7, JOINER.node, "slow links", 6000, stands_by)
        world.say(hosts[0], hosts[1], refusal)
    told = [r.values for r in hosts[1].reports if r.event == "member_standby"]
    assert told == [{"node": JOINER.node.hex()[:8], "reason": "slow links"}]
