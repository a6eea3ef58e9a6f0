"""Who is to hold which stripe next: enough copies of each, and equally many on each member; and who
of its holders is to own it.

Where that costs nothing, copies are on members of one numeric class, whose slots are equal to the
last bit.

The update of an iteration waits for the slots that are learned in it, so a link is given no more
than it carries meanwhile; the rest follows under later policies.

Equal arguments give equal answers, and a levelled answer given back in is not changed any more.
Only learning costs bytes. Another owner costs none, so owners follow the ways: results are made
where the planner wants sums to be complete.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from protocols import limits

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from protocols.cluster.stripes import Stripe
    from protocols.cluster.view import View
    from protocols.cluster.ways import Way

# How many stripes are learned under one policy, and how many bytes they may have, because its
# update waits for them.
MOST_LEARNED, MOST_LEARNED_BYTES = 64, 16 << 20
# Slots that one link carries under one policy may take a usual step's time, but this in any case,
# because more policies take longer until all copies are there; and only this part of what the link
# carries, because sums are on their way, too.
LEAST_LEARN_S, LEARN_PART = 1.0, 0.5


@dataclass(frozen=True, slots=True)
class Haste:
    """How much may be learned at once. `stripe_bytes`: the size of a stripe's slots, `step_s`: how
    long a step usually takes, both 0 if not known; `rate(a, b)`: bytes/s from member a to b, None
    if not measured."""

    stripe_bytes: int = 0
    step_s: float = 0.0
    rate: Callable[[bytes, bytes], float | None] = lambda _a, _b: None

    @property
    def most(self) -> int:
        """How many stripes may be learned under one policy."""
        return min(MOST_LEARNED, max(1, MOST_LEARNED_BYTES // max(1, self.stripe_bytes)))

    def most_along(self, lender: bytes, learner: bytes) -> int:
        """Return how many of them may come along one link."""
        rate = self.rate(lender, learner)
        if rate is None or not self.stripe_bytes:
            return self.most
        carried = LEARN_PART * rate * max(LEAST_LEARN_S, self.step_s)
        return max(1, min(self.most, int(carried / self.stripe_bytes)))


AT_ONCE = Haste()  # nothing is known


class _Levelling:
    """The stripes of `view`, which change step by step. `stay`: the numbers of the members that may
    hold anything in the end."""

    def __init__(
        self,
        view: View,
        stripes: Sequence[Stripe],
        stay: Sequence[int],
        copies: int,
        haste: Haste,
        late: Container[int] = (),
    ) -> None:
        """`late`: members whose trainers are late or away."""
        self._nodes = view.nodes
        numbers = {node: k for k, node in enumerate(view.nodes)}
        self._near: list[set[int]] = [set() for _ in view.nodes]  # the neighbours of each member
        for link in view.edges:
            low, high = numbers[link.low], numbers[link.high]
            self._near[low].add(high)
            self._near[high].add(low)
        self._classes = [member.numeric_class for member in view.members]
        self.stay = stay
        self._haste = haste
        self._late = late
        self._room: dict[tuple[int, int], int] = {}  # of links: for so many more stripes
        self.wanted = min(copies + 1, len(stay), limits.MAX_HOLDERS)
        self.holders = [list(s.holders) for s in stripes]
        self.learners = [[k for k in s.learners if k in stay] for s in stripes]

    def load(self) -> dict[int, int]:
        """Return how many stripes each member holds or learns, without those that it will give
        up for a learner."""
        found = dict.fromkeys(range(len(self._nodes)), 0)
        for holders, learners in zip(self.holders, self.learners, strict=True):
            for k in (*holders, *learners):
                found[k] += 1
        for holders, learners in zip(self.holders, self.learners, strict=True):
            for _ in range(len(holders) + len(learners) - self.wanted):
                found[max(holders, key=lambda k: (found[k], k))] -= 1
        return found

    def part(self) -> None:
        """Members that go hold only what nobody else does."""
        for holders in self.holders:
            if any(k in self.stay for k in holders):
                holders[:] = [k for k in holders if k in self.stay]

    def trim(self) -> None:
        """Holders beyond those wanted give up what they hold, those with most first."""
        held = dict.fromkeys(range(len(self._nodes)), 0)
        for holders in self.holders:
            for k in holders:
                held[k] += 1
        for holders in self.holders:
            while len(holders) > self.wanted:
                most = max(holders, key=lambda k: (held[k], k))
                holders.remove(most)
                held[most] -= 1

    def teach(self) -> None:
        """Have members learn stripes that have too few holders, then what others hold too much."""
        for s, learners in enumerate(self.learners):  # the holder it was linked to may be gone
            learners[:] = [k for k in learners if self._is_near(s, k)]
        left = self._haste.most
        for s, learners in enumerate(self.learners):
            for k in learners:
                self._take_room(s, k)
                left -= 1
        # First those that only members keep which go: these wait for that.
        for s in sorted(range(len(self.holders)), key=lambda s: bool(self._coming(s))):
            while left > 0 and len(self._coming(s)) < self.wanted:
                new = self._least(s, self.stay)
                if new is None or not self._has_room(s, new):
                    break
                self._teach(s, new)
                left -= 1
        while left > 0 and self._shift():
            left -= 1

    def _teach(self, s: int, k: int) -> None:
        self.learners[s].append(k)
        self._take_room(s, k)

    def _link(self, s: int, k: int) -> tuple[int, int]:
        """Return along which link member `k` gets stripe `s` (`learning.lender`)."""
        return next(h for h in self.holders[s] if h in self._near[k]), k

    def _has_room(self, s: int, k: int) -> bool:
        link = lender, learner = self._link(s, k)
        if link not in self._room:
            most = self._haste.most_along(self._nodes[lender], self._nodes[learner])
            self._room[link] = most
        return self._room[link] > 0

    def _take_room(self, s: int, k: int) -> None:
        if self._has_room(s, k):
            self._room[self._link(s, k)] -= 1

    def _coming(self, s: int) -> list[int]:
        """Those of the holders and learners of a stripe that stay."""
        return [k for k in (*self.holders[s], *self.learners[s]) if k in self.stay]

    def _least(self, s: int, among: Iterable[int]) -> int | None:
        """Return the member with the least to hold that can learn stripe `s`, None if none can."""
        load = self.load()
        able = [k for k in among if self._can_learn(s, k)]
        return min(able, key=lambda k: (load[k], self._is_unlike(s, k), k), default=None)

    def _is_unlike(self, s: int, k: int) -> bool:
        """Whether member `k` may round otherwise than the owner of stripe `s`, so that its copy may
        differ in the last bits."""
        return self._classes[k] != self._classes[self.holders[s][0]]

    def _can_learn(self, s: int, k: int) -> bool:
        if k in self.holders[s] or k in self.learners[s] or not self._is_near(s, k):
            return False
        # A lender whose trainer lacks updates has slots that are too old, and all would wait.
        return self._link(s, k)[0] not in self._late

    def _is_near(self, s: int, k: int) -> bool:
        """Whether member `k` is linked to a holder of stripe `s`."""
        return not self._near[k].isdisjoint(self.holders[s])

    def _shift(self) -> bool:
        """Have one stripe move to a member that holds at least two fewer; return whether one does.
        A member whose links have no room left is not passed over for another that holds more."""
        load = self.load()
        order = sorted(self.stay, key=lambda k: (-load[k], k))
        still = [s for s, learners in enumerate(self.learners) if not learners]
        for low in reversed(order):
            able = [s for s in still if self._can_learn(s, low)]
            waits = False
            for high in (k for k in order if load[k] - load[low] >= 2):
                held = [s for s in able if high in self.holders[s]]
                free = [s for s in held if self._has_room(s, low)]
                if free:
                    self._teach(min(free, key=lambda s: self._is_unlike(s, low)), low)
                    return True
                waits = waits or bool(held)
            if waits:
                break
        return False


def level(
    view: View,
    stripes: Sequence[Stripe],
    copies: int,
    going: Container[bytes] = (),
    learned: Container[tuple[int, bytes]] = (),
    haste: Haste = AT_ONCE,
    ways: Sequence[Way] = (),
    away: Container[bytes] = (),
) -> tuple[Stripe, ...]:
    """Return the stripes under the next policy, of which `view` is the view and by which `stripes`
    are numbered.

    Each shall have `copies` holders beside its owner if there are so many members. `going`: the
    members that shall hold nothing any more, as far as others can. `learned`: pairs of a stripe and
    a learner that can be its holder now. `haste`: how much may be learned at once. `ways`: those of
    the next policy, which owners follow (`owned`). `away`: members whose trainers are late or away,
    so that they own nothing that another can.
    """
    nodes = view.nodes
    stay = [k for k, node in enumerate(nodes) if node not in going]
    ready: list[Stripe] = []
    for s, stripe in enumerate(stripes):
        new = bytes(k for k in stripe.learners if (s, nodes[k]) in learned)
        rest = bytes(k for k in stripe.learners if k not in new)
        ready.append(replace(stripe, holders=stripe.holders + new, learners=rest))
    kept = _Levelling(view, ready, stay, copies, haste)
    kept.part()
    kept.trim()
    # Owners first: a learner gets a stripe from its first holder.
    both = zip(ready, kept.holders, strict=True)
    late = [k for k, node in enumerate(nodes) if node in away]
    led = owned([replace(x, holders=bytes(found)) for x, found in both], ways, late)
    found = _Levelling(view, led, stay, copies, haste, late)
    found.teach()
    return tuple(
        replace(stripe, learners=bytes(learners))
        for stripe, learners in zip(led, found.learners, strict=True)
    )


def owned(
    stripes: Sequence[Stripe], ways: Sequence[Way], away: Container[int] = ()
) -> tuple[Stripe, ...]:
    """Return `stripes`, each with that one of its holders as the owner that brings what members own
    nearest to what `ways` ask of them: as large a part as is complete at the member.

    Without ways all own as many as possible alike. Members `away` own only what nobody else holds.
    An owner stays one unless another is better.
    """
    whole = sum(way.weight for way in ways) or 1
    members = 1 + max((k for stripe in stripes for k in stripe.holders), default=0)
    # How much more than it should a member owns: in parts of the ways, times the stripes.
    beyond = [0] * members
    for way in ways:
        if way.root < members:
            beyond[way.root] -= way.weight * len(stripes)
    for stripe in stripes:
        beyond[stripe.owner] += whole
    for k in range(members):
        if k in away:
            beyond[k] += whole * (2 * len(stripes) + 1)  # more than any other can have
    holders = [list(stripe.holders) for stripe in stripes]
    while path := _handed_on(holders, beyond, whole):
        beyond[holders[path[0][0]][0]] -= whole
        beyond[path[-1][1]] += whole
        for s, to in path:
            holders[s].remove(to)
            holders[s].insert(0, to)
    both = zip(stripes, holders, strict=True)
    return tuple(replace(stripe, holders=bytes(found)) for stripe, found in both)


def _handed_on(
    holders: Sequence[Sequence[int]], beyond: Sequence[int], whole: int
) -> list[tuple[int, int]]:
    """Return pairs of a stripe and its next owner, so that who owns the most beyond what it should
    owns one stripe less, and who owns the least one more; empty if nothing gets nearer by that.

    Whoever holds none of the former's stripes may get one of a third member's, which gets one of
    the former's, and so on.
    """
    owns: dict[int, list[int]] = {}
    for s, found in enumerate(holders):
        owns.setdefault(found[0], []).append(s)
    for first in sorted(owns, key=lambda k: (-beyond[k], k)):
        came: dict[int, tuple[int, int]] = {}  # member -> the stripe that it can get, and whose
        reached = [first]
        for at in reached:
            for s in owns.get(at, ()):
                for k in holders[s]:
                    if k != first and k not in came:
                        came[k] = (s, at)
                        reached.append(k)
        least = min(came, key=lambda k: (beyond[k], k), default=first)
        if beyond[first] - beyond[least] > whole:
            path: list[tuple[int, int]] = []
            while least != first:
                stripe, before = came[least]
                path.append((stripe, least))
                least = before
            return path[::-1]
    return []
