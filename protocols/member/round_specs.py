"""Which round a node runs, and where it stands in it: what a policy and a fence's decision say.

These functions read and change nothing else; when a round starts is decided in `cycle.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols.rounds import control_word, divergence
from protocols.rounds.round import RoundSpec, Spread, spread_plan
from protocols.rounds.word_check import policy_parts

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy
    from protocols.member.context import Context
    from protocols.wire.messages import Restart


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
) -> RoundSpec:
    """Return the round of `iteration` and `attempt` under `policy`, as this node has to run it.

    `decision`: the decision of a fence that was acted on last. `spread`: chunks that were reduced
    before this attempt. `silent`: members whose states were found to differ in this iteration.
    """
    node, member, tree = context.node, context.is_member, policy.tree
    pull = policy.pull_of(node)
    parent = tree.parent(node) if member else (pull.parent if pull else None)
    dealt = _dealt(context, policy, decision, iteration, attempt)
    return RoundSpec(
        context.lineage,
        policy.view.number,
        policy.version,
        iteration,
        attempt,
        parent,
        tree.children(node) if member else (),
        policy.subscribers(node) if member else (),
        1 if iteration >= context.steps else context.config.chunks,  # the last one is a farewell
        contributes,
        spread,
        policy.term,
        policy_parts(policy, node, dealt) if member else (),
        divergence.bitmap(silent),
    )


def kept_chunks(context: Context, decision: Restart) -> tuple[Spread, ...]:
    """Return what this node sends and receives of the chunks that `decision` keeps."""
    policy = decision.policy
    parents = dict(zip(policy.view.nodes, policy.parents, strict=True))
    have = dict(zip(policy.view.nodes, decision.have, strict=True))
    return spread_plan(context.node, parents, have, context.config.chunks)


def finishing_spec(context: Context, decision: Restart) -> RoundSpec:
    """Return the round that spreads the result of the decision's iteration to the members that lack
    chunks of it; nothing is summed in it."""
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
