"""The view: who is a member, and which links exist.

A view is immutable and numbered. Members are ordered by node id and links by their (smaller,
larger) ends, so that equal views are equal bytes. A member is a pair (node id, incarnation): a
process that has started again is another member, because it has forgotten what it promised.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from protocols import limits
from protocols.wire.fields import (
    LINEAGE,
    NODE,
    NUMBER,
    VIEW_NUMBER,
    Blob,
    Bool,
    Many,
    Nested,
    Text,
    UInt,
    wire,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterable


@dataclass(frozen=True, slots=True)
class Member:
    """One node as all others know it.

    `numeric_class` names, by a digest, the bits that updates of the job give there, or the kind of
    machine, so members with equal ones round alike; `addresses` are HOST:PORT texts of its peer
    listener; `certificate` is DER. `sparse`: its user named its neighbours, so it gets no other
    links. `most_links`: its user wants no more links than this, 0 if the scheduler may choose how
    many.
    """

    node: bytes = wire(NODE)
    incarnation: int = wire(NUMBER)
    name: str = wire(Text(limits.MAX_NAME_BYTES))
    numeric_class: str = wire(Text(limits.MAX_NUMERIC_CLASS_BYTES))
    addresses: tuple[str, ...] = wire(Many(Text(limits.MAX_ADDRESS_BYTES), limits.MAX_ADDRESSES))
    certificate: bytes = wire(Blob(limits.MAX_CERTIFICATE_BYTES))
    sparse: bool = wire(Bool())
    most_links: int = wire(UInt(limits.MAX_LINKS_PER_NODE), 0)

    def __post_init__(self) -> None:
        if self.certificate and hashlib.sha256(self.certificate).digest() != self.node:
            raise ValueError("a member's id is not that of its certificate")
        if not all(map(_is_address, self.addresses)):
            raise ValueError("a member's address is not HOST:PORT")


@dataclass(frozen=True, slots=True)
class Edge:
    """A link between two members; `low` < `high`."""

    low: bytes = wire(NODE)
    high: bytes = wire(NODE)

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise ValueError("a link's ends must be ordered and different")


def _is_address(text: str) -> bool:
    """Whether `text` is HOST:PORT, with brackets around IPv6, in a form that a resolver takes."""
    host, _, port = text.rpartition(":")
    if not text.isascii() or not text.isprintable() or " " in text:
        return False
    if not port.isdecimal() or not 0 < int(port) < 65536:
        return False
    if host.startswith("["):
        return host.endswith("]") and ":" in host
    labels = host.removesuffix(".").split(".")
    return ":" not in host and all(0 < len(label) < 64 for label in labels)


def edge(a: bytes, b: bytes) -> Edge:
    """Return the link between `a` and `b`, ends in order."""
    return Edge(min(a, b), max(a, b))


@dataclass(frozen=True)  # without slots, as what is looked up at every event is kept in `__dict__`
class View:
    """Members and links under a number; raises ValueError if they do not fit together.

    `apart`: pairs of members that must have no link, because a user wants that or one of the two is
    broken. `expelled`: node ids that a user has removed, the newest last; they are not let in
    again.
    """

    lineage: bytes = wire(LINEAGE)
    number: int = wire(VIEW_NUMBER)
    members: tuple[Member, ...] = wire(Many(Nested(Member), limits.MAX_MEMBERS))
    edges: tuple[Edge, ...] = wire(Many(Nested(Edge)))
    apart: tuple[Edge, ...] = wire(Many(Nested(Edge)))
    expelled: tuple[bytes, ...] = wire(Many(NODE, limits.MAX_EXPELLED))

    def __post_init__(self) -> None:
        nodes = [m.node for m in self.members]
        if not nodes or any(a >= b for a, b in pairwise(nodes)):
            raise ValueError("members must be at least one, ordered and different")
        known = dict.fromkeys(nodes)
        for edges in (self.edges, self.apart):
            ends = [(e.low, e.high) for e in edges]
            if any(a >= b for a, b in pairwise(ends)):
                raise ValueError("links must be ordered and different")
            if any(e.low not in known or e.high not in known for e in edges):
                raise ValueError("a link's ends must be members")
        if any(e in self.apart for e in self.edges):
            raise ValueError("a link between members that are kept apart")
        if any(n in known for n in self.expelled):
            raise ValueError("a member that is expelled")

    @cached_property
    def nodes(self) -> tuple[bytes, ...]:
        """Node ids, ascending."""
        return tuple(m.node for m in self.members)

    @property
    def majority(self) -> int:
        """How many members make a majority."""
        return len(self.members) // 2 + 1

    @cached_property
    def _by_node(self) -> dict[bytes, Member]:
        return {m.node: m for m in self.members}

    def member(self, node: bytes) -> Member | None:
        """Return the member with this id, None if it is not one."""
        return self._by_node.get(node)

    @cached_property
    def _linked(self) -> dict[bytes, tuple[bytes, ...]]:
        near: dict[bytes, list[bytes]] = {n: [] for n in self.nodes}
        for e in self.edges:
            near[e.low].append(e.high)
            near[e.high].append(e.low)
        return {n: tuple(sorted(others)) for n, others in near.items()}

    def neighbours(self, node: bytes) -> tuple[bytes, ...]:
        """Return the nodes linked to `node`, ascending."""
        return self._linked.get(node, ())


def is_quorum(nodes: tuple[bytes, ...], here: Container[bytes]) -> bool:
    """Whether those of `nodes` (ascending) that are `here` decide for all of them: they are a
    majority, or an exact half with the smallest id. Two quorums always share a node."""
    count = sum(n in here for n in nodes)
    return 2 * count > len(nodes) or (2 * count == len(nodes) and nodes[0] in here)


def make_view(
    lineage: bytes,
    number: int,
    members: list[Member],
    edges: Iterable[Edge],
    apart: Iterable[Edge] = (),
    expelled: tuple[bytes, ...] = (),
) -> View:
    """Return the view of these members and links. Members and links are sorted. Duplicate links are
    dropped, and so are links whose ends are no members or are kept apart."""
    nodes = {m.node: m for m in members}
    divided = {(e.low, e.high): e for e in apart if e.low in nodes and e.high in nodes}
    kept = {(e.low, e.high): e for e in edges if e.low in nodes and e.high in nodes}
    return View(
        lineage,
        number,
        tuple(nodes[n] for n in sorted(nodes)),
        tuple(kept[ends] for ends in sorted(kept) if ends not in divided),
        tuple(divided[ends] for ends in sorted(divided)),
        expelled,
    )


def parts(view: View) -> list[tuple[bytes, ...]]:
    """Return the connected parts of `view`, each ascending, the one with the smallest id first."""
    found: list[tuple[bytes, ...]] = []
    left = dict.fromkeys(reversed(view.nodes))  # so that the smallest is taken first
    while left:
        reached = [left.popitem()[0]]
        for node in reached:
            near = [n for n in view.neighbours(node) if n in left]
            reached += near
            for n in near:
                del left[n]
        found.append(tuple(sorted(reached)))
    return found
