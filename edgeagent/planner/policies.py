"""Trees and shares made by a user's own function instead of the standard algorithms.

The answer of a custom policy is checked, and if it is not valid, or the policy raises, the standard
plan is used with a reason that says so. The cluster therefore always gets a valid plan.

A package registers a function in the entry point group `edgeagent.policies`:

    [project.entry-points."edgeagent.policies"]
    star = "my_package:star"

    def star(request: PolicyRequest) -> PolicyAnswer:
        hub = request.members[0].node
        parents = {m.node: hub for m in request.members} | {hub: b""}
        return PolicyAnswer(parents, {hub: request.micro_batches}, "all on the first device")

The function is called often, and while peers wait for the plan, so it should be quick. It should
give equal answers to equal requests, because every new answer is a new policy for all devices.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from edgeagent.planner.measures import name_of
from protocols import limits
from protocols.cluster.tree import tree_fault
from protocols.scheduler.planning import Plan

if TYPE_CHECKING:
    from protocols.cluster.view import View
    from protocols.network.measures import Measures, Rate

ENTRY_POINTS = "edgeagent.policies"  # group in which installed packages register their policies
MAX_REASON_BYTES = limits.MAX_TEXT_BYTES // 2  # of a custom policy; the rest is cut off
MAX_FAULT_LETTERS = 200  # of an exception's text in the reason; the rest is cut off


@dataclass(frozen=True, slots=True)
class PolicyMember:
    """One device.

    `node` is its id and `name` its name for people, which two devices may share. `speed` is in
    seconds per micro-batch, None while it is not known. A device that is `away` gets no share.
    """

    node: bytes
    name: str
    speed: float | None
    away: bool


@dataclass(frozen=True, slots=True)
class PolicyLink:
    """One link: the rates measured from `low` to `high` and back, None while not known."""

    low: bytes
    high: bytes
    there: Rate | None
    back: Rate | None


@dataclass(frozen=True, slots=True)
class PolicyRequest:
    """What a custom policy is asked: members and links in ascending order.

    `payload_bytes` is what a round sums over each edge of the tree.
    """

    members: tuple[PolicyMember, ...]
    links: tuple[PolicyLink, ...]
    micro_batches: int
    payload_bytes: float


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """A custom policy's answer.

    `parents` maps every node to its parent in the tree, the root to b"". `shares` maps nodes to
    their number of micro-batches; a node that is missing gets none. `reason` is one line for
    people.
    """

    parents: Mapping[bytes, bytes]
    shares: Mapping[bytes, int]
    reason: str = field(default="")


CustomPolicy: TypeAlias = Callable[[PolicyRequest], PolicyAnswer]


def request_of(
    view: View,
    micro_batches: int,
    away: tuple[bytes, ...],
    measures: Measures,
    payload_bytes: float,
) -> PolicyRequest:
    """Return the request for a custom policy."""
    gone = dict.fromkeys(away)
    members = tuple(
        PolicyMember(m.node, m.name, measures.speeds.get(m.node), m.node in gone)
        for m in view.members
    )
    ends = [(e.low, e.high) for e in view.edges]
    known = measures.links
    links = tuple(PolicyLink(a, b, known.get((a, b)), known.get((b, a))) for a, b in ends)
    return PolicyRequest(members, links, micro_batches, payload_bytes)


def checked(
    answer: PolicyAnswer, view: View, micro_batches: int, away: tuple[bytes, ...] = ()
) -> Plan:
    """Return `answer` as a plan for `view`.

    Raises ValueError, which names the member at fault, unless all of this holds: every member has a
    parent and exactly one is the root; parents are linked to their children and form no cycle;
    shares are whole numbers, not negative, and add up to `micro_batches`; no member in `away` has a
    share (unless all are away).
    """
    if not isinstance(answer, PolicyAnswer):
        raise ValueError(f"the answer is a {type(answer).__name__}, not a PolicyAnswer")
    if fault := tree_fault(view, answer.parents):
        raise ValueError(fault)
    parents = tuple(answer.parents[node] for node in view.nodes)
    shares = _checked_shares(answer.shares, view, micro_batches, away)
    return Plan(parents, shares, _clipped(answer.reason))


def custom_plan(
    policy: CustomPolicy, request: PolicyRequest, view: View, standard: Callable[[], Plan]
) -> Plan:
    """Return the plan that `policy` answers to `request`, which is `request_of` the `view`.

    If the policy raises or its answer is not valid, return the plan of `standard` with a reason
    that says what was wrong.
    """
    away = tuple(m.node for m in request.members if m.away)
    try:
        return checked(policy(request), view, request.micro_batches, away)
    except Exception as error:
        plan = standard()
        what = f"{type(error).__name__}: {error}"[:MAX_FAULT_LETTERS]
        reason = _clipped(f"the custom policy failed ({what}), so the standard one: {plan.reason}")
        return Plan(plan.parents, plan.shares, reason, plan.ways)


def _checked_shares(
    shares: Mapping[bytes, int], view: View, micro_batches: int, away: tuple[bytes, ...]
) -> tuple[int, ...]:
    nodes = view.nodes
    for node in shares:
        if node not in nodes:
            raise ValueError(f"{_strange(node)} has a share and is no member")
    all_away = all(n in away for n in nodes)
    found: list[int] = []
    for node in nodes:
        given, name = shares.get(node, 0), name_of(view, node)
        try:
            share = operator.index(given)
        except TypeError:
            raise ValueError(f"{name}'s share {given!r} is no whole number") from None
        if share < 0:
            raise ValueError(f"{name}'s share {share} is negative")
        if share and node in away and not all_away:
            raise ValueError(f"{name} is away and has a share")
        found.append(share)
    if sum(found) != micro_batches:
        most = name_of(view, nodes[found.index(max(found))])
        raise ValueError(
            f"the shares add up to {sum(found)} of {micro_batches} micro-batches"
            f" (the largest, {max(found)}, is {most}'s)"
        )
    return tuple(found)


def _strange(node: object) -> str:
    return node.hex()[:8] if isinstance(node, bytes) else repr(node)


def _clipped(text: str) -> str:
    """Return `text` as one line that a policy's reason can hold."""
    line = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    whole = line.encode("utf-8", "replace")
    return whole[:MAX_REASON_BYTES].decode("utf-8", "ignore")
