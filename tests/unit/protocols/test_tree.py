"""Reduction trees: how one is walked, and that exactly what is none is found to be none."""

from __future__ import annotations

from itertools import product

import pytest

from protocols.cluster.tree import Tree, tree_fault
from protocols.cluster.view import View, edge, make_view
from tests.unit.protocols.records import LINEAGE, member, node, view_of

NODES = tuple(node(k) for k in (1, 2, 3, 4))
#       2
#      / \
#     1   4
#     |
#     3
TREE = Tree(NODES, (node(2), b"", node(1), node(2)))


def test_a_tree_is_walked_up_and_down() -> None:
    assert TREE.root == node(2)
    assert TREE.edges == ((node(1), node(2)), (node(3), node(1)), (node(4), node(2)))
    assert [TREE.parent(n) for n in NODES] == [node(2), None, node(1), node(2)]
    assert TREE.children(node(2)) == (node(1), node(4))
    assert TREE.children(node(3)) == ()
    assert TREE.path(node(3)) == [node(3), node(1), node(2)]
    assert TREE.depth == 2


def is_tree(view: View, parents: dict[bytes, bytes]) -> bool:
    """As simple as can be: whoever goes up from anywhere comes to the one root, along links."""
    if list(parents.values()).count(b"") != 1:
        return False
    for start in view.nodes:
        at = start
        for _ in view.nodes:
            above = parents[at]
            if above == b"":
                break
            if above not in parents or above == at or edge(at, above) not in view.edges:
                return False
            at = above
        else:
            return False
    return True


@pytest.mark.parametrize(
    "view",
    [
        view_of(3),
        make_view(
            LINEAGE,
            1,
            [member(k) for k in (1, 2, 3)],
            [edge(node(1), node(2)), edge(node(2), node(3))],
        ),
    ],
)
def test_exactly_the_trees_along_the_links_have_no_fault(view: View) -> None:
    anything = (b"", *view.nodes, node(9))
    found = 0
    for drawn in product(anything, repeat=3):
        parents = dict(zip(view.nodes, drawn, strict=True))
        assert (tree_fault(view, parents) == "") is is_tree(view, parents), drawn
        found += is_tree(view, parents)
    assert found == (9 if len(view.edges) == 3 else 3)


def test_the_fault_names_a_member() -> None:
    view = view_of(4)
    hanging = {node(1): b"", node(2): node(3), node(3): node(4), node(4): node(2)}
    assert tree_fault(view, hanging) == "n2 is in or below a cycle, under no root"
    assert tree_fault(view, {node(1): b""}) == "n2 has no place in the tree"
    assert tree_fault(view, hanging | {node(9): node(1)}).endswith("is in the tree and no member")
