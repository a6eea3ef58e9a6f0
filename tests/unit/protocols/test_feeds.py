"""A joiner that has copied beside the training gets the rounds from several members at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from protocols import limits
from protocols.effects import CloseLink
from protocols.events import LeaveWanted, TrainerEnded
from protocols.member.cycle_table import CycleState
from protocols.member.joining_table import JoiningState
from protocols.member.patience import Patience
from protocols.network.link_end import LinkEnd
from protocols.scheduler.join import Join, JoinState, feed_weights, planned_pulls
from tests.unit.protocols.clusters import (
    cluster,
    enter,
    go_on,
    joining_of,
    node_of,
    persist,
    policy_of,
    reach,
)
from tests.unit.protocols.records import member, node

if TYPE_CHECKING:
    from tests.simulation.world import Host, World

ONE, TWO, THREE = node(1), node(2), node(3)


def test_weights_are_in_proportion_to_the_rates() -> None:
    most = limits.MAX_FEED_WEIGHT
    assert feed_weights((ONE, TWO), {ONE: 300, TWO: 100}) == {ONE: most * 3 // 4, TWO: most // 4}
    assert feed_weights((ONE, TWO, THREE), {ONE: 5, THREE: 0}) == {}
    assert feed_weights((ONE, TWO), {ONE: 1000 * most, TWO: 1}) == {}
    assert feed_weights((ONE, TWO), {}) == {}


def copied(**rates: int) -> Join:
    """Return the join of a device that has copied the state from three members."""
    join = Join(7, member(9), (ONE, TWO, THREE), 0.0, JoinState.LINKED, copied=True)
    join.links = join.sources = (ONE, TWO, THREE)
    join.rates = {ONE: 10, TWO: 30, THREE: 20} | {node(int(k[1:])): v for k, v in rates.items()}
    return join


def test_one_that_has_copied_is_fed_by_all_sources_and_they_stay() -> None:
    join = copied()
    (pull,) = planned_pulls([join], (ONE, TWO, THREE))
    assert pull.parent == TWO
    assert {pull.feeders.count(n) for n in (ONE, TWO, THREE)} == {10, 32, 21}
    join.rates = {ONE: 90, TWO: 1, THREE: 1}
    assert planned_pulls([join], (ONE, TWO, THREE)) == (pull,), "a policy with it may be under way"
    (later,) = planned_pulls([join], (ONE, THREE))
    assert later.sources == (ONE, THREE)
    assert set(later.feeders) == {ONE}, "the other one would have less than a part in 64"


def test_one_that_has_to_copy_everything_is_fed_by_its_parent_alone() -> None:
    for beside in (False, True):
        join = replace(copied(), copied=False, beside=beside)
        (pull,) = planned_pulls([join], (ONE, TWO, THREE))
        assert (pull.parent, pull.feeds) == (TWO, ())
    join.beside, join.copied = False, True  # now it lacks but a few updates
    (pull,) = planned_pulls([join], (ONE, TWO, THREE))
    assert pull.feeds


def test_a_joiner_of_whose_links_no_rate_is_known_has_one_parent() -> None:
    join = copied(n1=0, n2=0, n3=0)
    (pull,) = planned_pulls([join], (ONE, TWO, THREE))
    assert (pull.parent, pull.feeders) == (ONE, (ONE,))


def following() -> tuple[World, list[Host], Host]:
    """Return a world, its members, and a joiner that has copied and follows the rounds."""
    world, hosts = cluster(0, beside=True)
    joiner = world.join(9, hosts[0])
    reach(world, joiner, JoiningState.CAUGHT_UP)
    return world, hosts, joiner


def other_feeder(joiner: Host) -> bytes:
    """Return a member that feeds `joiner` and is not its parent."""
    pull = policy_of(joiner).pull_of(joiner.me.node)
    assert pull is not None
    return next(n for n in pull.feeders if n != pull.parent)


def test_all_sources_send_chunks_to_a_joiner_that_follows() -> None:
    world, hosts, joiner = following()
    senders: dict[bytes, None] = {}
    taken = joiner.chunk

    def take(sender: bytes, key: tuple[object, ...], kind: str, chunk: int, value: object) -> None:
        senders[sender] = None
        taken(sender, key, kind, chunk, value)

    joiner.chunk = take  # type: ignore[method-assign]
    enter(world, joiner)
    assert {h.me.node for h in hosts} <= set(senders)
    go_on(world)


def test_a_joiner_that_loses_one_of_its_feeders_begins_anew() -> None:
    world, hosts, joiner = following()
    world.unlink(world.hosts[other_feeder(joiner)], joiner, LinkEnd.PROCESS_ENDED)
    world.run(lambda: bool(joiner.joins_failed), 5.0)
    go_on(world)
    persist(world, joiner, hosts[1])


def test_a_feeder_that_was_lost_before_the_joiner_knew_of_it() -> None:
    world, hosts = cluster(0, beside=True)
    joiner = world.join(9, hosts[0])
    reach(world, joiner, JoiningState.COPIED)
    joining = joining_of(joiner)
    context = node_of(joiner).context
    pull = next(p for p in policy_of(hosts[0]).pulls if p.joiner.node == joiner.me.node)
    plan = replace(pull, beside=False, feeds=(1,) * len(pull.sources))
    assert joining.copy is not None
    lost = next(n for n in plan.sources if n != plan.parent)
    context.links.pop(lost)
    joining._begin_pull(0.0, policy_of(hosts[0]), plan, {plan.parent: joining.copy.begins})
    assert joining.state is JoiningState.FAILED


@pytest.mark.parametrize("leaves", [True, False])
def test_a_feeder_may_leave_or_lose_its_trainer(leaves: bool) -> None:
    world, _, joiner = following()
    feeder = world.hosts[other_feeder(joiner)]
    if leaves:
        feeder.handle(LeaveWanted())
    else:
        feeder.lose_trainer()
        feeder.handle(TrainerEnded())
    enter(world, joiner)
    assert not joiner.joins_failed
    feeder.handle(LeaveWanted())
    world.run(lambda: feeder.gone == "left")
    go_on(world)


def test_a_link_that_was_closed_on_purpose_is_missed_only_if_the_policy_still_needs_it() -> None:
    world, _, joiner = following()
    context = node_of(joiner).context
    patience, now = Patience(context), world.now
    assert patience.ended(now, CycleState.REDUCING, may_enter=False) == ""
    lost = other_feeder(joiner)
    context.links.pop(lost)
    for passed, may_enter, wanted in (
        (0.0, True, False),
        (limits.RETRY_SECONDS, True, False),
        (limits.RETRY_SECONDS, False, False),
        (2.01 * limits.RETRY_SECONDS, False, True),
    ):
        said = patience.ended(now + passed, CycleState.REDUCING, may_enter=may_enter)
        assert bool(said) is wanted
    assert "broke" in said


def test_a_joiner_gives_up_if_a_feeder_has_closed_the_link_and_is_still_to_feed_it() -> None:
    world, hosts, joiner = following()
    world.unlink(world.hosts[other_feeder(joiner)], joiner, LinkEnd.GOODBYE)
    assert not joiner.joins_failed
    world.run(lambda: bool(joiner.joins_failed) or joiner in world.members)
    persist(world, joiner, hosts[0])
    go_on(world)


def test_a_policys_body_that_is_missing_for_long_is_given_up() -> None:
    world, _, joiner = following()
    patience, now = Patience(node_of(joiner).context), world.now
    assert patience.ended(now, CycleState.FETCHING, may_enter=False) == ""
    later = now + limits.FETCH_PATIENCE_SECONDS
    assert "too far ahead" in patience.ended(later, CycleState.FETCHING, may_enter=False)
    assert patience.ended(later, CycleState.REDUCING, may_enter=False) == ""


def test_a_feeder_that_owes_an_answer_for_long_is_asked_no_more_and_goes_on_to_feed() -> None:
    world, _, joiner = following()
    joining, context = joining_of(joiner), node_of(joiner).context
    feeder, stranger = other_feeder(joiner), node(77)
    joining.state = JoiningState.PULLING
    context.effects.clear()
    with patch.object(joining._stalled, "look", return_value=[feeder, stranger]):
        joining._give_up_stalled(world.now)
    assert [e for e in context.effects if isinstance(e, CloseLink)] == [CloseLink(stranger)]


def test_who_has_asked_to_be_let_in_and_is_named_by_no_policy_leaves_at_once() -> None:
    _, _, joiner = following()
    assert not node_of(joiner).context.may_be_named
    joiner.handle(LeaveWanted())
    assert joiner.gone == "left"


def test_who_may_be_named_enters_first() -> None:
    world, hosts, joiner = following()
    world.run(lambda: node_of(joiner).context.may_be_named)
    joiner.handle(LeaveWanted())
    assert joiner.gone is None
    world.run(lambda: joiner.gone == "left")
    go_on(world)
    assert joiner.me not in policy_of(hosts[0]).view.members


def test_a_link_that_the_policy_in_force_needs_is_missed_although_another_is_planned() -> None:
    _, hosts, joiner = following()
    negotiator = node_of(hosts[0]).negotiator
    assert negotiator is not None
    (join,) = negotiator.joins.open.values()
    lost = other_feeder(joiner)
    join.feeds = {n: w for n, w in join.feeds.items() if n != lost}  # as if it were to leave
    join.parent = next(n for n in join.sources if n != lost)
    negotiator.joins.link_lost(lost, joiner.me.node)
    assert not negotiator.joins.open


def test_who_forwards_rounds_beside_others_knows_it() -> None:
    world, hosts, joiner = following()
    desk = node_of(world.hosts[other_feeder(joiner)]).trainer_desk
    assert desk._is_one_of_several(joiner.me.node)
    assert not desk._is_one_of_several(hosts[0].me.node)
