"""Stripes: who keeps the optimizer's state of which chunks, when no device keeps all of it.

The data chunks belong to a fixed number of stripes in turn, so each stripe has a part of every
layer: chunk c, from 1 on, belongs to stripe (c - 1) mod the number of stripes. The holders of a
stripe keep the optimizer's slots of its chunks and receive the sums of their gradients. The first
holder, its owner, makes the new weights of them and sends these to everyone; the others are copies
that can do the same at once if the owner is lost. A learner is becoming a holder: it receives the
sums, and the slots as they are when the policy that names it comes into force.

If all holders of a stripe are lost, the others wait for them, stop, or have the stripe begin anew,
as if the optimizer had never stepped its chunks (`OnLost`). After the last update nobody needs the
slots any more, so the members that are left end without them.

Members are numbered as in the view, so that a stripe is a few bytes on the wire.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.view import edge
from protocols.wire.fields import ITERATION, Blob, wire

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from protocols.cluster.view import View


class OnLost(StrEnum):
    """What a member does if all holders of some stripe are lost for good."""

    # WAIT: until they are back. STOP: it leaves, with what it holds in a file. FRESH: it goes on,
    # and the lost slots begin anew.
    WAIT = "wait"
    STOP = "stop"
    FRESH = "fresh"


@dataclass(frozen=True, slots=True)
class Stripe:
    """The numbers of the members that hold one stripe: its owner, then its copies; and of those
    that learn it. `anew`: the iteration at whose start its slots have last begun anew, because all
    who had held them were lost; 0 if they never have."""

    holders: bytes = wire(Blob(limits.MAX_HOLDERS))
    learners: bytes = wire(Blob(limits.MAX_HOLDERS), b"")
    anew: int = wire(ITERATION, 0)

    @property
    def owner(self) -> int:
        """The number of the member that makes the results of this stripe."""
        return self.holders[0]

    @property
    def keepers(self) -> bytes:
        """The members beside the owner to which the sums go."""
        return self.holders[1:] + self.learners


def stripes_fault(view: View, stripes: Sequence[Stripe]) -> str:
    """Return what is wrong with `stripes` over the members of `view`, in words; "" if nothing
    is."""
    for number, stripe in enumerate(stripes):
        everyone = stripe.holders + stripe.learners
        if not stripe.holders:
            return f"stripe {number} has no holder"
        if len(dict.fromkeys(everyone)) < len(everyone):
            return f"stripe {number} names a member twice"
        if any(k >= len(view.members) for k in everyone):
            return f"stripe {number} names no member"
        for learner in (view.nodes[k] for k in stripe.learners):
            pairs = [edge(learner, view.nodes[k]) for k in stripe.holders]
            if not any(pair in view.edges for pair in pairs):
                return f"stripe {number} has a learner without a link to a holder"
    return ""


def held_by(stripes: Sequence[Stripe], member: int) -> tuple[int, ...]:
    """Return the stripes whose slots the member with this number keeps."""
    return tuple(s for s, stripe in enumerate(stripes) if member in stripe.holders)


def kept_without(stripes: Sequence[Stripe], member: int, others: Sequence[int]) -> bool:
    """Whether each stripe that `member` keeps is kept by one of the `others`, too."""
    return all(
        any(k != member and k in stripes[s].holders for k in others)
        for s in held_by(stripes, member)
    )


def other_holders(view: View, stripes: Sequence[Stripe], node: bytes) -> list[bytes]:
    """Return, for each of the `stripes` that `node` keeps or learns, its other holders."""
    if node not in view.nodes:
        return []
    me = view.nodes.index(node)
    mine = (s.holders for s in stripes if me in s.holders + s.learners)
    return [bytes(k for k in holders if k != me) for holders in mine]


def owned_by(stripes: Sequence[Stripe], member: int) -> tuple[int, ...]:
    """Return the stripes whose results the member with this number makes."""
    return tuple(s for s, stripe in enumerate(stripes) if stripe.owner == member)


def renumbered(
    stripes: Sequence[Stripe], old: Sequence[bytes], new: Sequence[bytes]
) -> tuple[Stripe, ...]:
    """Return the stripes of the members `old` as the members `new` see them: those that are gone
    hold nothing any more, so a copy becomes the owner, and nobody learns. A stripe that nobody in
    `new` holds has no holders."""
    numbers: Mapping[bytes, int] = {node: k for k, node in enumerate(new)}
    found: list[Stripe] = []
    for stripe in stripes:
        stay = (numbers.get(old[k]) for k in stripe.holders)
        found.append(replace(stripe, holders=bytes(k for k in stay if k is not None), learners=b""))
    return tuple(found)


def with_learned(
    stripes: Sequence[Stripe], nodes: Sequence[bytes], learned: Mapping[bytes, Sequence[int]]
) -> tuple[Stripe, ...]:
    """Return the stripes with those of `nodes` that have learned them as further copies. `learned`:
    node -> its stripes."""
    found = [stripe.holders for stripe in stripes]
    for k, node in enumerate(nodes):
        for s in learned.get(node, ()):
            if s < len(found) and k not in found[s]:
                found[s] = (found[s] + bytes([k]))[: limits.MAX_HOLDERS]
    both = zip(stripes, found, strict=True)
    return tuple(replace(stripe, holders=holders, learners=b"") for stripe, holders in both)


def orphans(stripes: Sequence[Stripe]) -> tuple[int, ...]:
    """Return the stripes that nobody holds."""
    return tuple(s for s, stripe in enumerate(stripes) if not stripe.holders)


def smallest_losses(stripes: Sequence[Stripe], here: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the smallest sets of the members `here` with which some stripe would be lost: those
    that alone hold a stripe which no other has fewer holders than. One set, which is empty, if a
    stripe is lost already."""
    kept = dict.fromkeys(tuple(k for k in here if k in stripe.holders) for stripe in stripes)
    fewest = min(map(len, kept))
    return tuple(sorted(members for members in kept if len(members) == fewest))


def alike(view: View) -> tuple[tuple[bytes, ...], ...]:
    """Return the members in groups that round updates alike, the largest group first."""
    groups: dict[str, tuple[bytes, ...]] = {}
    for member in view.members:
        groups[member.numeric_class] = (*groups.get(member.numeric_class, ()), member.node)
    return tuple(sorted(groups.values(), key=lambda nodes: (-len(nodes), nodes)))


def begun_anew(stripes: Sequence[Stripe], iteration: int) -> tuple[int, ...]:
    """Return the stripes whose slots begin anew at the start of `iteration`."""
    return tuple(s for s, stripe in enumerate(stripes) if stripe.anew == iteration > 0)


def taken_over(stripes: Sequence[Stripe], members: int, iteration: int) -> tuple[Stripe, ...]:
    """Return the stripes with a holder for each that nobody holds: that one of so many `members`
    that holds the fewest. The slots of these stripes begin anew at the start of `iteration`."""
    held = [len(held_by(stripes, k)) for k in range(members)]
    found = list(stripes)
    for s in orphans(stripes):
        least = min(range(members), key=lambda k: (held[k], k))
        held[least] += 1
        found[s] = Stripe(bytes([least]), b"", iteration)
    return tuple(found)


def rooted(parents: bytes, root: int) -> bytes:
    """Return the tree `parents` (each member's parent, itself for the root) with another root."""
    turned = bytearray(parents)
    at, before = root, root
    while True:
        after = parents[at]
        turned[at] = before
        if after == at:
            return bytes(turned)
        at, before = after, at


def towards(down: bytes, goals: bytes) -> dict[int, tuple[int, ...]]:
    """Return, for each member on the paths from the root of the spread tree `down` to `goals`, its
    children on them."""
    found: dict[int, dict[int, None]] = {k: {} for k in goals}
    for goal in goals:
        at = goal
        while (above := down[at]) != at:
            found.setdefault(above, {})[at] = None
            at = above
    return {member: tuple(children) for member, children in found.items()}
