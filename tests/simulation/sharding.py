"""The optimizer's state of a simulated device, where no device keeps all of it.

Element c - 1 of the state stands for the weights of chunk c, and has a number s beside it for their
slots, which only holders keep. An update with the sum g makes s' = 3 s + g and w' = 5 w + s' (both
modulo a prime), so an update that is missed, made twice or made of another sum shows in all that
follow. If all holders of a chunk are lost, s is 0 again (`ANEW`), and w' = w in the update of which
the sum is lost with them (`LOST`); each device notes these losses as a part of its state.
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
ANEW, LOST = "anew", "lost"
Losses = frozenset[tuple[str, int, int]]  # what has happened, in which iteration, to which chunk


def stepped(weight: int, slot: int, total: int) -> tuple[int, int]:
    """Return the weight and the slot after an update with the sum `total`."""
    slot = (3 * slot + total) % PRIME
    return (5 * weight + slot) % PRIME, slot


@cache
def expected(
    iteration: int, micro_batches: int, losses: Losses = frozenset()
) -> tuple[list[int], list[int]]:
    """Return weights and slots at the start of `iteration` if each micro-batch counted once, but
    for the sums that were lost, and no slots began anew but those in `losses`."""
    if iteration == 0:
        return [0] * VECTOR, [0] * VECTOR
    at = iteration - 1
    parts = [contribution(at, m) for m in range(micro_batches)]
    sums = [sum(column) for column in zip(*parts, strict=True)]
    weights, slots = expected(at, micro_batches, frozenset(x for x in losses if x[1] < at))
    slots = [0 if (ANEW, at, c) in losses else s for c, s in enumerate(slots, 1)]
    both = zip(weights, slots, sums, strict=True)
    new = [
        (numbers[0], 0) if (LOST, at, c) in losses else stepped(*numbers)
        for c, numbers in enumerate(both, 1)
    ]
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
        self.losses: Losses = frozenset()  # in the past of this device's state

    def keep(self, iteration: int, chunk: int, total: int, made: Mark) -> None:
        """Keep the sum of a chunk that this device holds."""
        self.sums.setdefault(iteration, {})[chunk] = (total, made)

    @property
    def coming(self) -> tuple[int, ...]:
        """The chunks that were learned for an update to come."""
        return tuple(c for found in self._learned.values() for c in found)

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
        count = host.world.stripes
        slots |= dict.fromkeys(chunks_of(wanted.anew, count), 0)
        for chunk in chunks_of(wanted.lost, count):
            self._put(chunk, host.state[chunk - 1])
        for chunk in chunks_of(wanted.stripes, count):
            if chunk in chunks_of(wanted.lost, count):
                continue
            assert chunk in slots, f"{host.me.name} owns what it does not hold"
            if chunk in self.sums.get(at, {}):  # otherwise a result of it is there already
                total, _ = self.sums[at][chunk]
                self._put(chunk, stepped(host.state[chunk - 1], slots[chunk], total)[0])
                if chunk in chunks_of(wanted.anew, count):
                    host.world.made_anew.add((at, chunk))
        host.handle(events.Published(at, wanted.attempt))

    def _put(self, chunk: int, result: int) -> None:
        """Put a result where this device's own sum has been. A round to which it contributes
        nothing, perhaps that of the next iteration already, does not look there."""
        host = self._host
        host.own[chunk - 1] = result
        reduce = host.reduce
        if reduce is not None and reduce.own is not None and reduce.word and reduce.word.done:
            reduce.own[chunk - 1] = result

    def result(self, iteration: int, chunk: int) -> tuple[int, Mark]:
        """Return the result of a chunk that the trainer has made, and which attempt has made its
        sum."""
        summed = self.sums.get(iteration, {}).get(chunk)
        return self._host.own[chunk - 1], summed[1] if summed is not None else (LOST,)

    def step(
        self,
        iteration: int,
        stripes: tuple[int, ...],
        anew: tuple[int, ...],
        before: list[int],
    ) -> None:
        """Step the slots of `stripes`, after those in `anew` have begun anew. `before`: the weights
        before the update."""
        self._note(iteration, anew, before)
        self.here |= self._learned.pop(iteration, {})
        host, kept = self._host, self.here
        chunks = chunks_of(stripes, host.world.stripes)
        kept |= {c: 0 for c in chunks_of(anew, host.world.stripes) if c in chunks}
        self.here = {}
        for chunk in chunks:
            assert chunk in kept, f"{host.me.name} lacks the slots of chunk {chunk}"
            total, _ = self.sums[iteration][chunk]
            weight, slot = stepped(before[chunk - 1], kept[chunk], total)
            assert weight == host.state[chunk - 1] or host.is_wrong, "another result than mine"
            right = expected(iteration + 1, host.world.micro_batches, self.losses)[1][chunk - 1]
            assert slot == right, f"{host.me.name}: wrong slots of chunk {chunk}"
            self.here[chunk] = slot
        self._learned = {i: x for i, x in self._learned.items() if i > iteration}

    def _note(self, iteration: int, anew: tuple[int, ...], before: list[int]) -> None:
        """Note what of an update, which is in the weights, was lost."""
        host, count = self._host, self._host.world.stripes
        self.losses |= {(ANEW, iteration, c) for c in chunks_of(anew, count)}
        right = expected(iteration + 1, host.world.micro_batches, self.losses)[0]
        policy = host.node.context.policy if host.node is not None else None
        for chunk, (new, old) in enumerate(zip(host.state, before, strict=True), 1):
            if new == right[chunk - 1] or policy is None or host.is_wrong:
                continue
            stripe = policy.stripes[(chunk - 1) % count]
            if new == old:
                assert stripe.anew > iteration, f"{host.me.name} takes no update of chunk {chunk}"
                self.losses |= {(LOST, iteration, chunk)}
            elif stripe.anew > iteration and (iteration, chunk) in host.world.made_anew:
                # Its owner's slots began anew and the owner was lost, both in this iteration, so
                # that the policy says only that they begin anew in the next one, too.
                self.losses |= {(ANEW, iteration, chunk)}
        if host.is_member and host.node is not None and host.node.context.iteration == iteration:
            host.world.losses[host.node.context.lineage, iteration + 1] = self.losses

    def adopt(self, iteration: int) -> None:
        """Begin with the state of another device at the start of `iteration`."""
        host = self._host
        self.here = {}
        if host.node is not None:
            context = host.node.context
            lineages = (context.lineage, *(a.lineage for a in reversed(context.ancestors)))
            known = host.world.losses
            found = [known[x, iteration] for x in lineages if (x, iteration) in known]
            self.losses = found[0] if found else frozenset()

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
    """Return the stripes of which nobody whom `host`, a member, reaches keeps the slots. Who has
    been left out of the newest policy there keeps nothing that counts."""
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
    policies = [h.node.context.policy for h in reached if h.node is not None]
    policy = max((p for p in policies if p is not None), key=lambda p: p.key)
    reached = [h for h in reached if h.me.node in policy.view.nodes]
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
