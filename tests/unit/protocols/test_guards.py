"""Messages and events that do not fit the moment are dropped; impossible ones are the peer's fault.

Each test sends a message to a node in a running cluster that no correct node sends at that time,
and checks that it leads to nothing, or to a `RemoteProtocolError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgeagent.planner.standard import StandardPlanner
from protocols import effects, events, limits
from protocols.cluster.policy import Policy
from protocols.errors import RemoteProtocolError
from protocols.member.copies import Copies
from protocols.member.cycle import Cycle
from protocols.member.cycle_table import CycleState
from protocols.member.joining_table import JoiningState
from protocols.member.mail import Mail
from protocols.member.shard_sizes import (
    LARGEST_SHARD_BYTES,
    USUAL_SHARD_BYTES,
    shard_count,
    shard_size,
)
from protocols.member.trainer_debt import TrainerDebt
from protocols.network.link_end import LinkEnd
from protocols.scheduler.negotiator import Negotiator
from protocols.wire import messages as m
from tests.simulation.numbers import STATE_ELEMENTS
from tests.simulation.world import Host, World, member
from tests.unit.protocols.clusters import (
    BESIDE,
    ENDLESS,
    ON_THE_WAY,
    cluster,
    enter,
    go_on,
    line,
    node_of,
    policy_of,
    reach,
    reported,
    settle,
    state_of,
)

if TYPE_CHECKING:
    from protocols.member.context import Context

STRANGER = member(77)


def effects_of(world: World, host: Host, event: events.Event) -> list[effects.Effect]:
    """Return the effects of `event` at the host's node, without performing them."""
    return node_of(host).handle(world.now, event)


def said(
    world: World, sender: Host, to: Host, message: m.Message, *, hops: int = 0
) -> list[effects.Effect]:
    """Return the effects of a message of `sender` at the node of `to`, without performing them."""
    context = node_of(sender).context
    tags = (context.lineage, context.election.term, 0, 0, 0, 0)
    envelope = context.router.stamp(tags, to.me.node, message)
    return effects_of(world, to, events.Received(sender.me.node, envelope))


def negotiator_of(host: Host) -> Negotiator:
    negotiator = node_of(host).negotiator
    assert negotiator is not None
    return negotiator


# --- links and relays -----------------------------------------------------------------------------


def test_ping_measures_every_link() -> None:
    world, hosts = cluster(0)
    hosts[0].perform(node_of(hosts[0]).ping(world.now))
    world.run(lambda: len(reported(hosts[0], "delay")) == 2)
    for values in reported(hosts[0], "delay"):
        assert values["id"] in (hosts[1].me.node, hosts[2].me.node)
        seconds = values["seconds"]
        assert isinstance(seconds, float)
        assert 0.0 < seconds <= 2 * world.most_delay


def test_no_message_from_where_no_link_is() -> None:
    world, hosts = line(0, 3)
    assert hosts[2].me.node not in hosts[0].links
    assert said(world, hosts[2], hosts[0], m.Ping(1.0)) == []
    assert said(world, hosts[1], hosts[0], m.Ping(1.0))


def test_another_lineage_is_not_heard() -> None:
    world, hosts = cluster(0)
    context = node_of(hosts[1]).context
    tags = (b"another lineage.", 1, 0, 0, 0, 0)
    envelope = context.router.stamp(tags, hosts[0].me.node, m.Ping(1.0))
    assert effects_of(world, hosts[0], events.Received(hosts[1].me.node, envelope)) == []


def test_a_link_that_never_was_goes_down() -> None:
    world, hosts = cluster(0)
    assert effects_of(world, hosts[0], events.LinkDown(STRANGER.node, LinkEnd.SILENT)) == []
    assert reported(hosts[0], "link_down") == []


def test_a_link_of_no_member_goes_down() -> None:
    world, hosts = cluster(0)
    hosts[1].perform(effects_of(world, hosts[1], events.LinkUp(STRANGER)))
    wanted = effects_of(world, hosts[1], events.LinkDown(STRANGER.node, LinkEnd.SILENT))
    sent = [e.envelope.message for e in wanted if isinstance(e, effects.Send)]
    assert sent == 2 * [m.LinkLost(STRANGER.node, False)]
    assert effects.Report("link_down", {"node": STRANGER.name}) in wanted


def test_links_close_at_the_end() -> None:
    world, hosts = cluster(0, size=2, steps=60)
    world.run(lambda: all(h.iteration == 59 for h in hosts))
    world.unlink(hosts[0], hosts[1], LinkEnd.GOODBYE)
    assert all(h.gone is None for h in hosts)


def test_links_close_after_the_end() -> None:
    world, hosts = cluster(0)
    node = node_of(hosts[0])
    node.cycle.leave("left", "")
    wanted = node.handle(world.now, events.LinkDown(hosts[1].me.node, LinkEnd.SILENT))
    assert [e for e in wanted if not isinstance(e, effects.Depart)] == [
        effects.Report("link_down", {"node": "n1"})
    ]


def test_a_dial_that_nobody_waits_for_fails() -> None:
    world, hosts = cluster(0)
    for host in hosts:
        assert effects_of(world, host, events.DialFailed(STRANGER.node)) == []


# --- policies and roles ---------------------------------------------------------------------------


def test_bodies_of_old_terms_and_other_lineages_are_refused() -> None:
    world, hosts = cluster(0)
    hosts[0].handle(events.LeaveWanted())
    old = policy_of(hosts[1])
    world.run(lambda: hosts[0].gone == "left")
    settle(world)
    assert said(world, hosts[2], hosts[1], m.PolicyBody(old)) == []
    newer = policy_of(hosts[1])
    assert said(world, hosts[2], hosts[1], m.PolicyBody(newer))


def test_a_body_that_nobody_has_is_not_sent() -> None:
    world, hosts = cluster(0)
    assert said(world, hosts[1], hosts[2], m.PolicyFetch(9, 9)) == []
    key = policy_of(hosts[2]).key
    wanted = said(world, hosts[1], hosts[2], m.PolicyFetch(*key))
    assert [e.envelope.message for e in wanted if isinstance(e, effects.Send)] == [
        m.PolicyBody(policy_of(hosts[2]))
    ]


def test_only_the_scheduler_passes_its_role() -> None:
    world, hosts = cluster(0)
    assert said(world, hosts[2], hosts[1], m.PassRole(7)) == []
    assert said(world, hosts[0], hosts[1], m.PassRole(7)) != []


def test_an_old_lead_is_no_news() -> None:
    world, hosts = cluster(0)
    assert said(world, hosts[1], hosts[0], m.Lead(1, "rotated")) == []
    assert node_of(hosts[0]).context.election.leads


def test_a_joiner_takes_no_part_in_elections() -> None:
    world, hosts = cluster(0)
    joiner = world.join(9, hosts[0])
    reach(world, joiner, JoiningState.REQUESTED)
    assert said(world, hosts[0], joiner, m.VoteRequest(5, 1, 9, False)) == []
    assert said(world, hosts[0], joiner, m.PassRole(5)) == []


def test_requests_to_a_node_that_is_not_the_scheduler_are_dropped() -> None:
    world, hosts = cluster(0)
    for message in (
        m.LeaveRequest(1),
        m.LinkLost(STRANGER.node, True),
        m.JoinRequest(STRANGER, ()),
    ):
        assert said(world, hosts[0], hosts[1], message) == []


def test_messages_to_a_joiner_are_dropped_by_a_founder() -> None:
    world, hosts = cluster(0)
    policy = policy_of(hosts[0])
    begins = m.PullBegins(1, 1, *policy.key, bytes(32), 0, b"", ())
    for message in (
        m.OpenLinks(3, (STRANGER,)),
        m.Welcome(hosts[1].me.node, policy, 5),
        begins,
        m.Manifest(3, ()),
        m.JoinAborted(3, hosts[0].me.node, "not yours"),
    ):
        assert said(world, hosts[1], hosts[0], message) == []
    go_on(world)


# --- the scheduler's joins ------------------------------------------------------------------------


def joining_cluster(state: JoiningState) -> tuple[World, list[Host], Host, Negotiator]:
    """Return a cluster, a joiner in `state`, and the scheduler's negotiator."""
    world, hosts = cluster(0, beside=state in BESIDE)
    joiner = world.join(9, hosts[0])
    reach(world, joiner, state)
    return world, hosts, joiner, negotiator_of(hosts[0])


def number_of(joiner: Host) -> int:
    joining = node_of(joiner).joining
    assert joining is not None
    return joining.number


def test_a_member_does_not_join() -> None:
    world, hosts = cluster(0)
    assert said(world, hosts[1], hosts[0], m.JoinRequest(hosts[1].me, ())) == []
    assert not negotiator_of(hosts[0]).joins.open


def test_a_join_nobody_knows() -> None:
    world, hosts = cluster(0)
    joins = negotiator_of(hosts[0]).joins.open
    for message in (
        m.Introduced(99),
        m.LinksOpen(99, (hosts[2].me.node,)),
        m.CaughtUp(99),
        m.JoinProgress(99, 2, 0, ()),
    ):
        assert said(world, hosts[1], hosts[0], message) == []
    assert not joins


def test_only_the_joiner_speaks_for_its_join() -> None:
    world, hosts, joiner, negotiator = joining_cluster(JoiningState.PULLING)
    number = number_of(joiner)
    before = negotiator.joins.open[number].state
    assert said(world, hosts[1], hosts[0], m.CaughtUp(number)) == []
    assert said(world, hosts[1], hosts[0], m.LinksOpen(number, (hosts[1].me.node,))) == []
    assert negotiator.joins.open[number].state is before
    assert negotiator.joins.open[number].links != (hosts[1].me.node,)


def test_early_and_late_words_of_a_joiner() -> None:
    world, hosts, joiner, negotiator = joining_cluster(JoiningState.WAITING)
    number = number_of(joiner)
    before = negotiator.joins.open[number].state
    assert said(world, joiner, hosts[0], m.CaughtUp(number)) == []
    assert said(world, joiner, hosts[0], m.LinksOpen(number, ())) == []
    assert negotiator.joins.open[number].state is before
    enter(world, joiner)
    settle(world)
    assert said(world, hosts[1], hosts[0], m.Introduced(number)) == []
    go_on(world)


def test_a_joiner_asks_again_before_its_old_pull_is_known() -> None:
    world, hosts, joiner, _ = joining_cluster(JoiningState.PULLING)
    policy = policy_of(joiner)
    before = Policy(1, 1, policy.view, policy.parents, policy.shares, (), "")
    heir = Negotiator(hosts[1].me.node, 2, before, world.micro_batches, StandardPlanner())
    heir.joins.resume(world.now)
    heir.joins.request(world.now, m.JoinRequest(joiner.me, ()))
    heir.in_force(world.now, policy)
    assert [join.joiner for join in heir.joins.open.values()] == [joiner.me]
    assert not [p for p in policy.pulls if p.join in heir.joins.open]
    heir.tick(world.now)
    assert heir.switch is not None
    assert heir.switch.policy.pulls == (), "nobody holds an update for the old pull any more"


def test_progress_is_noted() -> None:
    world, hosts, joiner, negotiator = joining_cluster(JoiningState.PULLING)
    number = number_of(joiner)
    before = negotiator.joins.open[number].deadline
    world.now += 3.0
    words = m.PulledFrom(hosts[0].me.node, 3, 0), m.PulledFrom(hosts[1].me.node, 2, 100)
    word = m.JoinProgress(number, 10, 3_000_000, words)
    said(world, hosts[1], hosts[0], word)
    assert negotiator.joins.open[number].progress is None, "only the joiner speaks for its join"
    said(world, joiner, hosts[0], word)
    join = negotiator.joins.open[number]
    assert join.progress == word
    assert word.pulled_bytes == 5
    assert join.deadline > before


def test_a_request_is_repeated_while_the_policy_has_the_pull() -> None:
    world, hosts, joiner, negotiator = joining_cluster(JoiningState.CAUGHT_UP)
    before = list(negotiator.joins.open)
    assert said(world, joiner, hosts[0], m.JoinRequest(joiner.me, ())) == []
    assert list(negotiator.joins.open) == before


def test_all_chosen_neighbours_leave() -> None:
    world, hosts = cluster(0)
    world.lose = lambda _s, receiver, message: isinstance(message, m.Introduce)
    joiner = world.join(9, hosts[0], neighbours=("n2",))
    world.run(lambda: world.lost > 0)
    hosts[2].handle(events.LeaveWanted())
    world.run(lambda: hosts[2].gone == "left")
    world.lose = lambda _s, _r, _m: False
    enter(world, joiner)
    settle(world)
    assert len(policy_of(joiner).view.neighbours(joiner.me.node)) == 2


def test_links_to_nowhere_are_no_links() -> None:
    world, hosts = cluster(0)
    before = policy_of(hosts[0])
    odd = (hosts[1].me.node, STRANGER.node)
    hosts[0].perform(said(world, hosts[1], hosts[0], m.LinksOpen(0, odd)))
    go_on(world)
    assert policy_of(hosts[0]) == before


def test_a_wish_of_no_member() -> None:
    world, hosts, joiner, _ = joining_cluster(JoiningState.REQUESTED)
    before = policy_of(hosts[0]).shares
    said(world, joiner, hosts[0], m.ShareWish(True))
    said(world, joiner, hosts[0], m.LeaveRequest(1))
    assert negotiator_of(hosts[0]).leaving == ()
    assert policy_of(hosts[0]).shares == before


# --- the joiner -----------------------------------------------------------------------------------


def test_open_links_twice() -> None:
    world, hosts, joiner, _ = joining_cluster(JoiningState.WAITING)
    again = m.OpenLinks(number_of(joiner) + 1, (STRANGER,))
    wanted = said(world, hosts[0], joiner, again)
    assert not [e for e in wanted if isinstance(e, effects.Dial)]
    assert number_of(joiner) != again.join


def test_a_dial_settles_after_the_join_has_failed() -> None:
    world, hosts = cluster(0)
    world.unreachable = lambda _host, other: other is hosts[2]
    joiner = world.join(9, hosts[0])
    reach(world, joiner, JoiningState.LINKING)
    number = number_of(joiner)
    world.say(hosts[0], joiner, m.JoinAborted(number, joiner.me.node, "enough"))
    assert joiner.joins_failed == ["enough"]
    until = world.now + 1.0
    world.run(lambda: world.now > until)
    assert state_of(joiner) is JoiningState.FAILED
    assert joiner.joins_failed == ["enough"]


def test_an_abort_of_another_join() -> None:
    world, hosts, joiner, _ = joining_cluster(JoiningState.PULLING)
    number = number_of(joiner)
    world.say(hosts[0], joiner, m.JoinAborted(number + 1, joiner.me.node, "another"))
    world.say(hosts[0], joiner, m.JoinAborted(number, hosts[1].me.node, "another's"))
    enter(world, joiner)


@pytest.mark.parametrize("state", [JoiningState.REQUESTED, JoiningState.LINKING])
def test_a_pull_begins_too_early(state: JoiningState) -> None:
    world, hosts, joiner, _ = joining_cluster(state)
    policy = policy_of(hosts[0])
    begins = m.PullBegins(number_of(joiner), 1, *policy.key, bytes(32), 0, b"", ())
    assert said(world, hosts[0], joiner, begins) == []
    manifest = m.Manifest(number_of(joiner), ())
    assert said(world, hosts[0], joiner, manifest) == []
    enter(world, joiner)


def test_another_joins_pull_is_not_ours() -> None:
    world, hosts, joiner, _ = joining_cluster(JoiningState.WAITING)
    policy = policy_of(hosts[0])
    begins = m.PullBegins(number_of(joiner) + 1, 1, *policy.key, bytes(32), 0, b"", ())
    assert said(world, hosts[0], joiner, begins) == []
    enter(world, joiner)


def test_a_pull_that_the_policy_does_not_name() -> None:
    world, hosts, joiner, _ = joining_cluster(JoiningState.WAITING)
    policy = policy_of(hosts[0])
    said(world, hosts[0], joiner, m.PolicyBody(policy))
    begins = m.PullBegins(number_of(joiner), 1, *policy.key, bytes(32), 0, b"", ())
    with pytest.raises(RemoteProtocolError, match="does not name"):
        said(world, hosts[0], joiner, begins)


def test_a_pull_that_waits_for_its_policy() -> None:
    world, hosts = cluster(0)
    joiner = world.join(9, hosts[0])
    world.lose = lambda _s, receiver, message: (
        receiver is joiner
        and isinstance(message, m.PolicyBody)
        and state_of(joiner) is JoiningState.WAITING
        and world.lost < 3
    )
    enter(world, joiner)
    assert world.lost == 3
    go_on(world)


def test_a_manifest_of_another_join() -> None:
    world, hosts, joiner, _ = joining_cluster(JoiningState.PULLING)
    assert said(world, hosts[0], joiner, m.Manifest(number_of(joiner) + 1, ())) == []
    enter(world, joiner)


def test_a_shard_that_was_not_asked_for() -> None:
    world, hosts, joiner, _ = joining_cluster(JoiningState.PULLING)
    event = events.ShardArrived(STRANGER.node, 0, bytes(32))
    with pytest.raises(RemoteProtocolError, match="not asked for"):
        effects_of(world, joiner, event)
    assert effects_of(world, hosts[0], event) == []


@pytest.mark.parametrize("state", ON_THE_WAY)
def test_pulled_bytes_grow_to_the_whole(state: JoiningState) -> None:
    _, _, joiner, _ = joining_cluster(state)
    joining = node_of(joiner).joining
    assert joining is not None
    whole = STATE_ELEMENTS * 16
    done = state in (JoiningState.COPIED, JoiningState.FOLLOWING, JoiningState.CAUGHT_UP)
    assert joining.progress(0.0).pulled_bytes == (whole if done else 0)
    assert not joining.expects(STRANGER.node, 0, 0)


def test_shard_sizes() -> None:
    for size in (1, 1000, 10**6, 10**9, limits.MAX_STATE_BYTES // 1024):
        for rates in ((), (None,), (1e5, None, 1e9), (1e6,) * 7, (1e12, 1.0)):
            shard = shard_size(size, rates)
            assert shard % 64 == 0
            assert shard_count(size, shard) <= limits.MAX_SHARDS
            assert (shard_count(size, shard) - 1) * shard < size <= shard_count(size, shard) * shard


def test_shards_are_small_for_a_slow_source_and_never_too_many() -> None:
    assert shard_size(60 * 10**6, (None, None)) == USUAL_SHARD_BYTES
    assert shard_size(600 * 10**6, (15e6, 12e6)) == LARGEST_SHARD_BYTES
    assert shard_size(60 * 10**6, (None, 1e6)) == 50048
    assert shard_size(60 * 10**6, (15e6, 1.25e6)) == 62528
    assert shard_size(60 * 10**6, (1e8, 1.25e6)) == 62528
    assert shard_size(60 * 10**6, (3e8, 1.25e6)) == 150656


# --- the sources ----------------------------------------------------------------------------------


def held_join() -> tuple[World, Host, Host, int]:
    """Return a world, a source that holds its state for a joiner, the joiner, and the number of the
    join."""
    world, hosts, joiner, _ = joining_cluster(JoiningState.PULLING)
    number = number_of(joiner)
    source = next(h for h in hosts if node_of(h).cycle.holds.joins == (number,))
    return world, source, joiner, number


@pytest.mark.parametrize("shard_bytes", [0, 63, 65, 100])
def test_shards_of_impossible_size(shard_bytes: int) -> None:
    world, source, joiner, number = held_join()
    for message in (
        m.ManifestRequest(number, shard_bytes),
        m.ShardRequest(number, shard_bytes, ()),
    ):
        with pytest.raises(RemoteProtocolError, match="size"):
            said(world, joiner, source, message)


def test_too_many_shards() -> None:
    world, source, joiner, number = held_join()
    node = node_of(source)
    config = node.context.config
    huge = type(config)(config.me, 5, 64 * (limits.MAX_SHARDS + 1), 8, 32, ENDLESS)
    node.context.config = huge
    with pytest.raises(RemoteProtocolError, match="size"):
        said(world, joiner, source, m.ManifestRequest(number, 64))


@pytest.mark.parametrize("shards", [(0, 1, 0), (1024,), (5000, 1)])
def test_shards_that_do_not_exist(shards: tuple[int, ...]) -> None:
    world, source, joiner, number = held_join()
    with pytest.raises(RemoteProtocolError, match="do not exist"):
        said(world, joiner, source, m.ShardRequest(number, 64, shards))


def test_shards_of_the_held_state() -> None:
    world, source, joiner, number = held_join()
    wanted = said(world, joiner, source, m.ShardRequest(number, 64, (0, 1023)))
    at = node_of(source).context.iteration
    assert wanted == [effects.SendShards(joiner.me.node, number, at, 64, (0, 1023))]


def test_no_shards_for_another_join() -> None:
    world, source, joiner, number = held_join()
    assert said(world, joiner, source, m.ShardRequest(number + 1, 64, (0,))) == []
    assert said(world, joiner, source, m.ManifestRequest(number + 1, 64)) == []


def test_a_manifest_that_comes_too_late() -> None:
    world, hosts, joiner, _ = joining_cluster(JoiningState.CAUGHT_UP)
    event = events.ManifestReady(joiner.me.node, number_of(joiner), (bytes(32),))
    enter(world, joiner)
    settle(world)
    assert effects_of(world, hosts[1], event) == []


# --- the trainer ----------------------------------------------------------------------------------


def test_an_answer_that_a_leave_overtook() -> None:
    world = World(0, steps=ENDLESS)
    founder = world.found()
    world.run(lambda: founder.iteration == 3)
    node = node_of(founder)
    node.handle(world.now, events.LeaveWanted())
    world.run(lambda: node.cycle.state is CycleState.OVER)
    iteration = node.context.iteration
    contributed = events.Contributed(iteration, (0,), 1.0, b"", b"", True)
    assert node.handle(world.now, contributed) == []
    assert node.handle(world.now, events.Applied(iteration, b"")) == []
    assert node.context.iteration == iteration


def test_an_update_that_nobody_ordered() -> None:
    world = World(0, steps=ENDLESS)
    founder = world.found()
    world.run(lambda: node_of(founder).cycle.state is CycleState.APPLYING)
    node = node_of(founder)
    before = node.context.iteration
    assert node.handle(world.now, events.Applied(before + 1, b"")) == []
    assert node.context.iteration == before


def test_leaving_twice_is_leaving_once() -> None:
    world = World(0, steps=ENDLESS)
    node = node_of(world.found())
    world.run(lambda: node.cycle.state is CycleState.COMPUTING)
    first = node.handle(world.now, events.LeaveWanted())
    assert [e for e in first if isinstance(e, effects.Depart)]
    node.cycle.leave("left", "")
    assert node.handle(world.now, events.Tick()) == []


def test_releases_are_remembered_within_a_limit() -> None:
    world, source, joiner, number = held_join()
    cycle = node_of(source).cycle
    said(world, joiner, source, m.Pulled(number, 0))
    assert number not in cycle.holds.joins
    for join in range(1000, 1000 + limits.MAX_OPEN_JOINS):
        cycle.released(join)
    assert number in cycle.holds.joins, "the oldest release is forgotten"


def test_whether_a_state_is_read_is_known_before_it_is_made() -> None:
    _, source, _, _ = held_join()
    assert node_of(source).cycle.reads_state(1), "a joiner copies it"
    alone = World(0, steps=ENDLESS)
    node = node_of(alone.found())
    alone.run(lambda: node.cycle.state is CycleState.COMPUTING)
    assert [i for i in range(40) if node.cycle.reads_state(i)] == [9, 19, 29, 39]
    node.context.steps = 27
    assert node.cycle.reads_state(26)
    node.context.policy = None
    assert node.cycle.reads_state(0)


def test_a_cycle_needs_a_policy() -> None:
    world = World(0)
    context: Context = node_of(world.add(0)).context
    debt = TrainerDebt(context, lambda _away: None, lambda: None)
    cycle = Cycle(
        context,
        lambda: (0, 0),
        lambda _old, _new, _why: None,
        debt,
        lambda _nodes: None,
        Copies(context, context.send),
        Mail(context),
    )
    with pytest.raises(AssertionError, match="policy"):
        cycle.start(state_ready=True)


# --- fences ---------------------------------------------------------------------------------------
