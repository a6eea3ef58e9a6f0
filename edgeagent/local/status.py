"""Gathers what `edgeagent status` shows of a running agent from the agent's parts.

It only reads. The shape of the result is `status_model.Status`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from edgeagent.local.status_model import (
    AssemblingStatus,
    DividedStatus,
    LinkStatus,
    LocalStepStatus,
    MemberStatus,
    PairStatus,
    PendingStatus,
    Phase,
    PullStatus,
    SourceStatus,
    Status,
    TreeStatus,
)
from protocols import limits
from protocols.cluster.stripes import held_by
from protocols.cluster.view import edge
from protocols.member.joining_table import JoiningState
from protocols.network.measures import KeepingUp

if TYPE_CHECKING:
    from edgeagent.observer import Observer, PullMeter
    from edgeagent.shell import Shell
    from protocols.cluster.life import Life
    from protocols.cluster.policy import Policy
    from protocols.cluster.view import Edge, Member
    from protocols.member.node import Node
    from protocols.wire.messages import JoinProgress


def phase_of(
    life: Life, node: Node | None, *, job_known: bool, must_join: bool, waits: bool = False
) -> Phase:
    """Return how far an agent is. `job_known`: the trainer has told what to train; `must_join`: the
    agent founds no cluster; `waits`: it has founded one in which too few devices are to begin."""
    if life.leaving:
        return "leaving"
    if not job_known:
        return "starting"
    if node is not None and node.context.is_member:
        return "waiting" if waits else "training"
    joining = node.joining if node is not None else None
    on_the_way = joining is not None and joining.on_the_way
    if (
        joining is not None
        and on_the_way
        and not joining.outside
        and (joining.pull or joining.copy)
    ):
        return "joining"  # the others let it in, although it has stood by before
    if life.standby:
        return "standby"
    return "founding" if node is None and not must_join else "joining"


def status_of(
    name: str,
    node_id: bytes,
    cluster: str,
    phase: Phase,
    shell: Shell | None,
    observer: Observer,
    standby: str = "",
) -> Status:
    """Return the status; `shell` is None while the trainer is starting. `standby`: why this device
    stands by."""
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
        local_steps=observer.local_steps,
        local_step=_local_step(observer),
        loss=observer.loss,
        samples_per_second=round(observer.samples_per_second, 3),
        members=[],
        links=[],
        mesh=[],
        reason="",
        paused=observer.pause,
        holds_up="",
        waiting=None,
        advice=None,
        tree=TreeStatus(root="", parents={}),
        pending=[],
        joining=None,
        standby=standby if phase == "standby" else "",
        assembling=None,
        let_in=False,
        divided=None,
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
    status["links"], status["pending"] = _links(shell, observer), _pending(node)
    if context.policy is not None:
        _add_policy(status, shell, node, context.policy)
    joining = node.joining
    if joining is not None and joining.on_the_way:
        if status["standby"] and joining.stands_by and joining.copy is not None:
            lacks = joining.copy.behind
            status["standby"] += f"; it follows from outside, and lacks {lacks} updates so far"
        elif observer.pull is not None:
            status["joining"] = _joining(shell, observer.pull)
    status["let_in"] = node.joining is not None and node.joining.state is JoiningState.WAITING
    assembly = shell.trainer.kept_work.assembly
    if assembly.waits:
        status["assembling"] = AssemblingStatus(wanted=assembly.wanted, here=assembly.here)
    return status


def _local_step(observer: Observer) -> LocalStepStatus | None:
    if observer.local_step is None:
        return None
    done, every = observer.local_step
    return LocalStepStatus(done=done, of=every)


def _add_policy(status: Status, shell: Shell, node: Node, policy: Policy) -> None:
    """Add to `status` what follows from the policy in force."""
    context = node.context
    status["view"], status["policy"] = policy.view.number, policy.version
    leader, status["reason"] = context.election.scheduler, policy.reason
    status["divided"] = _divided(node, policy)
    status["members"] = [
        _member(node, member, share, member.node == leader)
        for member, share in zip(policy.view.members, policy.shares, strict=True)
    ]
    status["waiting"] = waiting = shell.waits.waiting()
    status["advice"] = shell.waits.advice(waiting)
    status["holds_up"] = waiting["node"] if waiting is not None else ""
    status["mesh"] = _mesh(node, policy)
    pairs = zip(policy.view.members, policy.parents, strict=True)
    status["tree"] = TreeStatus(
        root=context.name(policy.tree.root),
        parents={m.name: context.name(parent) for m, parent in pairs if parent},
    )


def _joining(shell: Shell, pull: PullMeter) -> PullStatus:
    rates = {link.peer.name: link.incoming_rate for link in shell.peers.links.values()}
    sources = [
        SourceStatus(
            node=source["node"],
            bytes=source["bytes"],
            seconds=source["seconds"],
            mbit_s=mbit_s(rates.get(source["node"])),
        )
        for source in pull.sources
    ]
    return _pull(sources, pull.bytes, pull.total_bytes, pull.elapsed)


def _told(node: Node, progress: JoinProgress) -> PullStatus:
    """Return how far a joiner's pull is, as the joiner has told the scheduler."""
    seconds = progress.pull_us * 1e-6
    sources = [
        SourceStatus(
            node=node.context.name(source.source),
            bytes=source.pulled_bytes,
            seconds=seconds,
            mbit_s=mbit_s(source.rate or None),
        )
        for source in progress.sources
    ]
    return _pull(sources, progress.pulled_bytes, progress.total_bytes, seconds)


def _pull(sources: list[SourceStatus], pulled: int, total_bytes: int, seconds: float) -> PullStatus:
    rate = pulled / seconds if seconds > 0 else 0.0
    left = max(0, total_bytes - pulled)
    return PullStatus(
        sources=sources,
        bytes=pulled,
        total_bytes=total_bytes,
        seconds=round(seconds, 3),
        seconds_left=round(left / rate, 3) if rate > 0 else None,
    )


def mbit_s(rate: float | None) -> float | None:
    """Return `rate` (bytes/s) in Mbit/s, rounded to three places."""
    return None if rate is None else round(rate * 8e-6, 3)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)


def _member(node: Node, member: Member, share: int, scheduler: bool) -> MemberStatus:
    times, measures = node.monitor.times(member.node), node.monitor.measures
    keeping_up, owed_s = node.monitor.waits_for(member.node)
    policy = node.context.policy
    if keeping_up is KeepingUp.SLOW and policy is not None and len(policy.view.members) == 1:
        keeping_up, owed_s = KeepingUp.PROMPT, 0.0  # no other member waits for it
    return MemberStatus(
        name=member.name,
        id=member.node.hex(),
        share=share,
        scheduler=scheduler,
        me=member.node == node.context.node,
        micro_batch_ms=_ms(measures.speeds.get(member.node)),
        compute_ms=_ms(times.compute_s) if times else None,
        sync_ms=_ms(times.sync_s) if times else None,
        trainer=keeping_up.name.lower(),
        owes_s=round(owed_s, 3),
        most_out_mbit_s=mbit_s(measures.up.get(member.node)),
        most_in_mbit_s=mbit_s(measures.down.get(member.node)),
    )


def _mesh(node: Node, policy: Policy) -> list[PairStatus]:
    known, found = node.monitor.measures.links, []
    parts = _parts(policy)
    for e in policy.view.edges:
        there, back = known.get((e.low, e.high)), known.get((e.high, e.low))
        delays = [rate.delay_s for rate in (there, back) if rate is not None]
        found.append(
            PairStatus(
                a=node.context.name(e.low),
                b=node.context.name(e.high),
                delay_ms=_ms(min(delays)) if delays else None,
                there_mbit_s=mbit_s(there.rate if there else None),
                back_mbit_s=mbit_s(back.rate if back else None),
                in_tree=parts.get(e, 0.0) > 0.0,
                # Where the slots are divided, each owner's part goes along a tree of its own.
                part=None if policy.stripes else round(parts.get(e, 0.0), 3),
            )
        )
    return found


def _parts(policy: Policy) -> dict[Edge, float]:
    """Return which part of the gradients crosses each link: with several ways as their weights
    say, else all of it crosses the links of the tree."""
    nodes = policy.view.nodes
    found: dict[Edge, float] = {}
    if not policy.ways:
        pairs = zip(nodes, policy.parents, strict=True)
        return {edge(node, parent): 1.0 for node, parent in pairs if parent}
    total = sum(way.weight for way in policy.ways)
    for way in policy.ways:
        both = ((k, parent) for tree in (way.up, way.down) for k, parent in enumerate(tree))
        for crossed in {edge(nodes[k], nodes[parent]) for k, parent in both if k != parent}:
            found[crossed] = found.get(crossed, 0.0) + way.weight / total
    return found


def _links(shell: Shell, observer: Observer) -> list[LinkStatus]:
    found = []
    node = shell.node
    known = node.monitor.measures.links if node is not None else {}
    for peer, link in sorted(shell.peers.links.items()):
        delay = observer.delays.get(peer)
        back = known.get((node.context.node, peer)) if node is not None else None
        found.append(
            LinkStatus(
                peer=link.peer.name,
                delay_ms=None if delay is None else round(delay * 1e3, 3),
                sent_bytes=link.bulk_bytes_sent,
                received_bytes=link.bulk_bytes_received,
                in_mbit_s=mbit_s(link.incoming_rate),
                out_mbit_s=mbit_s(back.rate if back is not None else None),
            )
        )
    return found


def _pending(node: Node) -> list[PendingStatus]:
    negotiator, context = node.negotiator, node.context
    if negotiator is None:
        return []
    pending = [
        PendingStatus(
            kind="standby" if join.follows else "scale-out",
            node=join.joiner.name,
            phase="follows from outside" if join.follows else join.state.value,
            pull=None if join.progress is None else _told(node, join.progress),
        )
        for join in negotiator.joins.open.values()
    ]
    for leaver in negotiator.leaving:
        name = context.name(leaver)
        pending.append(PendingStatus(kind="scale-in", node=name, phase="switching", pull=None))
    return pending


def _divided(node: Node, policy: Policy) -> DividedStatus | None:
    """Return who keeps the optimizer's state, None if all members keep all of it."""
    stripes = policy.stripes
    if not stripes:
        return None
    names = [member.name for member in policy.view.members]
    lost, name = node.recovery.missing_holders, node.context.name
    fatal = [[name(n) for n in nodes] for nodes in node.recovery.smallest_losses if nodes]
    return DividedStatus(
        parts=len(stripes),
        copies=node.context.config.copies,
        survives=max(0, len(fatal[0]) - 1) if fatal else 0,
        fatal=fatal,
        learning=len({k for stripe in stripes for k in stripe.learners}),
        held={name: len(held_by(stripes, k)) for k, name in enumerate(names)},
        missing=[name(n) for n in lost],
    )
