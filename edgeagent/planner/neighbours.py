"""Which members a joiner links to, and which links the overlay lacks.

Up to `limits.ALL_LINKED_MEMBERS` members are all linked to each other: every link that is missing
lowers how fast gradients can be summed at all, and a link that is open costs little while no plan
uses it. In a larger cluster each member opens `limits.MAX_NEIGHBOURS` links. A user may set another
number for a device (`Member.most_links`), or name its neighbours (`Member.sparse`).

A joiner whose user named no neighbours gets two of them wherever there are two members, so that an
overlay that survives the loss of any one link still does so after the join. No spare link is opened
between members that a user keeps apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, product
from typing import TYPE_CHECKING

from edgeagent.planner.measures import qualities
from protocols import limits
from protocols.cluster.view import Edge, View, edge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocols.network.measures import Measures

LEAST_NEIGHBOURS = 2  # with one link only, its loss would cut the joiner off


def choose_neighbours(
    view: View,
    wanted: tuple[str, ...],
    measures: Measures,
    most: int = 0,
) -> tuple[bytes, ...]:
    """Return the members that a joiner shall link to.

    If members have a name in `wanted`, exactly these are returned, in the order of the view.
    Otherwise the result has at most `most` members (0: as many as is usual), those with the fastest
    links first, because nothing is known yet of the joiner's own links. Members that already have
    as many links as they should, or whose user named their neighbours, are taken only if fewer than
    `LEAST_NEIGHBOURS` others are available. In a large cluster a member should have no more than
    twice the links that it opens itself, since those who join later choose it, too.
    """
    named = tuple(m for m in view.members if m.name in wanted)[: limits.MAX_LINKS_PER_NODE - 1]
    if named:
        return tuple(m.node for m in named)
    overlay = _Overlay(view, measures)
    everybody = len(view.members) < limits.ALL_LINKED_MEMBERS  # with the joiner, one more
    accepted = len(view.members) if everybody else 2 * limits.MAX_NEIGHBOURS
    most = most or (len(view.members) if everybody else limits.MAX_NEIGHBOURS)
    full = {
        m.node: m.sparse or len(overlay.near[m.node]) >= (m.most_links or accepted)
        for m in view.members
    }
    free = sorted((n for n in view.nodes if not full[n]), key=overlay.speed_first)
    rest = sorted((n for n in view.nodes if full[n]), key=overlay.evenly)
    taken = free[:most]
    others = rest[: max(0, min(LEAST_NEIGHBOURS, most) - len(taken))]
    return (*taken, *others)


def spare_links(view: View, measures: Measures) -> tuple[Edge, ...]:
    """Return the links to add, in ascending order, so that losing any one link divides nobody.

    First come the links that make the overlay connected, then those that make it
    two-edge-connected, both as far as `view.apart` allows. Members whose user named their
    neighbours, or wants no more links, get them only if they would be cut off otherwise. Members
    with fewer links are taken first, among these the ones with faster links. In a connected overlay
    in which every pair may be linked, no smaller number of links would do (Eswaran and Tarjan
    1976).
    """
    overlay = _Overlay(view, measures)
    _connect(overlay)
    while _pair_leaves(overlay) or _cover_bridge(overlay):
        pass
    return tuple(sorted(overlay.added, key=lambda e: (e.low, e.high)))


def usual_links(view: View, measures: Measures) -> tuple[Edge, ...]:
    """Return links to add until no two members that may be linked both have fewer than they should.

    These are the links that a joiner would have chosen had it come later. Members whose user named
    their neighbours get none.
    """
    overlay = _Overlay(view, measures)
    everybody = len(view.members) <= limits.ALL_LINKED_MEMBERS
    usual = len(view.members) - 1 if everybody else limits.MAX_NEIGHBOURS
    most = {m.node: m.most_links or usual for m in view.members if not m.sparse}
    for a, b in combinations(sorted(most, key=overlay.speed_first), 2):
        room = len(overlay.near[a]) < most[a] and len(overlay.near[b]) < most[b]
        if room and overlay.may_add(a, b):
            overlay.add(a, b)
    return tuple(overlay.added)


class _Overlay:
    """The members and links of a view, and the links added to them so far."""

    def __init__(self, view: View, measures: Measures) -> None:
        self.nodes = view.nodes
        self.near: dict[bytes, dict[bytes, None]] = {n: {} for n in view.nodes}
        self.added: list[Edge] = []
        self._apart = dict.fromkeys(view.apart)
        self._sparse = {m.node: m.sparse for m in view.members}
        self._most = {m.node: m.most_links or limits.MAX_LINKS_PER_NODE for m in view.members}
        self._quality = qualities(view.nodes, measures)
        for link in view.edges:
            self._link(link)

    def _link(self, link: Edge) -> None:
        self.near[link.low][link.high] = None
        self.near[link.high][link.low] = None

    def add(self, a: bytes, b: bytes) -> None:
        """Add the link between `a` and `b`."""
        self.added.append(edge(a, b))
        self._link(self.added[-1])

    def may_add(self, a: bytes, b: bytes) -> bool:
        """Whether the two are not linked yet and no user keeps them apart."""
        return b not in self.near[a] and edge(a, b) not in self._apart

    def speed_first(self, node: bytes) -> tuple[float, int, bytes]:
        """Sort key: members with fast links first, then those with few links."""
        return (-self._quality[node], len(self.near[node]), node)

    def evenly(self, node: bytes) -> tuple[bool, int, float, bytes]:
        """Sort key: members without named neighbours first, then few links, then fast ones."""
        return (self._sparse[node], len(self.near[node]), -self._quality[node], node)

    def pair(
        self, one: Iterable[bytes], other: Iterable[bytes], *, sparse: bool = False
    ) -> tuple[bytes, bytes] | None:
        """Return the best pair of members, one of each group, that may be linked; None if there is
        none. With `sparse`, members whose user wants no more links are a second choice."""
        for loose in (False, True)[: 1 + sparse]:
            ends = [
                sorted((n for n in group if self._has_room(n, loose)), key=self.evenly)
                for group in (one, other)
            ]
            for a, b in product(*ends):
                if self.may_add(a, b):
                    return a, b
        return None

    def _has_room(self, node: bytes, loose: bool) -> bool:
        links = len(self.near[node])
        wants = links < self._most[node] and not self._sparse[node]
        return links < limits.MAX_LINKS_PER_NODE and (loose or wants)

    def reached(self, start: bytes, but: dict[Edge, None]) -> list[bytes]:
        """Return the nodes that `start` reaches over links not in `but`, `start` itself first."""
        found = {start: None}
        queue = [start]
        for node in queue:
            for other in self.near[node]:
                if other not in found and edge(node, other) not in but:
                    found[other] = None
                    queue.append(other)
        return queue

    def groups(self, but: dict[Edge, None]) -> list[list[bytes]]:
        """Return the connected parts of the overlay without the links in `but`."""
        found: list[list[bytes]] = []
        seen: dict[bytes, None] = {}
        for node in self.nodes:
            if node not in seen:
                found.append(self.reached(node, but))
                seen |= dict.fromkeys(found[-1])
        return found

    def bridges(self) -> dict[Edge, None]:
        """Return the bridges: the links whose loss would divide the overlay.

        A tree edge of a depth-first search is a bridge if no other link leads from below it to
        above it (Tarjan 1974).
        """
        found: dict[Edge, None] = {}
        order: dict[bytes, int] = {}
        lowest: dict[bytes, int] = {}
        for start in self.nodes:
            if start in order:
                continue
            order[start] = lowest[start] = len(order)
            path = [(start, b"", iter(self.near[start]))]
            while path:
                node, above, others = path[-1]
                other = next(others, None)
                if other is None:
                    path.pop()
                    if above:
                        lowest[above] = min(lowest[above], lowest[node])
                        if lowest[node] > order[above]:
                            found[edge(node, above)] = None
                elif other not in order:
                    order[other] = lowest[other] = len(order)
                    path.append((other, node, iter(self.near[other])))
                elif other != above:
                    lowest[node] = min(lowest[node], order[other])
        return found


def _connect(overlay: _Overlay) -> None:
    """Add links between the parts of the overlay until no two parts may be linked any more."""
    groups = overlay.groups({})
    while groups:
        home = groups.pop(0)
        k = 0
        while k < len(groups):
            pair = overlay.pair(home, groups[k], sparse=True)
            if pair is None:
                k += 1
                continue
            overlay.add(*pair)
            home = home + groups.pop(k)
            k = 0  # parts that could not be linked to the smaller part may be linked to this one


def _pair_leaves(overlay: _Overlay) -> bool:
    """Link the far ends of the overlay in pairs; return whether a link was added.

    The parts that remain without the bridges form a tree. With the leaves of that tree in
    depth-first order, leaf k and the leaf half the list further on lie on different sides of some
    bridge, and every bridge lies between two such leaves, so that these links cover all bridges.
    """
    bridges = overlay.bridges()
    groups = overlay.groups(bridges)
    part = {n: k for k, group in enumerate(groups) for n in group}
    beside: list[list[int]] = [[] for _ in groups]
    for link in bridges:
        beside[part[link.low]].append(part[link.high])
        beside[part[link.high]].append(part[link.low])
    added = len(overlay.added)
    for leaves in _leaves(beside):
        half = len(leaves) // 2
        for k in range(len(leaves) - half):
            pair = overlay.pair(groups[leaves[k]], groups[leaves[k + half]])
            if pair is not None:
                overlay.add(*pair)
    return len(overlay.added) > added


def _leaves(beside: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the leaves of each tree of a forest in depth-first order; a lone node is no leaf."""
    found: list[list[int]] = []
    seen: dict[int, None] = {}
    for start in range(len(beside)):
        if start in seen:
            continue
        leaves, stack = [], [start]
        while stack:
            k = stack.pop()
            seen[k] = None
            if len(beside[k]) == 1:
                leaves.append(k)
            stack += [other for other in beside[k] if other not in seen]
        found.append(leaves)
    return found


def _cover_bridge(overlay: _Overlay) -> bool:
    """Add one link that goes around some bridge; return whether one could be added."""
    for link in overlay.bridges():
        near = overlay.reached(link.low, {link: None})
        far = overlay.reached(link.high, {link: None})
        pair = overlay.pair(near, far)
        if pair is not None:
            overlay.add(*pair)
            return True
    return False
