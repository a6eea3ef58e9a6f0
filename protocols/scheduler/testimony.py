"""Which reports to a fence can be true, by what the scheduler knows and by what the others report.

A report may name a policy that is newer than the one in force at the scheduler. Such a policy can
be in force somewhere only if a quorum of its predecessor has stored it: of the policy in force at
the scheduler, or of a policy in between that may itself be in force. A report is not believed if
the other reports rule such a quorum out, so that a single member cannot claim whatever it likes.
Counters and bitmaps must be possible, too: members of one view are at most one iteration apart,
since no round completes without all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.view import is_quorum

if TYPE_CHECKING:
    from collections.abc import Mapping

    from protocols.cluster.policy import Electorate, Policy
    from protocols.wire.messages import FenceReport

Key = tuple[int, int]


def fault(
    report: FenceReport,
    own: Policy,
    iteration: int,
    attempt: int,
    chunks: int,
    micro_batches: int,
    newest: int,
) -> str:
    """Return why `report` cannot be true, whatever the other reports say, "" if it can be true.

    `own`, `iteration` and `attempt` are the policy and what was running at the scheduler when the
    fence began; `newest` is the version of its newest policy. `chunks` and `micro_batches` are how
    many the job has.
    """
    if abs(report.iteration - iteration) > 1:
        return "it reports an iteration that no member can be at"
    if report.attempt > attempt + limits.MAX_ATTEMPT_STEP:
        return "it reports an attempt that cannot have come yet"
    if int.from_bytes(report.have, "little") >> chunks:
        return "it reports chunks that there are none of"
    if int.from_bytes(report.working, "little") >> micro_batches:
        return "it reports micro-batches that there are none of"
    if max(report.newest, report.policy.version) > newest + limits.MAX_VERSION_STEP:
        return "it reports a policy that cannot have come yet"
    if sum(report.policy.shares) != micro_batches:
        return "it reports a policy of another job"
    if report.policy.key == own.key and report.policy != own:
        return "it reports another policy of the same version"
    return ""


def may_be_in_force(
    own: Policy, reports: Mapping[bytes, FenceReport], stored: tuple[Electorate, ...]
) -> tuple[Electorate, ...]:
    """Return the electorates of the policies newer than `own` that may be in force somewhere,
    ascending. `stored` are those that are stored at the scheduler itself; they always count. A
    policy that is only reported counts unless too many members of every policy that could have
    preceded it have reported without knowing it (protocol.md, 8.4)."""
    told = [e for r in reports.values() for e in (r.policy.electorate, *r.stored)]
    newer = dict.fromkeys(e for e in (*stored, *told) if e.key > own.key)
    found: list[Electorate] = []
    for e in sorted(newer, key=lambda e: (e.key, e.nodes)):
        if e in stored:
            found.append(e)
            continue
        for before in (own.electorate, *found):
            holders = {
                n: None
                for n in before.nodes
                if n not in reports or e in (reports[n].policy.electorate, *reports[n].stored)
            }
            if before.key < e.key and is_quorum(before.nodes, holders):
                found.append(e)
                break
    return tuple(found)


def contradicting(own: Policy, reports: Mapping[bytes, FenceReport]) -> list[bytes]:
    """Return the reporters that claim to work on micro-batches on which a more credible reporter
    works, since each micro-batch is one member's. A report is the more credible, the less its
    claims go beyond the member's share in the policy `own`."""
    shares: dict[bytes, int] = {}
    for node in own.view.nodes:
        shares[node] = sum(1 << m for m in own.micro_batches(node))

    def beyond(node: bytes) -> tuple[int, bytes]:
        claimed = int.from_bytes(reports[node].working, "little")
        return ((claimed & ~shares.get(node, 0)).bit_count(), node)

    taken: dict[int, int] = {}
    found: list[bytes] = []
    for node in sorted(reports, key=beyond):
        claimed = int.from_bytes(reports[node].working, "little")
        at = reports[node].iteration
        if claimed & taken.get(at, 0):
            found.append(node)
        else:
            taken[at] = taken.get(at, 0) | claimed
    return found
