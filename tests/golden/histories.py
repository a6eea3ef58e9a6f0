"""Short histories of the most important events; each function returns its history as lines."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from protocols.events import LeaveWanted
from protocols.wire import messages as m
from tests.golden.telling import ToldSearch, ToldWorld

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.host import Host

STEPS = 14


def cluster(size: int, steps: int = STEPS) -> tuple[ToldWorld, list[Host]]:
    """Return a cluster that trains; how it came to be is not written down."""
    world = ToldWorld(1, steps=steps)
    hosts = [world.found()]
    for number in range(1, size):
        hosts.append(world.join(number, hosts[0]))
    links = size * (size - 1) // 2
    world.run(lambda: len(world.members) == size and all(edges(h) == links for h in hosts))
    world.tale.lines.clear()
    return world, hosts


def edges(host: Host) -> int:
    """Return how many links the policy in force names."""
    policy = host.node.context.policy if host.node is not None else None
    return len(policy.view.edges) if policy is not None else 0


def finish(world: ToldWorld) -> list[str]:
    """Run to the last step."""
    world.run(lambda: all(host.gone is not None for host in world.hosts.values()))
    return world.tale.lines


def join() -> list[str]:
    """A device joins one that trains."""
    world = ToldWorld(1, steps=STEPS)
    first = world.found()
    world.run(lambda: first.iteration == 3)
    world.tale.title("n1 is admitted by n0")
    world.join(1, first)
    return finish(world)


def leave() -> list[str]:
    """One of three leaves; it is not the scheduler."""
    world, hosts = cluster(3)
    world.tale.title("n2 leaves")
    hosts[2].handle(LeaveWanted())
    return finish(world)


def hand_over() -> list[str]:
    """The scheduler leaves, and hands its role over first."""
    world, hosts = cluster(3)
    world.tale.title("n0, the scheduler, leaves")
    hosts[0].handle(LeaveWanted())
    return finish(world)


def fail_over() -> list[str]:
    """The scheduler is killed: an election, and then a fence."""
    world, hosts = cluster(3)
    world.tale.title("n0, the scheduler, is killed")
    world.kill(hosts[0])
    return finish(world)


def fence_before_the_result() -> list[str]:
    """A member is killed before any other has the result of the round, so it is summed again."""
    return fence(applied=False)


def fence_after_the_result() -> list[str]:
    """A member is killed when another one has the result of the round, so that result is kept."""
    return fence(applied=True)


def fence(*, applied: bool) -> list[str]:
    """Kill a member at the first moment at which the fence decides so: `applied` as in
    `Restart`."""
    for moment in range(1, 200):
        world, hosts = cluster(3)
        decisions: list[bool] = []

        def see(_sender: Host, _to: Host, message: m.Message, into: list[bool] = decisions) -> bool:
            if isinstance(message, m.Commit):
                into.append(message.restart.applied)
            return False

        world.lose = see
        world.tale.title("n2 is killed")
        world.before(moment, partial(world.kill, hosts[2]))
        lines = finish(world)
        if decisions[:1] == [applied]:
            return lines
    raise AssertionError("no moment leads there")


def fork_and_merge() -> list[str]:
    """A partition divides four devices two and two for a while: both halves go on in lineages of
    their own, and the half that is behind gives way when they meet again."""
    world = ToldSearch(6, steps=900)
    first = world.start(0, first=True)
    for number in (1, 2, 3):
        world.start(number)
    hosts = list(world.hosts.values())
    world.run(lambda: len(world.members) == 4 and edges(first) == 6)
    world.tale.lines.clear()
    world.tale.title("nothing passes between n0, n1 and n2, n3 for 30 s")
    one, other = [h.me.node for h in hosts[:2]], [h.me.node for h in hosts[2:]]
    pairs = [(a, b) for a in one for b in other]
    world.block([*pairs, *((b, a) for a, b in pairs)], 30.0)
    parted = world.now + 31.0
    world.run(lambda: world.now > parted)
    world.tale.title("they are in reach of each other again")
    world.run(lambda: len(world.members) == 4 and len(lineages(hosts)) == 1 and edges(first) == 6)
    return world.tale.lines


def lineages(hosts: list[Host]) -> dict[bytes, None]:
    """Return the lineages of the hosts that have not ended."""
    nodes = [host.node for host in hosts if host.node is not None]
    return dict.fromkeys(node.context.lineage for node in nodes if node.context.is_member)


HISTORIES: dict[str, Callable[[], list[str]]] = {
    "join": join,
    "leave": leave,
    "hand-over": hand_over,
    "fail-over": fail_over,
    "fence-before-the-result": fence_before_the_result,
    "fence-after-the-result": fence_after_the_result,
    "fork-and-merge": fork_and_merge,
}
