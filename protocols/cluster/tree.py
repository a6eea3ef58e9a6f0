"""Reduction trees over the members of a view: what one is, and what is wrong with one that is none.

Sums flow from the leaves of a tree to its root, reduced values back down (`rounds/round.py`). Every
tree is validated here, whether the planner has made it, a user's own policy, or another device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols.cluster.view import View, edge

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Tree:
    """`parents[k]` belongs to `nodes[k]`; the root's parent is b""."""

    nodes: tuple[bytes, ...]
    parents: tuple[bytes, ...]

    @property
    def root(self) -> bytes:
        """The node at which sums are complete."""
        return self.nodes[self.parents.index(b"")]

    @property
    def edges(self) -> tuple[tuple[bytes, bytes], ...]:
        """(child, parent) of every node but the root."""
        return tuple((n, p) for n, p in zip(self.nodes, self.parents, strict=True) if p)

    def parent(self, node: bytes) -> bytes | None:
        """Return the parent of `node`, None for the root."""
        return self.parents[self.nodes.index(node)] or None

    def children(self, node: bytes) -> tuple[bytes, ...]:
        """Return the children of `node` in the order of `nodes`, in which sums are added."""
        return tuple(child for child, parent in self.edges if parent == node)

    def path(self, node: bytes) -> list[bytes]:
        """Return the nodes from `node` up to the root, both included."""
        up = dict(self.edges)
        found = [node]
        while found[-1] in up:
            found.append(up[found[-1]])
        return found

    @property
    def depth(self) -> int:
        """The number of edges between the root and the node farthest below it."""
        return max(len(self.path(n)) for n in self.nodes) - 1


def tree_fault(view: View, parents: Mapping[bytes, bytes]) -> str:
    """Return why `parents` (node -> its parent, b"" for the root) is no tree over all members of
    `view` along its links, in words that name a member; "" if it is one."""
    nodes, links = dict.fromkeys(view.nodes), dict.fromkeys(view.edges)
    if strange := [n for n in parents if n not in nodes]:
        return f"{_name(view, strange[0])} is in the tree and no member"
    for node in nodes:
        if node not in parents:
            return f"{_name(view, node)} has no place in the tree"
        above = parents[node]
        if above == b"":
            continue
        if above not in nodes:
            return f"{_name(view, node)}'s parent {_name(view, above)} is no member"
        if above == node or edge(node, above) not in links:
            return f"{_name(view, node)} has no link to its parent {_name(view, above)}"
    roots = [n for n in nodes if parents[n] == b""]
    if len(roots) > 1:
        return f"{_name(view, roots[0])} and {_name(view, roots[1])} are both roots"
    children: dict[bytes, list[bytes]] = {}
    for node in nodes:
        children.setdefault(parents[node], []).append(node)
    below = list(roots)
    for node in below:
        below += children.get(node, [])
    reached = dict.fromkeys(below)
    lost = [n for n in nodes if n not in reached]
    return f"{_name(view, lost[0])} is in or below a cycle, under no root" if lost else ""


def _name(view: View, node: object) -> str:
    if not isinstance(node, bytes):
        return repr(node)  # what a user's own policy has answered
    member = view.member(node)
    return node.hex()[:8] if member is None else member.name
