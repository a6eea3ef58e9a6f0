"""The policy: how the cluster trains now; all members follow the same one in one iteration.

A policy is immutable and is checked when it is built or received (every member is covered, the tree
has no cycle and uses only existing links, the shares add up), so that whoever holds one may follow
it without further checks. Policies are ordered by their key (term, version).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

from protocols import limits
from protocols.cluster.stripes import Stripe, stripes_fault
from protocols.cluster.tree import Tree, tree_fault
from protocols.cluster.view import Member, View
from protocols.cluster.ways import Way, turns, ways_fault
from protocols.wire.fields import (
    NODE,
    NODE_OR_ALL,
    NUMBER,
    TERM,
    VERSION,
    Bool,
    Many,
    Nested,
    Text,
    UInt,
    wire,
)


@dataclass(frozen=True, slots=True)
class Pull:
    """A joiner's copy of the state, as it is at the start of the policy's first iteration.

    The joiner copies from `sources`, its neighbours, in one of two ways.

    - `beside` False: until the joiner reports that it has everything, the members hold the update
      of that iteration. From that iteration on `parent`, one of the sources, forwards the reduced
      control word to it. The reduced data chunks come from all sources, from each as often as its
      weight in `feeds` says, or from the parent alone if there are no `feeds`.
    - `beside` True: nobody waits. Each source keeps a snapshot of the state and the updates since
      then, from which the joiner copies beside the training. When it has nearly caught up, another
      policy names it again with `beside` False, for the few updates that it still lacks.

    Pulls with one number `together` have begun with one policy, so their joiners copy the same
    state and may exchange it (`member/fellows.py`). Raises ValueError unless the sources are
    different and include `parent`, and `feeds` are empty or one weight for each source, not all 0.
    """

    join: int = wire(NUMBER)
    joiner: Member = wire(Nested(Member))
    sources: tuple[bytes, ...] = wire(Many(NODE, limits.MAX_LINKS_PER_NODE))
    parent: bytes = wire(NODE)
    beside: bool = wire(Bool(), False)
    together: int = wire(NUMBER, 0)
    feeds: tuple[int, ...] = wire(Many(UInt(limits.MAX_FEED_WEIGHT), limits.MAX_LINKS_PER_NODE), ())

    def __post_init__(self) -> None:
        if self.feeds and len(self.feeds) != len(self.sources):
            raise ValueError("a joiner's feeds must be one weight for each source")
        if self.feeds and not 1 <= sum(self.feeds) <= limits.MAX_FEED_WEIGHT:
            raise ValueError("the weights of a joiner's feeds must have a sum within the limit")
        if self.parent not in self.sources:
            raise ValueError("a joiner's parent must be one of its sources")
        if len(dict.fromkeys(self.sources)) < len(self.sources):
            raise ValueError("a joiner's sources must be different")

    @property
    def feeders(self) -> tuple[bytes, ...]:
        """The sources that forward reduced data chunks, in turns: chunk c, from 1 on, comes from
        number (c - 1) modulo their count. The same source may have several turns."""
        if not self.feeds:
            return (self.parent,)
        return tuple(self.sources[k] for k in turns(self.feeds))

    def is_fed_by(self, node: bytes) -> bool:
        """Return whether `node` forwards anything of the rounds to the joiner."""
        weights = dict(zip(self.sources, self.feeds, strict=False))  # none if there are no feeds
        return not self.beside and (node == self.parent or weights.get(node, 0) > 0)


@dataclass(frozen=True, slots=True)
class Electorate:
    """The members of a policy, of which a quorum decides under it: `nodes`, ascending. `term` and
    `version` are the policy's. Raises ValueError if the nodes are not in order."""

    term: int = wire(TERM)
    version: int = wire(VERSION)
    nodes: tuple[bytes, ...] = wire(Many(NODE, limits.MAX_MEMBERS))

    def __post_init__(self) -> None:
        if not self.nodes or any(a >= b for a, b in pairwise(self.nodes)):
            raise ValueError("the members that decide must be ordered and different")

    @property
    def key(self) -> tuple[int, int]:
        """The key of the policy."""
        return (self.term, self.version)


@dataclass(frozen=True, slots=True)
class Policy:
    """A view, the tree over its links, each member's share, and the pulls under way.

    `parents[k]` and `shares[k]` belong to `view.members[k]`; the root's parent is b"". `shares` are
    numbers of micro-batches; member k computes the `shares[k]` micro-batches that follow those of
    the members before it. `reason` says in words why the policy is as it is. Chunks of the gradient
    take the `ways`; the control word, and every chunk if there are no ways, takes the tree. With
    `stripes`, who keeps the optimizer's state of which chunks, each chunk takes the way that has
    its owner as the root, or, if there is none, the tree with that root. Raises ValueError if the
    parts do not fit together.
    """

    term: int = wire(TERM)
    version: int = wire(VERSION)
    view: View = wire(Nested(View))
    parents: tuple[bytes, ...] = wire(Many(NODE_OR_ALL, limits.MAX_MEMBERS))
    shares: tuple[int, ...] = wire(Many(UInt(limits.MAX_MICRO_BATCHES), limits.MAX_MEMBERS))
    pulls: tuple[Pull, ...] = wire(Many(Nested(Pull), limits.MAX_OPEN_JOINS))
    reason: str = wire(Text())
    ways: tuple[Way, ...] = wire(Many(Nested(Way), limits.MAX_WAY_WEIGHT), ())
    stripes: tuple[Stripe, ...] = wire(Many(Nested(Stripe), limits.MAX_STRIPES), ())

    def __post_init__(self) -> None:
        nodes = self.view.nodes
        if len(self.parents) != len(nodes) or len(self.shares) != len(nodes):
            raise ValueError("a policy must cover every member")
        if not 1 <= sum(self.shares) <= limits.MAX_MICRO_BATCHES:
            raise ValueError("a policy's shares must add up to the global batch")
        if fault := tree_fault(self.view, dict(zip(nodes, self.parents, strict=True))):
            raise ValueError(fault)
        if fault := ways_fault(self.view, self.ways) or stripes_fault(self.view, self.stripes):
            raise ValueError(fault)
        for pull in self.pulls:
            if pull.joiner.node in nodes or any(s not in nodes for s in pull.sources):
                raise ValueError("a pull goes from members to a node that is none")
        if len(dict.fromkeys(p.joiner.node for p in self.pulls)) < len(self.pulls):
            raise ValueError("a joiner has one pull")

    @property
    def key(self) -> tuple[int, int]:
        """(term, version), by which a control word names the policy."""
        return (self.term, self.version)

    @property
    def electorate(self) -> Electorate:
        """The electorate of this policy: its key and its members."""
        return Electorate(self.term, self.version, self.view.nodes)

    @property
    def tree(self) -> Tree:
        """The tree of the control word, and of every chunk if there are no ways."""
        return Tree(self.view.nodes, self.parents)

    def micro_batches(self, node: bytes) -> tuple[int, ...]:
        """Return the micro-batch numbers that member `node` computes each iteration."""
        k = self.view.nodes.index(node)
        end = list(accumulate(self.shares))[k]
        return tuple(range(end - self.shares[k], end))

    def pull_of(self, node: bytes) -> Pull | None:
        """Return the pull in which `node` is the joiner, None if there is none."""
        return next((p for p in self.pulls if p.joiner.node == node), None)

    def linked_to(self, node: bytes) -> tuple[bytes, ...]:
        """Return the neighbours of `node` in the view, and the joiners that copy from it."""
        joiners = tuple(p.joiner.node for p in self.pulls if node in p.sources)
        return (*self.view.neighbours(node), *joiners)

    def subscribers(self, node: bytes) -> tuple[bytes, ...]:
        """Return the joiners to which member `node` forwards reduced chunks."""
        return tuple(p.joiner.node for p in self.pulls if p.is_fed_by(node))
