"""Who is to hold which stripe next: enough copies of each, and equally many on each member.

Equal arguments give equal answers, and a levelled answer given back in is not changed any more.
Only learning costs bytes; who of a stripe's holders is its owner is free to choose.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.view import edge

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from protocols.cluster.stripes import Stripe
    from protocols.cluster.view import View

# How many stripes are learned under one policy, and how many bytes they may have, because its
# update waits for them.
MOST_LEARNED, MOST_LEARNED_BYTES = 64, 16 << 20


class _Levelling:
    """The stripes of `view`, which change step by step. `stay`: the numbers of the members that may
    hold anything in the end."""

    def __init__(
        self, view: View, stripes: Sequence[Stripe], stay: Sequence[int], copies: int, most: int
    ) -> None:
        self._links = dict.fromkeys(view.edges)
        self._nodes = view.nodes
        self.stay = stay
        self._most = most
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

    def own(self) -> None:
        """Divide ownership equally among the holders; an owner stays one unless that helps."""
        owned = dict.fromkeys(range(len(self._nodes)), 0)
        for holders in self.holders:
            owned[holders[0]] += 1
        changed = True
        while changed:
            changed = False
            for holders in self.holders:
                least = min(holders, key=lambda k: (owned[k], k))
                if owned[holders[0]] - owned[least] >= 2:
                    owned[holders[0]] -= 1
                    owned[least] += 1
                    holders.remove(least)
                    holders.insert(0, least)
                    changed = True

    def teach(self) -> None:
        """Have members learn stripes that have too few holders, then what others hold too much."""
        for s, learners in enumerate(self.learners):  # the holder it was linked to may be gone
            learners[:] = [k for k in learners if self._is_near(s, k)]
        left = self._most - sum(map(len, self.learners))
        for s in range(len(self.holders)):
            while left > 0 and len(self._coming(s)) < self.wanted:
                if (new := self._least(s, self.stay)) is None:
                    break
                self.learners[s].append(new)
                left -= 1
        while left > 0 and self._shift():
            left -= 1

    def _coming(self, s: int) -> list[int]:
        """Those of the holders and learners of a stripe that stay."""
        return [k for k in (*self.holders[s], *self.learners[s]) if k in self.stay]

    def _least(self, s: int, among: Iterable[int]) -> int | None:
        """Return the member with the least to hold that can learn stripe `s`, None if none can."""
        load = self.load()
        able = [k for k in among if self._can_learn(s, k)]
        return min(able, key=lambda k: (load[k], k), default=None)

    def _can_learn(self, s: int, k: int) -> bool:
        return k not in self.holders[s] and k not in self.learners[s] and self._is_near(s, k)

    def _is_near(self, s: int, k: int) -> bool:
        """Whether member `k` is linked to a holder of stripe `s`."""
        nodes = self._nodes
        return any(edge(nodes[h], nodes[k]) in self._links for h in self.holders[s])

    def _shift(self) -> bool:
        """Have one stripe move to a member that holds at least two fewer; return whether one
        does."""
        load = self.load()
        order = sorted(self.stay, key=lambda k: (-load[k], k))
        for high in order:
            for low in (k for k in reversed(order) if load[high] - load[k] >= 2):
                for s, holders in enumerate(self.holders):
                    if high in holders and not self.learners[s] and self._can_learn(s, low):
                        self.learners[s].append(low)
                        return True
        return False


def level(
    view: View,
    stripes: Sequence[Stripe],
    copies: int,
    going: Container[bytes] = (),
    learned: Container[tuple[int, bytes]] = (),
    stripe_bytes: int = 0,
) -> tuple[Stripe, ...]:
    """Return the stripes under the next policy, of which `view` is the view and by which `stripes`
    are numbered.

    Each shall have an owner and `copies` other holders if there are so many members. `going`: the
    members that shall hold nothing any more, as far as others can. `learned`: pairs of a stripe and
    a learner that can be its holder now. `stripe_bytes`: the size of a stripe's slots.
    """
    nodes = view.nodes
    stay = [k for k, node in enumerate(nodes) if node not in going]
    ready: list[Stripe] = []
    for s, stripe in enumerate(stripes):
        new = bytes(k for k in stripe.learners if (s, nodes[k]) in learned)
        rest = bytes(k for k in stripe.learners if k not in new)
        ready.append(replace(stripe, holders=stripe.holders + new, learners=rest))
    most = min(MOST_LEARNED, max(1, MOST_LEARNED_BYTES // max(1, stripe_bytes)))
    found = _Levelling(view, ready, stay, copies, most)
    found.part()
    found.trim()
    found.own()
    found.teach()
    new_ones = zip(ready, found.holders, found.learners, strict=True)
    return tuple(
        replace(stripe, holders=bytes(holders), learners=bytes(learners))
        for stripe, holders, learners in new_ones
    )
