"""A joiner that has copied beside the training gets the rounds from several members at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from protocols import limits
from protocols.member.joining_table import JoiningState
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
