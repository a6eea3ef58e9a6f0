"""Which round a node runs, and where it stands in it: what a policy and a fence's decision say.

These functions read and change nothing else; when a round starts is decided in `cycle.py`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, islice
from typing import TYPE_CHECKING

from protocols.cluster.stripes import rooted, towards
from protocols.cluster.ways import Way, turns
from protocols.rounds import control_word, divergence
from protocols.rounds.round import Feed, Lane, RoundSpec, Spread, spread_plan
from protocols.rounds.word_check import policy_parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from protocols.cluster.policy import Policy
    from protocols.member.context import Context
    from protocols.wire.messages import Restart


class Lanes:
    """This node's places on the ways of the policy that was asked for last. They are the same in
    each round of a policy, and to find them takes as long as the ways are many."""

    def __init__(self) -> None:
        self._policy: Policy | None = None
        self._lanes: tuple[Lane, ...] = ()
        self._turns: tuple[int, ...] = ()

    def of(self, policy: Policy, node: bytes) -> tuple[tuple[Lane, ...], tuple[int, ...]]:
        """Return the places of `node` on all ways, and which way each chunk takes."""
        if policy is not self._policy:
            self._policy = policy
            if policy.stripes:
                self._lanes = _stripe_lanes(policy, node)
                self._turns = tuple(range(len(policy.stripes)))
            else:
                self._lanes = tuple(_lane(policy, node, w.up, w.down) for w in policy.ways)
                self._turns = turns([way.weight for way in policy.ways])
        return self._lanes, self._turns


def _lane(policy: Policy, node: bytes, up: bytes, down: bytes) -> Lane:
    """Return the place of `node` in the reduce tree `up` and the spread tree `down`."""
    nodes = policy.view.nodes
    me = nodes.index(node)
    children = tuple(nodes[k] for k, parent in enumerate(up) if parent == me != k)
    to = tuple(nodes[k] for k, parent in enumerate(down) if parent == me != k)
    is_root = up[me] == me
    parent, source = (None, None) if is_root else (nodes[up[me]], nodes[down[me]])
    return Lane(parent, children, source, to)


def _feeds(policy: Policy, node: bytes) -> tuple[Feed, ...]:
    """Return what member `node` forwards to joiners."""
    return tuple(
        Feed(p.joiner.node, p.parent == node, tuple(n == node for n in p.feeders))
        for p in policy.pulls
        if p.is_fed_by(node)
    )


def _stripe_lanes(policy: Policy, node: bytes) -> tuple[Lane, ...]:
    """Return the place of `node` in what each stripe's chunks take: the sums go to the owner along
    one of its ways, from there towards the keepers, and the results to everyone."""
    nodes = policy.view.nodes
    me, numbers = nodes.index(node), {n: k for k, n in enumerate(nodes)}
    tree = bytes(numbers.get(p, k) for k, p in enumerate(policy.parents))
    found: list[Lane] = []
    places: dict[Way, Lane] = {}
    for stripe, way in zip(policy.stripes, _stripe_ways(policy, tree), strict=True):
        owner = stripe.owner
        if way not in places:
            places[way] = _lane(policy, node, way.up, way.down)
        down = way.down
        paths = towards(down, stripe.keepers)
        lane = replace(
            places[way],
            held=True,
            sums_from=nodes[down[me]] if me in paths and me != owner else None,
            sums_to=tuple(nodes[k] for k in paths.get(me, ())),
            keeps=me in stripe.keepers,
        )
        found.append(lane)
    return tuple(found)


def _stripe_ways(policy: Policy, tree: bytes) -> list[Way]:
    """Return the way that each stripe takes.

    Of its owner's ways it takes one that is still free on which the fewest sums are sent until all
    copies have theirs. So each copy has its sum from the owner itself if there is such a way.
    """
    owned: dict[int, list[int]] = {}
    for number, stripe in enumerate(policy.stripes):
        owned.setdefault(stripe.owner, []).append(number)
    found: dict[int, Way] = {}
    sent: dict[tuple[Way, bytes], int] = {}
    for owner, numbers in owned.items():
        free = list(islice(_owner_ways(policy, tree, owner), len(numbers)))
        for number in numbers:
            keepers = policy.stripes[number].keepers
            for way in free:
                if (way, keepers) not in sent:
                    sent[way, keepers] = sum(map(len, towards(way.down, keepers).values()))
            found[number] = min(free, key=lambda way: sent[way, keepers])
            free.remove(found[number])
    return [found[number] for number in range(len(policy.stripes))]


def _owner_ways(policy: Policy, tree: bytes, owner: int) -> Iterator[Way]:
    """Yield, without end, the ways that an owner's stripes take: the policy's ways that have it as
    their root, each as often as its weight says.

    If there is none, that is a star if the owner has a link to each member, since every link then
    carries as little as can be, else the policy's tree, rooted there.
    """
    ways = [way for way in policy.ways if way.root == owner]
    if not ways:
        view = policy.view
        near = view.neighbours(view.nodes[owner])
        is_star = len(near) == len(view.nodes) - 1
        parents = bytes([owner]) * len(view.nodes) if is_star else rooted(tree, owner)
        ways = [Way(parents, parents, 1)]
    return cycle([ways[k] for k in turns([way.weight for way in ways])])


def round_spec(
    context: Context,
    policy: Policy,
    decision: Restart | None,
    iteration: int,
    attempt: int,
    *,
    contributes: bool,
    spread: tuple[Spread, ...],
    silent: tuple[int, ...],
    lanes: Lanes | None = None,
) -> RoundSpec:
    """Return the round of `iteration` and `attempt` under `policy`, as this node has to run it.

    `decision`: the decision of a fence that was acted on last. `spread`: chunks that were reduced
    before this attempt. `silent`: members whose states were found to differ in this iteration.
    Without `lanes` all chunks take the policy's tree, as where nothing is summed.
    """
    node, member, tree = context.node, context.is_member, policy.tree
    pull = policy.pull_of(node)
    parent = tree.parent(node) if member else (pull.parent if pull else None)
    dealt = _dealt(context, policy, decision, iteration, attempt)
    places, turn = lanes.of(policy, node) if lanes is not None and member else ((), ())
    return RoundSpec(
        context.lineage,
        policy.view.number,
        policy.version,
        iteration,
        attempt,
        parent,
        tree.children(node) if member else (),
        _feeds(policy, node) if member else (),
        1 if iteration >= context.steps else context.config.chunks,  # the last one is a farewell
        contributes,
        spread,
        policy.term,
        policy_parts(policy, node, dealt) if member else (),
        divergence.bitmap(silent),
        places,
        turn,
        context.config.window,
        bool(policy.stripes),
        pull.feeders if pull and not member else (),
    )


def kept_chunks(context: Context, decision: Restart) -> tuple[Spread, ...]:
    """Return what this node sends and receives of the chunks that `decision` keeps."""
    policy = decision.policy
    parents = dict(zip(policy.view.nodes, policy.parents, strict=True))
    have = dict(zip(policy.view.nodes, decision.have, strict=True))
    return spread_plan(context.node, parents, have, context.config.chunks)


def finishing_spec(context: Context, decision: Restart, lanes: Lanes | None = None) -> RoundSpec:
    """Return the round that spreads the result of the decision's iteration to the members that lack
    chunks of it; nothing is summed in it. With `lanes`, those of stripes, owners publish the chunks
    that nobody has."""
    spread, at, attempt = kept_chunks(context, decision), decision.iteration, decision.finish
    return round_spec(
        context,
        decision.policy,
        decision,
        at,
        attempt,
        contributes=False,
        spread=spread,
        silent=(),
        lanes=lanes if decision.policy.stripes else None,
    )


def _dealt(
    context: Context, policy: Policy, decision: Restart | None, iteration: int, attempt: int
) -> dict[bytes, tuple[int, ...]] | None:
    """Return node -> its micro-batches in an attempt, None once some were dealt out anew."""
    nodes = policy.view.nodes
    if iteration >= context.steps:
        return dict.fromkeys(nodes, ())
    again = decision is not None and decision.policy.key == policy.key
    if decision is not None and again and iteration == decision.iteration + decision.applied:
        if attempt != decision.redo:
            return None
        works = (control_word.set_bits(work) for work in decision.work)
        return dict(zip(nodes, works, strict=True))
    return None if attempt else {n: policy.micro_batches(n) for n in nodes}
