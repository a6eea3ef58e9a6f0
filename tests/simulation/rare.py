"""Histories for combinations that random histories hit too seldom.

Each is for one rule of which the absence is nearly always hidden by other rules. As in `storm.py`,
the seed decides everything, and an `AssertionError` says what broke. The suite plays each history
as it is, and with the planted bug that only this history finds (`HISTORIES`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from protocols.cluster.stripes import OnLost
from protocols.events import LeaveWanted
from protocols.limits import JOIN_ANSWER_SECONDS
from protocols.member.cycle_table import CycleState
from protocols.member.joining_table import JoiningState
from protocols.scheduler.join_cost import JoinWay
from protocols.wire import messages as m
from tests.simulation import storm
from tests.simulation.faults import Intensities
from tests.simulation.harsh import HarshWorld
from tests.simulation.test_failures import cluster
from tests.simulation.test_small_world import finish
from tests.simulation.truth import Truth

if TYPE_CHECKING:
    from protocols.rounds.round import RoundSpec
    from tests.simulation.world import Host, World


def rivals(seed: int) -> None:
    """The scheduler dies, and two heirs that do not hear of each other ask the same voters."""
    dice = random.Random(seed)
    world, hosts = cluster(seed, 5, steps=40)
    world.most_delay = 0.3
    pair = dict.fromkeys(h.me.node for h in dice.sample(hosts[1:], 2))

    def between(sender: Host, receiver: Host, message: m.Message) -> bool:
        asks = isinstance(message, m.VoteRequest)
        return asks and sender.me.node in pair and receiver.me.node in pair

    world.lose = between
    world.later(dice.uniform(0.0, 1.0), lambda: world.kill(hosts[0]))
    end(world)


def a_death_while_work_is_handed_back(seed: int) -> None:
    """A leaver hands its share back, so the result of the round lacks that; in the middle of the
    round a member dies."""
    dice = random.Random(seed)
    world, hosts = cluster(seed, 4, steps=40)
    world.most_delay = dice.choice((0.01, 0.1))
    hosts[2].refuses = True
    victim = dice.choice(hosts)
    hosts[2].handle(LeaveWanted())

    def begun(host: Host, spec: RoundSpec) -> None:
        policy = host.node.context.policy if host.node is not None else None
        if policy is not None and host is victim and host.node is not None:
            leaves = host.node.context.is_leaving(hosts[2].me.node)
            if leaves and spec.attempt == 0 and victim.gone is None:
                world.later(dice.uniform(0.0, 4 * world.most_delay), strike)

    def strike() -> None:
        if victim.gone is None:
            world.kill(victim)

    world.begun = begun  # type: ignore[method-assign]
    end(world)


def leavers_cut_off(seed: int) -> None:
    """Two of four leave, and are parted from the others before they hear of the policy without
    them. One of the leavers has the smallest id, so they are a quorum of the policy that they know.
    A result that the others have applied without its being committed may be made again, so
    `truth.py` judges the states, and not `World.check`."""
    dice = random.Random(seed)
    world, hosts = cluster(seed, 4, steps=40)
    truth = Truth(world)
    world.check = world.changed.clear  # type: ignore[method-assign]
    world.handled = truth.handled  # type: ignore[method-assign]
    world.begun = truth.begun  # type: ignore[method-assign]
    world.completed = truth.completed  # type: ignore[method-assign]
    world.most_delay = dice.choice((0.01, 0.1))
    leavers = [min(hosts, key=lambda h: h.me.node), dice.choice((hosts[1], hosts[3]))]
    rest = [h for h in hosts if h not in leavers]
    assert hosts[0] in rest, "the scheduler stays"

    def unheard(sender: Host, receiver: Host, message: m.Message) -> bool:
        return isinstance(message, m.PolicyBody) and sender in rest and receiver in leavers

    def part() -> None:
        world.unreachable = lambda host, other: (host in leavers) != (other in leavers)
        for a in leavers:
            for b in rest:
                world.cut(a, b)

    world.lose = unheard
    for host in leavers:
        host.handle(LeaveWanted())
    world.before(dice.randint(20, 150), part)
    end(world)


def a_trainer_hangs(seed: int) -> None:
    """One of three trainers does not answer for two minutes, after the first iterations, in which
    trainers are given more time."""
    world = HarshWorld(seed, Intensities(), micro_batches=6, steps=40)
    hosts = [world.start(k, first=k == 0) for k in range(3)]
    world.run(lambda: all(h.is_member and h.trained and h.iteration >= 20 for h in hosts))
    random.Random(seed).choice(hosts).hang(120.0)
    world.run(lambda: all(h.gone is not None for h in hosts))


def a_loss_while_a_device_copies(seed: int) -> None:
    """A member that alone has a part of the optimizer's state is killed while a device copies
    beside the training."""
    dice = random.Random(seed)
    world = HarshWorld(seed, Intensities(), micro_batches=6, steps=120)
    world.stripes, world.on_lost, world.join_way = 3, OnLost.FRESH, JoinWay.BESIDE
    hosts = [world.start(k, first=k == 0) for k in range(3)]
    world.run(lambda: all(h.is_member and h.trained and h.iteration >= 30 for h in hosts))
    newcomer = world.start(3)

    def copies() -> bool:
        joining = newcomer.node.joining if newcomer.node is not None else None
        return joining is not None and joining.state is JoiningState.COPYING

    world.run(lambda: copies() or newcomer.is_member)
    world.later(dice.uniform(0.0, 0.3), lambda: world.kill(hosts[2]))
    world.run(lambda: all(h.gone is not None for h in world.hosts.values()))
    for host in (*hosts[:2], newcomer):
        assert host.gone == "steps", f"{host.me.name} ended with {host.gone}"


def a_death_after_the_last_update(seed: int) -> None:
    """A member that alone has a part of the optimizer's state is killed when others have made the
    last update."""
    dice = random.Random(seed)
    world = HarshWorld(seed, Intensities(), micro_batches=6, steps=40)
    world.stripes = 3
    hosts = [world.start(k, first=k == 0) for k in range(3)]
    dead = dice.choice(hosts)
    world.run(lambda: sum(h.iteration == world.steps for h in hosts) >= 2)
    world.kill(dead)
    world.run(lambda: all(h.gone is not None for h in hosts))
    for host in hosts:
        assert host is dead or host.gone == "steps", f"{host.me.name} ended with {host.gone}"


def a_joiner_dials_again(seed: int) -> None:
    """A joiner loses its link while a member holds its update for it, and has a new one before the
    member's trainer has computed what the round of that update needs."""
    world = HarshWorld(seed, Intensities(), micro_batches=6, steps=80)
    member = world.start(0, first=True)
    world.run(lambda: member.trained and member.iteration >= 30)
    newcomer = world.start(1)

    def follows() -> bool:
        node = member.node
        assert node is not None
        assert node.context.policy is not None
        followers = node.context.policy.subscribers(member.me.node)
        return node.cycle.state is CycleState.COMPUTING and newcomer.me.node in followers

    world.run(lambda: follows() or newcomer.is_member)
    member.hang(random.Random(seed).uniform(1.0, 5.0))
    world.cut(member, newcomer)
    world.run(lambda: member.gone is not None and newcomer.gone is not None)


def a_request_that_nobody_answers(seed: int) -> None:
    """A device asks to join, and no scheduler hears it: the one that its sponsor knows has left,
    while a link to that one's process is still open."""
    world, hosts = cluster(seed, 3, steps=4000)
    world.lose = lambda _sender, _receiver, message: isinstance(message, m.JoinRequest)
    joiner = world.join(9, random.Random(seed).choice(hosts))
    world.run(lambda: bool(joiner.joins_failed), 2 * JOIN_ANSWER_SECONDS)


def end(world: World) -> None:
    """Run to the end, and check the states."""
    world.joins_end = True
    finish(world)


def links_that_stand_still(seed: int) -> None:
    """Paths swallow large packets, so links stand still and are given up, while devices join and
    links are measured anew, after which the scheduler would have the same links again."""
    faults = Intensities(small_frames=10.0, join=3.0, measure=4.0)
    storm.run(seed, faults, storm.Size(nodes=6, steps=150))


# Planted bug -> the history that finds it, for those that random histories do not find.
HISTORIES: dict[str, Callable[[int], None]] = {
    "two_votes": rivals,
    "wait_for_a_trainer_for_ever": a_trainer_hangs,
    "ask_for_links_that_break": links_that_stand_still,
    "wait_for_an_answer_for_ever": a_request_that_nobody_answers,
    "keep_sums_that_lack_work": a_death_while_work_is_handed_back,
    "offer_what_nobody_stores": leavers_cut_off,
    "carry_joins_over_a_loss": a_loss_while_a_device_copies,
    "wait_for_parts_that_nobody_needs": a_death_after_the_last_update,
    "forward_to_whose_join_has_failed": a_joiner_dials_again,
}
