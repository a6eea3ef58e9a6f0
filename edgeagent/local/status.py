"""What `edgeagent status` shows of a running agent, gathered from its parts.

Law: reads only; the shape is `status_model.Status`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from edgeagent.local.status_model import (
    JoiningStatus,
    LinkStatus,
    MemberStatus,
    PendingStatus,
    Phase,
    Status,
    TreeStatus,
)
from protocols import limits

if TYPE_CHECKING:
    from edgeagent.observer import Observer
    from edgeagent.shell import Shell
    from protocols.node import Node


def status_of(
    name: str, node_id: bytes, cluster: str, phase: Phase, shell: Shell | None, observer: Observer
) -> Status:
    """Return how things stand; `shell` None while the trainer is starting."""
    status = Status(
        node=name,
        id=node_id.hex(),
        cluster=cluster,
        phase=phase,
        scheduler="",
        term=0,
        view=0,
        policy=0,
        iteration=0,
        steps=0,
        loss=observer.loss,
        samples_per_second=round(observer.samples_per_second, 3),
        members=[],
        links=[],
        tree=TreeStatus(root="", parents={}),
        pending=[],
        joining=None,
        tasks=len(asyncio.all_tasks()),
    )
    node = shell.node if shell is not None else None
    if shell is None or node is None:
        return status
    context = node.context
    status["scheduler"] = context.name(context.election.scheduler) if context.policy else ""
    status["term"] = context.election.term
    status["iteration"] = context.iteration
    status["steps"] = 0 if context.steps == limits.MAX_INTEGER else context.steps
    status["links"] = _links(shell, observer)
    status["pending"] = _pending(node)
    if (policy := context.policy) is not None:
        status["view"], status["policy"] = policy.view.number, policy.version
        leader = context.election.scheduler
        status["members"] = [
            MemberStatus(
                name=member.name,
                id=member.node.hex(),
                share=share,
                scheduler=member.node == leader,
                me=member.node == context.node,
            )
            for member, share in zip(policy.view.members, policy.shares, strict=True)
        ]
        pairs = zip(policy.view.members, policy.parents, strict=True)
        status["tree"] = TreeStatus(
            root=context.name(policy.root),
            parents={m.name: context.name(parent) for m, parent in pairs if parent},
        )
    if node.joining is not None and node.joining.on_the_way and observer.pull is not None:
        pull = observer.pull
        status["joining"] = JoiningStatus(
            sources=pull.sources, bytes=pull.bytes, total_bytes=pull.total_bytes
        )
    return status


def _links(shell: Shell, observer: Observer) -> list[LinkStatus]:
    found = []
    for peer, link in sorted(shell.links.items()):
        delay = observer.delays.get(peer)
        found.append(
            LinkStatus(
                peer=link.peer.name,
                delay_ms=None if delay is None else round(delay * 1e3, 3),
                sent_bytes=link.bulk_bytes_sent,
                received_bytes=link.bulk_bytes_received,
            )
        )
    return found


def _pending(node: Node) -> list[PendingStatus]:
    negotiator, context = node.negotiator, node.context
    if negotiator is None:
        return []
    pending = [
        PendingStatus(kind="scale-out", node=join.joiner.name, phase=join.state.value)
        for join in negotiator.joins.values()
    ]
    for leaver in negotiator.leaving:
        pending.append(PendingStatus(kind="scale-in", node=context.name(leaver), phase="switching"))
    return pending
