"""The tree along which gradients are summed.

Law: a tree covers every member and runs along links only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protocols.view import View


def shallow_tree(view: View) -> tuple[tuple[bytes, ...], int]:
    """Return (parents in the order of the view's members, depth) of a breadth-first tree.

    The root is the member from which the tree is shallowest, the smallest id among equals. Raises
    ValueError if the links do not connect all members.
    """
    near = {node: view.neighbours(node) for node in view.nodes}
    best: tuple[int, dict[bytes, bytes]] | None = None
    for root in view.nodes:
        found = _breadth_first(near, root)
        if len(found[1]) == len(near) and (best is None or found[0] < best[0]):
            best = found
    if best is None:
        raise ValueError("the links do not connect all members")
    return tuple(best[1][node] for node in view.nodes), best[0]


def _breadth_first(
    near: dict[bytes, tuple[bytes, ...]], root: bytes
) -> tuple[int, dict[bytes, bytes]]:
    parents, depth = {root: b""}, {root: 0}
    queue = [root]
    for node in queue:
        for other in near[node]:
            if other not in parents:
                parents[other] = node
                depth[other] = depth[node] + 1
                queue.append(other)
    return max(depth.values()), parents
