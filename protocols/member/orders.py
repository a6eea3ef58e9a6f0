"""Whose fences, decisions and policies a node acts on.

- A member obeys the scheduler of the newest term that it knows, or a scheduler of a later term if
  that term is credible and the scheduler is in a view that is stored here: a device of another
  cluster, to which a link has just been opened, has no say in this one.
- It stores a policy only if its scheduler has sent it, or if it has asked for it itself, and only
  if the policy fits the job.
- It acts on a decision that keeps it only if that is the decision of the fence it has taken part
  in.

A message that does not fit the moment is dropped, whoever passed it on. A message that cannot be
true is the fault of its sender.
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
    """Whether `sender` may be the scheduler of `term`."""
    election = context.election
    if term == election.term:
        return sender == election.scheduler
    return term > election.term and election.is_credible(term) and _may_lead(context, sender)


def _may_lead(context: Context, sender: bytes) -> bool:
    """Whether `sender` can have been elected. A joiner, and a member that waits for the body of a
    policy which is in force, do not know all who can."""
    if not context.is_member or (context.asked is not None and context.asked > context.newest_key):
        return True
    return any(sender in policy.view.nodes for policy in context.policies.values())


def may_store(context: Context, sender: bytes, policy: Policy) -> bool:
    """Whether a policy's body that comes from `sender` is to be stored: from anybody if this node
    has asked for it, else from its scheduler alone."""
    if policy.view.lineage != context.lineage:
        return False
    if context.policy is not None and policy.key < context.policy.key:
        return False
    if policy.key == context.asked:
        return True
    return policy.term >= context.election.term and sender == context.election.scheduler


def check_policy(context: Context, policy: Policy) -> None:
    """Raise `RemoteProtocolError` unless `policy` can be one of this job, and of this time."""
    if sum(policy.shares) != context.config.micro_batches:
        raise RemoteProtocolError("a policy for another number of micro-batches")
    newest = context.newest_key
    if policy.version > newest[1] + limits.MAX_VERSION_STEP:
        raise RemoteProtocolError("a policy of a version that cannot have come yet")


def check_restart(context: Context, restart: Restart) -> None:
    """Raise `RemoteProtocolError` unless members can go on by `restart`."""
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
