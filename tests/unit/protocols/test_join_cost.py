"""How long a join stops the others: the estimate, the watch, and refusals with the figures."""

from __future__ import annotations

import math
from dataclasses import replace

from edgeagent.planner.standard import StandardPlanner
from protocols import limits
from protocols.cluster.policy import Pull
from protocols.scheduler.join import CATCH_UP_SECONDS, CATCH_UP_TIMES, JoinState, planned_pulls
from protocols.scheduler.join_cost import REST_S, JoinCost, JoinWay, Pace
from protocols.scheduler.joins import MOST_UNMEASURED
from protocols.scheduler.negotiator import Negotiator
from protocols.wire import messages as m
from protocols.wire.messages import JoinAborted, JoinRequest

from .records import member, node, star_policy

MB, MBIT = 1_000_000, 125_000
ONE, TWO, JOINER = node(1), node(2), member(9, "tortoise")
SLOW, FAST = 5 * MBIT, 50 * MBIT


def cost(allowed_s: float = 30.0, pace: Pace | None = None) -> JoinCost:
    return JoinCost(27 * MB, 9 * MB, allowed_s, pace or Pace())


def slow_steps(seconds: float) -> Pace:
    pace = Pace()
    for k in range(6):
        pace.applied(k * seconds)
    return pace


# --- the figures ----------------------------------------------------------------------------------


def test_a_slow_link_is_refused_with_the_figures_and_a_fast_one_is_not() -> None:
    reason = cost().refusal("tortoise", (SLOW,))
    for part in (
        "about 58 s",
        "27 MB",
        "9 MB",
        "to tortoise carries 5 Mbit/s",
        "30 s",
        "--join-stall",
    ):
        assert part in reason
    assert "--join-stall" in reason
    assert cost().refusal("tortoise", (FAST,)) == ""


def test_links_carry_the_state_together() -> None:
    assert cost().refusal("t", (SLOW, SLOW)) == ""
    assert "the links to t carry 5 Mbit/s" in cost().refusal("t", (SLOW // 2, SLOW // 2))
    assert cost().refusal("t", (SLOW, 0)) == ""  # the unknown link counts as one like the other
    assert cost().refusal("t", (0,)) == ""


def test_a_few_usual_steps_are_always_allowed() -> None:
    assert cost(pace=slow_steps(20.0)).refusal("t", (SLOW,)) == ""
    assert cost(pace=slow_steps(1.0)).refusal("t", (SLOW,))
    one = Pace()
    one.applied(0.0)
    one.applied(99.0)
    assert one.usual_s == 0.0


def test_a_joiner_that_has_the_constant_part_is_let_in_over_a_slow_link() -> None:
    base = JoinCost(27 * MB, 9 * MB, 30.0, Pace(), 20 * MB, b"base")
    assert "the state is 27 MB" in base.refusal("t", (SLOW,))
    assert "the state is 27 MB" in base.refusal("t", (SLOW,), b"other")
    assert base.refusal("t", (SLOW,), b"base") == ""
    assert "the state is 7 MB" in base.refusal("t", (SLOW // 4,), b"base")
    unknown = JoinCost(27 * MB, 9 * MB, 30.0, Pace(), 20 * MB)
    assert "the state is 27 MB" in unknown.refusal("t", (SLOW,))


def test_without_a_limit_nobody_is_refused() -> None:
    assert cost(0.0).most_s == math.inf
    assert cost(0.0).refusal("t", (1,)) == ""
    assert cost(0.0).too_slow("t", 1000.0, 1, 27 * MB) == ""


def test_what_is_not_known_is_waited_for_where_it_matters() -> None:
    assert cost().has_to_know((0, 0))
    assert not cost().has_to_know((0, SLOW))
    assert not cost().has_to_know(())
    assert not cost(0.0).has_to_know((0,))
    assert not JoinCost(MB, MB, 30.0).has_to_know((0,))


def test_a_pull_is_judged_by_what_is_to_be_pulled() -> None:
    assert cost().too_slow("t", 4.0, MB, 27 * MB)
    assert cost().too_slow("t", 4.0, MB, MB) == ""


def test_joiners_copy_beside_the_training_where_that_is_worth_it() -> None:
    def auto(update: int, pace: Pace | None = None, state: int = 27 * MB) -> JoinCost:
        return JoinCost(state, 9 * MB, 30.0, pace or Pace(), 0, b"", update, JoinWay.AUTO)

    assert not auto(0).goes_beside((SLOW,)), "no update can be kept"
    assert auto(9 * MB).goes_beside((0,)), "a large state over a link that is not known"
    assert not auto(9 * MB, state=MB).goes_beside((0,))
    assert not auto(9 * MB).goes_beside((1000 * MB,)), "the others hold for a moment only"
    assert auto(9 * MB).goes_beside((SLOW,)), "nothing is known of the pace"
    assert not auto(9 * MB, slow_steps(1.0)).goes_beside((SLOW,)), "it would never catch up"
    assert auto(MB // 10, slow_steps(1.0)).goes_beside((SLOW,))
    assert not JoinCost(27 * MB, update_bytes=MB, way=JoinWay.PAUSE).goes_beside((SLOW,))
    assert JoinCost(MB, update_bytes=MB, way=JoinWay.BESIDE).goes_beside(())


# --- what the scheduler does with them ------------------------------------------------------------


def linking(allowed: JoinCost) -> tuple[Negotiator, int]:
    """Return a scheduler to which a joiner has been introduced."""
    scheduler = Negotiator(ONE, 1, star_policy(2), 4, StandardPlanner(), allowed)
    scheduler.joins.request(0.0, JoinRequest(JOINER, ()))
    (number,) = scheduler.joins.open
    for neighbour in (ONE, TWO):
        scheduler.joins.introduced(neighbour, number)
    return scheduler, number


def opens(
    scheduler: Negotiator, now: float, number: int, rate: int
) -> list[tuple[bytes, m.Message]]:
    """The joiner says that one link, which carries `rate`, is open."""
    return scheduler.joins.links_open(now, JOINER.node, m.LinksOpen(number, (ONE,), (rate,)))


def pulling(allowed: JoinCost) -> tuple[Negotiator, int]:
    """Return a scheduler whose joiner has begun to pull at 0."""
    scheduler, number = linking(allowed)
    opens(scheduler, 0.0, number, FAST)
    scheduler.in_force(0.0, star_policy(2, (Pull(number, JOINER, (ONE,), ONE),)))
    assert scheduler.joins.open[number].state is JoinState.PULLING
    return scheduler, number


def progress(number: int, seconds: float, pulled: int) -> m.JoinProgress:
    source = m.PulledFrom(ONE, pulled, 0)
    return m.JoinProgress(number, 27 * MB, int(seconds * 1e6), (source,))


def aborted(mail: list[tuple[bytes, m.Message]]) -> JoinAborted:
    (found,) = [message for _, message in mail if isinstance(message, JoinAborted)]
    return found


def copying(*, outside: str = "") -> tuple[Negotiator, int]:
    """Return a scheduler whose joiner has begun to copy beside the training at 0."""
    scheduler, number = linking(cost())
    opens(scheduler, 0.0, number, FAST)
    scheduler.joins.open[number].outside = outside
    scheduler.joins.open[number].beside = True
    scheduler.in_force(0.0, star_policy(2, (Pull(number, JOINER, (ONE,), ONE, beside=True),)))
    assert scheduler.joins.open[number].state is JoinState.COPYING
    return scheduler, number


def reports(scheduler: Negotiator, at: float, number: int, pulled: int) -> list[m.Letter]:
    return scheduler.joins.progress(at, JOINER.node, progress(number, at, pulled))


def test_a_joiner_that_updates_outrun_is_given_up() -> None:
    """Its links carried the updates when it began, but steps have become faster since then."""
    scheduler, number = copying()
    assert reports(scheduler, 40.0, number, 20 * MB) == []
    assert reports(scheduler, 50.0, number, 27 * MB) == []
    assert reports(scheduler, 50.0 + CATCH_UP_TIMES * 50.0, number, 27 * MB) == []
    said = aborted(reports(scheduler, 51.0 + CATCH_UP_TIMES * 50.0, number, 27 * MB))
    assert "come faster" in said.reason
    assert said.pause_ms == 0, "it tries again at once"


def test_a_joiner_that_has_copied_quickly_has_half_a_minute_to_catch_up() -> None:
    scheduler, number = copying()
    assert reports(scheduler, 1.0, number, 27 * MB) == []
    assert reports(scheduler, 1.0 + CATCH_UP_SECONDS, number, 27 * MB) == []
    assert reports(scheduler, 2.0 + CATCH_UP_SECONDS, number, 27 * MB) != []


def test_who_follows_from_outside_or_has_caught_up_may_take_as_long_as_it_likes() -> None:
    for outside in ("its link is slow", ""):
        scheduler, number = copying(outside=outside)
        scheduler.joins.open[number].copied_at = None if outside else 2.0
        assert reports(scheduler, 1.0, number, 27 * MB) == []
        assert reports(scheduler, 500.0, number, 27 * MB) == []


def test_a_joiner_with_slow_links_never_begins_to_pull() -> None:
    scheduler, number = linking(cost())
    said = aborted(opens(scheduler, 1.0, number, SLOW))
    assert said.joiner == JOINER.node
    assert "about 58 s" in said.reason
    assert said.pause_ms == 1000 * limits.JOIN_AGAIN_SECONDS
    assert not scheduler.joins.open


def test_rates_that_are_not_known_are_waited_for_but_not_for_ever() -> None:
    scheduler, number = linking(cost())
    for _ in range(MOST_UNMEASURED):
        assert opens(scheduler, 1.0, number, 0) == []
        assert scheduler.joins.open[number].state is JoinState.LINKING
    opens(scheduler, 1.0, number, 0)
    assert scheduler.joins.open[number].state is JoinState.LINKED


def test_a_pull_that_turns_out_slow_is_given_up() -> None:
    scheduler, number = pulling(cost())
    assert scheduler.joins.progress(2.0, JOINER.node, progress(number, 2.0, MB)) == []  # too early
    assert scheduler.joins.progress(4.0, JOINER.node, progress(number, 4.0, 0)) == []
    assert scheduler.joins.progress(4.0, JOINER.node, progress(number, 4.0, 4 * MB)) == []
    said = aborted(scheduler.joins.progress(4.0, JOINER.node, progress(number, 4.0, 2 * MB)))
    assert "about 72 s" in said.reason
    assert said.pause_ms == 1000 * limits.JOIN_MUCH_LATER_SECONDS


def test_nobody_is_stopped_for_longer_than_allowed() -> None:
    scheduler, number = pulling(cost())
    assert scheduler.tick(29.9) == [] or number in scheduler.joins.open
    said = aborted(scheduler.tick(30.0))
    assert "has stopped the others for 30 s" in said.reason


def test_a_joiner_that_lacks_only_a_few_updates_stops_the_others_for_a_moment_at_most() -> None:
    beside = replace(cost(), update_bytes=MB, way=JoinWay.BESIDE)
    scheduler, number = linking(beside)
    opens(scheduler, 0.0, number, FAST)
    copying, rest = (Pull(number, JOINER, (ONE,), ONE, beside=b) for b in (True, False))
    scheduler.in_force(0.0, star_policy(2, (copying,)))
    scheduler.joins.links_open(100.0, JOINER.node, m.LinksOpen(number, (ONE,), (FAST,), b"", True))
    scheduler.in_force(101.0, star_policy(2, (rest,)))
    assert scheduler.joins.open[number].stops_until == 101.0 + REST_S
    assert reports(scheduler, 102.0, number, 27 * MB) == [], "its copy has stopped nobody"
    said = aborted(scheduler.joins.tick(101.0 + REST_S))
    assert said.reason.startswith("tortoise has stopped the others for 5 s after it had copied")
    assert number not in scheduler.joins.open


def test_the_moment_is_a_few_steps_if_these_are_long_and_never_more_than_a_join_may_take() -> None:
    assert cost(pace=slow_steps(4.0)).most_of_rest_s() == 12.0
    assert replace(cost(), allowed_s=0.0).most_of_rest_s() == REST_S
    assert replace(cost(), allowed_s=2.0).most_of_rest_s() == 2.0


def test_the_moment_is_as_long_as_the_links_need_for_the_last_updates() -> None:
    beside = replace(cost(), update_bytes=9 * MB)
    assert beside.most_of_rest_s((0,)) == REST_S, "no rate is known"
    assert beside.most_of_rest_s((FAST,)) == REST_S
    assert beside.most_of_rest_s((2 * MB, 0)) == 27 / 4
    assert beside.most_of_rest_s((SLOW,)) == 30.0, "never more than a join may take"


def test_nobody_waits_for_a_joiner_all_of_whose_sources_have_nothing_for_it() -> None:
    scheduler, number = pulling(cost())
    scheduler.joins.no_snapshot(ONE, number + 7)
    scheduler.joins.no_snapshot(JOINER.node, number)
    assert scheduler.joins.tick(1.0) == []
    scheduler.joins.no_snapshot(ONE, number)
    said = aborted(scheduler.joins.tick(2.0))
    assert "are behind" in said.reason
    assert said.pause_ms == 1000 * limits.JOIN_AGAIN_SECONDS


def test_a_joiner_copies_from_late_members_only_if_it_has_no_link_to_others() -> None:
    scheduler, number = linking(cost())
    opens(scheduler, 0.0, number, FAST)
    join, nodes = scheduler.joins.open[number], scheduler.policy.view.nodes
    join.links, join.waits_until = nodes[:2], None
    for away, sources in (((), nodes[:2]), (nodes[:1], nodes[1:2]), (nodes, nodes[:2])):
        (pull,) = planned_pulls([join], nodes, away)
        assert pull.sources == sources
    # Only members that keep updates for a joiner can serve it once it has the snapshot.
    join.copied, join.sources = True, nodes[:1]
    (pull,) = planned_pulls([join], nodes)
    assert pull.sources == nodes[:1]


def test_a_join_ends_with_the_last_link_to_a_source() -> None:
    scheduler, number = linking(cost())
    opens(scheduler, 0.0, number, FAST)
    join, nodes = scheduler.joins.open[number], scheduler.policy.view.nodes
    join.links, join.sources = nodes[:2], nodes[1:2]
    assert scheduler.joins.link_lost(nodes[0], JOINER.node) == []
    join.links = nodes[:2]
    assert "needs broke" in aborted(scheduler.joins.link_lost(nodes[1], JOINER.node)).reason


def test_a_joiner_without_snapshots_is_refused_if_a_pause_would_take_too_long() -> None:
    beside = replace(cost(), update_bytes=MB, way=JoinWay.BESIDE)
    for rate, state in ((SLOW, None), (FAST, JoinState.LINKED)):
        scheduler, number = linking(beside)
        assert opens(scheduler, 0.0, number, rate) == []
        plan = Pull(number, JOINER, (ONE,), ONE, beside=True)
        scheduler.joins.no_snapshot(ONE, number)
        scheduler.in_force(0.0, star_policy(2, (plan,)))
        mail = scheduler.joins.tick(1.0)
        join = scheduler.joins.open.get(number)
        assert (join.state if join is not None else None) is state
        if join is None:
            assert "about 58 s" in aborted(mail).reason


def test_one_broken_copy_does_not_make_the_others_hold_their_update() -> None:
    """A source was killed, or the user has started the joiner again: that says nothing of the next
    copy. Nor does a copy that was given up because the joiner stands by."""
    scheduler, _ = linking(replace(cost(), update_bytes=MB))
    joins = scheduler.joins

    def copies() -> bool:
        joins.request(0.0, JoinRequest(JOINER, ()))
        (number,) = joins.open
        for neighbour in (ONE, TWO):
            joins.introduced(neighbour, number)
        opens(scheduler, 0.0, number, SLOW)
        join = joins.open.get(number)
        if join is None:
            return False  # refused, because the others would have to hold their update for too long
        join.state = JoinState.COPYING
        return True

    joins.give_up(next(iter(joins.open)), "not begun")
    for lost in ((ONE, TWO), (ONE,), (ONE,)):
        assert copies()
        (join,) = joins.open.values()
        join.links, join.sources = (ONE, TWO), lost
        for neighbour in lost:
            joins.link_lost(neighbour, JOINER.node)
        assert not joins.open
    assert copies()
    joins.tick(limits.JOIN_PROGRESS_SECONDS + 1.0)
    assert not joins.open
    assert not copies(), "one has lost all its links, and one made no progress"


def test_if_all_are_to_copy_beside_the_training_they_always_do() -> None:
    beside = replace(cost(), update_bytes=MB, way=JoinWay.BESIDE)
    assert beside.goes_beside((SLOW,), failed=9)
    assert not replace(beside, way=JoinWay.PAUSE).goes_beside((SLOW,))


def test_a_joiner_waits_a_moment_for_others_that_are_about_to_copy() -> None:
    scheduler, number = linking(replace(cost(), update_bytes=MB, way=JoinWay.BESIDE))
    scheduler.joins.request(0.0, JoinRequest(member(8), ()))
    opens(scheduler, 0.0, number, FAST)
    nodes = scheduler.policy.view.nodes
    (join,) = (join for join in scheduler.joins.open.values() if join.number == number)
    alone, with_others = join.gathers_until, join.waits_until
    assert alone is not None
    assert with_others is not None
    assert 0 < alone < with_others
    assert with_others >= limits.JOIN_BATCH_SECONDS
    assert scheduler.joins.deadline == alone
    scheduler.joins.tick(alone)
    assert scheduler.joins.deadline == with_others, "another one is on its way"
    assert planned_pulls(scheduler.joins.open.values(), nodes) == ()
    scheduler.joins.tick(with_others)
    (pull,) = planned_pulls(scheduler.joins.open.values(), nodes)
    assert pull.beside


def test_a_joiner_that_copies_for_long_waits_a_little_for_others_that_may_come() -> None:
    scheduler, number = linking(replace(cost(), update_bytes=MB, way=JoinWay.BESIDE))
    opens(scheduler, 0.0, number, FAST)
    nodes = scheduler.policy.view.nodes
    alone = scheduler.joins.open[number].gathers_until
    assert alone is not None
    scheduler.joins.tick(alone / 2)
    assert planned_pulls(scheduler.joins.open.values(), nodes) == ()
    scheduler.joins.tick(alone)
    assert len(planned_pulls(scheduler.joins.open.values(), nodes)) == 1
    assert cost().waits_s((0,)) == (0.0, limits.JOIN_BATCH_SECONDS), "no rate is known"
    assert cost().waits_s((10**12,), beside=False) == (0.0, 0.0), "the others wait for a moment"
    assert cost().waits_s((1,), beside=False) == cost().waits_s((1,))
    gather, batch = cost().waits_s((1,))
    assert (gather, batch) == (limits.JOIN_GATHER_SECONDS, limits.MOST_BATCH_SECONDS)


def test_a_joiner_that_does_not_follow_yet_may_lose_its_parent() -> None:
    for offered, stays in ((False, True), (True, False)):
        scheduler, number = linking(cost())
        links = m.LinksOpen(number, (ONE, TWO), (FAST, FAST // 2))
        scheduler.joins.links_open(0.0, JOINER.node, links)
        scheduler.tick(limits.MOST_BATCH_SECONDS)
        switch = scheduler.switch
        assert switch is not None
        assert switch.policy.pulls[0].parent == ONE
        switch.offered = offered
        scheduler.joins.link_lost(JOINER.node, ONE)
        assert (number in scheduler.joins.open) is stays
        if stays:
            scheduler.tick(10.0)
            assert scheduler.switch is not None
            assert scheduler.switch.policy.pulls[0].parent == TWO


def test_the_size_of_the_updates_alone_makes_nobody_wait() -> None:
    for size in (1 << 28, 1 << 32):
        large = JoinCost(3 * size, size, update_bytes=size)
        assert large.goes_beside((10**9,))


def test_who_has_the_state_stops_nobody_any_more() -> None:
    scheduler, number = pulling(cost())
    scheduler.joins.pulled(number)
    scheduler.joins.pulled(number + 7)
    assert scheduler.joins.progress(9.0, JOINER.node, progress(number, 9.0, MB)) == []
    scheduler.tick(31.0)
    assert number in scheduler.joins.open


def test_the_next_scheduler_counts_anew() -> None:
    policy = star_policy(2, (Pull(3, JOINER, (ONE,), ONE),))
    heir = Negotiator(TWO, 2, policy, 4, StandardPlanner(), cost())
    heir.joins.resume(100.0)
    assert heir.joins.open[3].stops_until == 130.0


def test_recent_steps_and_the_running_one() -> None:
    pace = Pace()
    assert (pace.recent_s, pace.since(5.0)) == (0.0, 0.0)
    for k in range(20):
        pace.applied(float(k))
    for k in range(3):
        pace.applied(29.0 + 10 * k)
    assert (pace.usual_s, pace.recent_s) == (1.0, 10.0)
    assert pace.since(52.0) == 3.0
    assert pace.since(48.0) == 0.0, "a clock that was read before"
