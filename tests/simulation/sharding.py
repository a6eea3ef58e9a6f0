"""The optimizer's state of a simulated device, where no device keeps all of it.

Element c - 1 of the state stands for the weights of chunk c, and has a number s beside it for their
slots, which only holders keep. An update with the sum g makes s' = 3 s + g and w' = 5 w + s' (both
modulo a prime), so an update that is missed, made twice or made of another sum shows in all that
follow.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

from protocols import effects, events
from tests.simulation.narrow import LARGE_FRAME
from tests.simulation.numbers import VECTOR, contribution

if TYPE_CHECKING:
    from tests.simulation.host import Host, Mark

PRIME = 1_000_003


def stepped(weight: int, slot: int, total: int) -> tuple[int, int]:
    """Return the weight and the slot after an update with the sum `total`."""
    slot = (3 * slot + total) % PRIME
    return (5 * weight + slot) % PRIME, slot


@cache
def expected(iteration: int, micro_batches: int) -> tuple[list[int], list[int]]:
    """Return weights and slots at the start of `iteration` if each micro-batch counted once."""
    if iteration == 0:
        return [0] * VECTOR, [0] * VECTOR
    parts = [contribution(iteration - 1, m) for m in range(micro_batches)]
    sums = [sum(column) for column in zip(*parts, strict=True)]
    both = zip(*expected(iteration - 1, micro_batches), sums, strict=True)
    new = [stepped(*numbers) for numbers in both]
    return [w for w, _ in new], [s for _, s in new]


def chunks_of(stripes: tuple[int, ...], count: int) -> list[int]:
    """Return the data chunks of these stripes, of which there are `count`."""
    return [c for c in range(1, VECTOR + 1) if (c - 1) % count in stripes]


class Slots:
    """What `host` keeps for its stripes."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.here: dict[int, int] = dict.fromkeys(range(1, VECTOR + 1), 0)  # chunk -> slot
        self.sums: dict[int, dict[int, tuple[int, Mark]]] = {}  # iteration -> chunk -> sum, maker
        self._learned: dict[int, dict[int, int]] = {}  # iteration -> chunk -> slot at its start

    def keep(self, iteration: int, chunk: int, total: int, made: Mark) -> None:
        """Keep the sum of a chunk that this device holds."""
        self.sums.setdefault(iteration, {})[chunk] = (total, made)

    def publish(self, wanted: effects.Publish) -> None:
        """Have the trainer make results. They take the place of this device's own sums, so that a
        node which needed these once more would sum up something else."""
        host = self._host
        work = partial(host.work, partial(self._make, wanted))
        host.soon(host.world.compute(), work)

    def _make(self, wanted: effects.Publish) -> None:
        host, at = self._host, wanted.iteration
        if host.gone is not None or at != host.iteration:
            return  # others have done it in its place meanwhile
        slots = self.here | self._learned.get(at, {})
        for chunk in chunks_of(wanted.stripes, host.world.stripes):
            assert chunk in slots, f"{host.me.name} owns what it does not hold"
            if chunk in self.sums.get(at, {}):  # otherwise a result of it is there already
                total, _ = self.sums[at][chunk]
                host.own[chunk - 1], _ = stepped(host.state[chunk - 1], slots[chunk], total)
                if host.reduce is not None and host.reduce.own is not None:
                    host.reduce.own[chunk - 1] = host.own[chunk - 1]
        host.handle(events.Published(at, wanted.attempt))

    def result(self, iteration: int, chunk: int) -> tuple[int, Mark]:
        """Return the result of a chunk that the trainer has made, and which attempt has made its
        sum."""
        return self._host.own[chunk - 1], self.sums[iteration][chunk][1]

    def step(self, iteration: int, stripes: tuple[int, ...], before: list[int]) -> None:
        """Step the slots of `stripes`. `before`: the weights before the update."""
        self.here |= self._learned.pop(iteration, {})
        host, kept = self._host, self.here
        chunks = chunks_of(stripes, host.world.stripes)
        self.here = {}
        for chunk in chunks:
            assert chunk in kept, f"{host.me.name} lacks the slots of chunk {chunk}"
            total, _ = self.sums[iteration][chunk]
            weight, slot = stepped(before[chunk - 1], kept[chunk], total)
            assert weight == host.state[chunk - 1] or host.is_wrong, "another result than mine"
            right = expected(iteration + 1, host.world.micro_batches)[1][chunk - 1]
            assert slot == right, f"{host.me.name}: wrong slots of chunk {chunk}"
            self.here[chunk] = slot
        self._learned = {i: x for i, x in self._learned.items() if i > iteration}

    def lend(self, wanted: effects.LendStripes) -> None:
        """Send the slots of stripes to a learner."""
        host = self._host
        assert host.iteration == wanted.iteration, "slots lent that are not those asked for"
        for stripe in wanted.stripes:
            found = {c: self.here[c] for c in chunks_of((stripe,), host.world.stripes)}
            at, me = wanted.iteration, host.me.node
            arrives = partial(_arrive, me, at, stripe, found)
            host.world.stream(host, wanted.learner, arrives, LARGE_FRAME)

    def arrived(self, source: bytes, iteration: int, stripe: int, found: dict[int, int]) -> None:
        """Take in the slots of a stripe."""
        host = self._host
        if host.asleep:
            host.waiting.append(partial(self.arrived, source, iteration, stripe, found))
            return
        if host.gone is not None or host.node is None:
            return
        if host.node.cycle.learning.expects(source, iteration, stripe):
            self._learned.setdefault(iteration, {}).update(found)
            host.handle(events.StripeArrived(iteration, stripe))


def _arrive(source: bytes, iteration: int, stripe: int, found: dict[int, int], host: Host) -> None:
    host.slots.arrived(source, iteration, stripe, found)


def lost_stripes(host: Host) -> tuple[int, ...]:
    """Return the stripes of which nobody whom `host`, a member, reaches keeps the slots."""
    world, node = host.world, host.node
    policy = node.context.policy if node is not None and host.is_member else None
    if policy is None:
        return ()
    members = [h for m in policy.view.members if (h := world.hosts.get(m.node)) and h.me == m]
    alive = [h for h in members if h.is_member and h.node]
    alive = [h for h in alive if h.node and h.node.context.lineage == policy.view.lineage]
    reached = [host]
    for here in reached:
        new = [h for h in alive if world.passes(here, h) and world.passes(h, here)]
        reached += [h for h in new if h not in reached]
    lost: list[int] = []
    for s, stripe in enumerate(policy.stripes):
        holders = [policy.view.nodes[k] for k in stripe.holders]
        known = [h for h in reached if h.node and s in h.node.cycle.learning.known]
        if not known and not any(h.me.node in holders for h in reached):
            lost.append(s)
    return tuple(lost)


def holds_alone(host: Host) -> bool:
    """Return whether nobody else holds one of the stripes of `host`, a member."""
    policy = host.node.context.policy if host.node is not None else None
    if policy is None:
        return False
    mine = bytes([policy.view.nodes.index(host.me.node)])
    return any(stripe.holders == mine for stripe in policy.stripes)
