"""Whose orders (fences, decisions and policies) a node accepts, and which of them are possible.

- A member obeys the scheduler of the newest term that it knows, or a scheduler of a later term if
  elections could have led to that term by now and the scheduler is in a view that is stored here: a
  device of another cluster, to which a link has just been opened, has no say in this one.
- It stores a policy only if its scheduler has sent it, or if it has asked for that policy itself,
  and only if the policy fits the job.
- It acts on a decision that keeps it a member only if that is the decision of the fence to which it
  has reported.

A message that merely does not fit the moment (it is late, or was overtaken) is dropped without
blame, because an honest node may have sent it. A message that no correct node could have sent is an
error of its sender (`RemoteProtocolError`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits
from protocols.errors import RemoteProtocolError
from protocols.rounds import control_word

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy
    from protocols.member.context import Context
    from protocols.wire.messages import Restart


def may_order(context: Context, sender: bytes, term: int) -> bool:
    """Whether `sender` may be the scheduler of `term`: it is the known one, or `term` is later than
    the known one and credible. Two schedulers of one term are never obeyed (protocol.md, I4)."""
    election = context.election
    if term == election.term:
        return sender == election.scheduler
    # Whether it may lead is asked first, because the election remembers each term that it is asked
    # about, and those of another cluster, to which a link has just been opened, say nothing here.
    return term > election.term and may_lead(context, sender) and election.is_credible(term)


def may_lead(context: Context, sender: bytes) -> bool:
    """Whether `sender` can have been elected. A joiner, and a member that waits for the body of a
    policy which is in force, do not know all who can."""
    if not context.is_member or (context.asked is not None and context.asked > context.newest_key):
        return True
    return any(sender in policy.view.nodes for policy in context.policies.values())


def may_store(context: Context, sender: bytes, policy: Policy) -> bool:
    """Whether to store a policy's body that comes from `sender`: from any node if this node has
    asked all for that policy, from the one node that it has asked for it, otherwise from its
    scheduler alone, and never one of another lineage or older than the policy in force."""
    if policy.view.lineage != context.lineage:
        return False
    if context.policy is not None and policy.key < context.policy.key:
        return False
    known = context.policies.get(policy.key)
    if policy.key == context.asked or (sender, policy.key) == context.missed:
        return known is None or known == policy  # what is stored here already is never replaced
    return policy.term >= context.election.term and sender == context.election.scheduler


def check_policy(context: Context, policy: Policy) -> None:
    """Raise `RemoteProtocolError` unless `policy` fits this job and its version can have been
    reached by now."""
    _check_work(context, policy)
    newest = context.newest_key
    if policy.version > newest[1] + limits.MAX_VERSION_STEP:
        raise RemoteProtocolError("a policy of a version that cannot have come yet")


def check_welcome(context: Context, policy: Policy, *, is_first: bool) -> None:
    """Raise `RemoteProtocolError` unless a joiner may believe a member that welcomes it with
    `policy`. The first welcome (`is_first`) tells how far the cluster is, so that only the work has
    to fit; later ones cannot be much further."""
    _check_work(context, policy)
    if is_first:
        return
    check_policy(context, policy)
    if policy.term > context.election.term + limits.MAX_TERM_STEP:
        raise RemoteProtocolError("a welcome from a term that cannot have come yet")


def _check_work(context: Context, policy: Policy) -> None:
    if sum(policy.shares) != context.config.micro_batches:
        raise RemoteProtocolError("a policy for another number of micro-batches")
    if len(policy.stripes) != context.config.stripes:
        raise RemoteProtocolError("a policy for another number of stripes")


def check_restart(context: Context, restart: Restart) -> None:
    """Raise `RemoteProtocolError` unless members can go on as `restart` says: it concerns about the
    iteration and attempt that they are in, and deals out each micro-batch exactly once."""
    check_policy(context, restart.policy)
    if abs(restart.iteration - context.iteration) > 1:
        raise RemoteProtocolError("a decision about an iteration that is not this one")
    attempts = context.attempt + limits.MAX_ATTEMPT_STEP
    if max(restart.finish, restart.redo) > attempts:
        raise RemoteProtocolError("a decision about an attempt that cannot have come yet")
    if any(int.from_bytes(have, "little") >> context.config.chunks for have in restart.have):
        raise RemoteProtocolError("a decision about chunks that there are none of")
    total = context.config.micro_batches
    dealt = sorted(m for work in restart.work for m in control_word.set_bits(work))
    if dealt != list(range(total)):
        raise RemoteProtocolError("a decision that does not deal out each micro-batch once")
