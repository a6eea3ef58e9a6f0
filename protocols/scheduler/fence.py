"""What is decided after a loss: who stays, what is kept, what is done again (protocol.md, 8.4
to 8.6).

    freeze -> report -> decide -> prepare -> commit

- An iteration is done again only by a decision that a quorum has stored. A member that it leaves
  out cannot contribute again without pulling the state.
- A policy that is stored somewhere but in force at no reporter (of a switch, or of the fence
  before) may be in force at a member that is silent. Then a quorum under that policy is needed,
  too, so that nobody goes on under it at the same time.
- If a reporter has the whole result of the iteration, that result is kept, because somebody may
  have applied it; so one lineage has only one result for each iteration.
- `decide` is a pure function: equal reports give equal decisions.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.policy import Electorate, Policy, Pull
from protocols.cluster.stripes import Stripe, orphans, renumbered, taken_over, with_learned
from protocols.cluster.view import Edge, edge, is_quorum, make_view
from protocols.rounds import control_word
from protocols.scheduler import testimony
from protocols.table import Row, StateTable
from protocols.wire.messages import Commit, Fence, FenceReport, Letter, Message, Prepare, Restart

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from protocols.scheduler.planning import Planner

Epoch = tuple[int, int]  # (term, number of the fence in it)


class FenceState(StrEnum):
    """Where a fence stands."""

    # WAITING: all reports are here that will come for now, but those who reported may not decide.
    # PREPARING: members store the decision. COMMITTING: it is chosen, and members act on it.
    REPORTING = "reporting"
    WAITING = "waiting"
    PREPARING = "preparing"
    COMMITTING = "committing"
    DONE = "done"


FENCE_TABLE: StateTable[FenceState] = StateTable(
    "fence (scheduler)",
    Row(
        FenceState.REPORTING,
        "report",
        (FenceState.REPORTING, FenceState.PREPARING, FenceState.WAITING),
    ),
    Row(
        FenceState.REPORTING,
        "time",
        (FenceState.REPORTING, FenceState.PREPARING, FenceState.WAITING),
    ),
    Row(
        FenceState.REPORTING,
        "lost",
        (FenceState.REPORTING, FenceState.PREPARING, FenceState.WAITING),
    ),
    Row(FenceState.WAITING, "report", (FenceState.PREPARING, FenceState.WAITING)),
    Row(FenceState.WAITING, "lost", (FenceState.PREPARING, FenceState.WAITING)),
    Row(FenceState.WAITING, "time", (FenceState.PREPARING, FenceState.WAITING)),
    Row(FenceState.PREPARING, "prepared", (FenceState.PREPARING, FenceState.COMMITTING)),
    Row(FenceState.COMMITTING, "committed", (FenceState.COMMITTING, FenceState.DONE)),
)


@dataclass(frozen=True, slots=True)
class Lost:
    """What is lost. `nodes`: members out of reach that may live; `dead`: members proven dead;
    `links`: broken links between members in reach; `out`: members in reach that must go, because
    two others have accused them."""

    nodes: tuple[bytes, ...] = ()
    dead: tuple[bytes, ...] = ()
    links: tuple[Edge, ...] = ()
    out: tuple[bytes, ...] = ()

    @property
    def all(self) -> tuple[bytes, ...]:
        """All members that are lost for any of these reasons."""
        return (*self.nodes, *self.dead, *self.out)


@dataclass(frozen=True, slots=True)
class LostParts:
    """What becomes of stripes that nobody in reach holds. `begin_anew`: whether they begin anew
    once their holders are given up. `gone_since`: since when members have been out of reach, which
    may be long before a fence opens."""

    begin_anew: bool = False
    gone_since: Mapping[bytes, float] = field(default_factory=dict)


def attempt_id(lineage: bytes, policy: tuple[int, int], attempt: int) -> bytes:
    """Return the 32 bytes that name an attempt in the chain of commit ids; `policy` is the key of
    the policy under which it runs."""
    return hashlib.sha256(lineage + b"%d:%d:%d" % (*policy, attempt)).digest()


class FenceLeader:
    """One fence, on the side of the scheduler that leads it."""

    def __init__(
        self,
        node: bytes,
        epoch: Epoch,
        own: Policy,
        stored: tuple[Electorate, ...],
        lost: Lost,
        chunks: int,
        micro_batches: int,
        steps: int,
        planner: Planner,
        now: float,
        *,
        at: tuple[int, int],
        known: tuple[Electorate, ...] = (),
        pauses: bool = False,
        waited: bool = False,
        parts: LostParts | None = None,
    ) -> None:
        """`own`: the policy in force here; a report may show a newer one. `stored`: the electorates
        of it and of newer policies stored here; `known`: those of all policies stored here, of
        other lineages, too. `steps`: the iteration after which training ends. `at`: the running
        iteration and attempt. `pauses`: never train on without a quorum. `waited`: the election has
        waited for a quorum already, so this fence need not. `parts`: what becomes of stripes whose
        holders are all lost."""
        self.state = FENCE_TABLE.initial
        self.epoch = epoch
        self.restart: Restart | None = None
        self.forks = False
        self.orphans: tuple[int, ...] = ()  # stripes that no reporter holds
        self._node = node
        self._own = own
        self._stored = stored
        self._outside: dict[bytes, None] = {}  # nodes that were asked and have said `Outside`
        self._at = at
        self._known = known
        self._newest = max((e.version for e in known), default=own.version)
        self.disbelieved: dict[bytes, str] = {}  # member whose report cannot be true -> why
        self._told = False  # whether the members left out have been told the decision
        self._lost = lost
        self._chunks = chunks
        self._micro_batches = micro_batches
        self._steps = steps
        self._planner = planner
        self._reports: dict[bytes, FenceReport] = {}
        self._answers: dict[bytes, None] = {}  # members that answered what is repeated at present
        self._repeat_at = now
        self._answer_by = math.inf
        self._silent_at = now + limits.FENCE_SILENT_SECONDS
        self._half_at = now + limits.HALF_WAIT_SECONDS
        again = epoch[1] > 1
        self._patience = limits.FENCE_AGAIN_SECONDS if again else limits.FENCE_REPORT_SECONDS
        self._deadline = now + self._patience
        wait = limits.FENCE_REPORT_SECONDS if waited else limits.PARTITION_WAIT_SECONDS
        self._partition_at = math.inf if pauses else now + wait
        # After the last update a part without a quorum pauses no longer than this.
        self._end_at = now + (limits.FENCE_REPORT_SECONDS if waited else limits.PAUSED_END_SECONDS)
        self._parts, self._began = parts or LostParts(), now

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do although nothing has happened."""
        return None if self.state is FenceState.DONE else self._repeat_at

    def is_overdue(self, now: float) -> bool:
        """Whether members have not stored the decision in time, so that another fence is needed."""
        return self.state is FenceState.PREPARING and now >= self._answer_by

    def report(self, now: float, sender: bytes, message: FenceReport) -> list[Letter]:
        """Take the report of a member, which is frozen now; one that cannot be true is dropped."""
        if not FENCE_TABLE.allows(self.state, "report"):
            return []
        wrong = testimony.fault(
            message, self._own, *self._at, self._chunks, self._micro_batches, self._newest
        )
        if wrong:
            self.disbelieved[sender] = wrong
            self._reports.pop(sender, None)
        else:
            self.disbelieved.pop(sender, None)
            self._reports[sender] = message
        return self._try(now, "report")

    def outside(self, now: float, sender: bytes) -> list[Letter]:
        """A joiner that a stored policy lets in has given its join up, and so promises never to act
        under that policy."""
        if not FENCE_TABLE.allows(self.state, "report"):
            return []
        self._outside[sender] = None
        return self._try(now, "report")

    def prepared(self, now: float, sender: bytes) -> list[Letter]:
        """A member has stored the decision; once enough have, it is chosen."""
        if self.state is not FenceState.PREPARING or self.restart is None:
            return []
        self._answers[sender] = None
        nodes = self.restart.policy.view.nodes
        enough = (
            all(n in self._answers for n in nodes)
            if self.forks
            else self._decides(self._answers) and is_quorum(nodes, self._answers)
        )
        then = FenceState.COMMITTING if enough else FenceState.PREPARING
        self.state = FENCE_TABLE.step(self.state, "prepared", then)
        if not enough:
            return []
        self._answers = {}
        self._repeat_at = now
        return self.tick(now)

    def committed(self, sender: bytes) -> None:
        """A member acts on the decision; once all do, the fence is done."""
        if self.state is FenceState.COMMITTING and self.restart is not None:
            self._answers[sender] = None
            done = all(n in self._answers for n in self.restart.policy.view.nodes)
            then = FenceState.DONE if done else FenceState.COMMITTING
            self.state = FENCE_TABLE.step(self.state, "committed", then)

    def lose(self, now: float, lost: Lost) -> list[Letter]:
        """Replace what is lost, before anything was decided. A member that fell silent has to
        report again, because it may act on something else meanwhile. A member that is back is asked
        at once and given time to report."""
        for node in lost.nodes:
            if node not in self._lost.nodes:
                self._reports.pop(node, None)
        if any(n not in lost.nodes and n not in lost.dead for n in self._lost.nodes):
            self._repeat_at = now
            self._deadline = now + self._patience
        # Who is out of reach since this fence has begun, or again, is waited for from now on.
        gone, before = lost.all, self._parts.gone_since
        since = {n: now for n in before if n not in gone} | {n: before.get(n, now) for n in gone}
        self._parts = replace(self._parts, gone_since=since)
        self._lost = lost
        return self._try(now, "lost") if FENCE_TABLE.allows(self.state, "lost") else []

    def tick(self, now: float) -> list[Letter]:
        """Repeat messages that were not answered, and decide if the time for reports is over."""
        mail: list[Letter] = []
        waiting = self.state is FenceState.WAITING
        if waiting or self.state is FenceState.REPORTING:
            mail += self._try(now, "time")
        if now < self._repeat_at:
            return mail
        self._repeat_at = now + limits.FENCE_REPEAT_SECONDS
        return mail + self._repeat()

    def _repeat(self) -> list[Letter]:
        if self.state in (FenceState.REPORTING, FenceState.WAITING):
            fence = Fence(*self.epoch)
            return [(n, fence) for n in self._asked if self._awaits(n)]
        if self.restart is None or self.state is FenceState.DONE:
            return []
        kind = Prepare if self.state is FenceState.PREPARING else Commit
        message: Message = kind(*self.epoch, self.restart)
        nodes = self.restart.policy.view.nodes
        mail = [(n, message) for n in nodes if n not in self._answers]
        if kind is Commit and not self._told:
            self._told = True
            # A reporter that is to leave may not be in the base any more: it waits frozen, too.
            left = dict.fromkeys((*self.base.view.nodes, *self._reports))
            mail += [(n, message) for n in left if n not in nodes]
        return mail

    def _connected(self, base: Policy) -> list[bytes]:
        """Return the reporters in the view of `base` that have not died since, and that open links
        connect with this node; ascending."""
        gone = (*self._lost.dead, *self._lost.out)
        stay = [n for n in base.view.nodes if n in self._reports and n not in gone]
        reports = {n: self._reports[n] for n in stay}
        if self._node not in reports:
            return []
        near: dict[bytes, list[bytes]] = {n: [] for n in reports}
        for link in open_links(reports):
            near[link.low].append(link.high)
            near[link.high].append(link.low)
        reached = [self._node]
        for at in reached:
            reached += [n for n in near[at] if n not in reached]
        return sorted(reached)

    @property
    def _newer(self) -> tuple[Electorate, ...]:
        """The electorates of newer policies that may be in force somewhere."""
        return testimony.may_be_in_force(self._own, self._reports, self._stored)

    @property
    def base(self) -> Policy:
        """The newest policy in force at this node or at a reporter that can be believed."""
        may_be = self._newer
        told = [r.policy for r in self._reports.values() if r.policy.key > self._own.key]
        policies = [self._own, *(p for p in told if p.electorate in (*may_be, *self._known))]
        return max(policies, key=lambda p: p.key)

    @property
    def _electorates(self) -> tuple[Electorate, ...]:
        """The electorates of which a quorum is needed: that of the base, and those of the newer
        policies that may be in force somewhere."""
        base = self.base
        return (base.electorate, *(e for e in self._newer if e.key > base.key))

    def _disbelieve(self) -> None:
        """Drop reports that the other reports contradict. Called when no more reports are waited
        for, because a later report could still have confirmed an earlier one."""
        may_be = (*self._newer, *self._known)
        for node, report in list(self._reports.items()):
            if report.policy.key > self._own.key and report.policy.electorate not in may_be:
                self.disbelieved[node] = "it reports a policy that cannot be in force"
                del self._reports[node]
        for node in testimony.contradicting(self._own, self._reports):
            self.disbelieved[node] = "it reports micro-batches that another member works on"
            del self._reports[node]

    @property
    def _asked(self) -> tuple[bytes, ...]:
        return tuple(dict.fromkeys(n for e in self._electorates for n in e.nodes))

    def _awaits(self, node: bytes) -> bool:
        silent = node not in self._reports and node not in self._outside
        return silent and node not in self.disbelieved

    def _decides(self, here: Container[bytes]) -> bool:
        """Whether the members `here` may go on in this lineage (protocol.md, 8.4). They must be a
        quorum of the base, and of each newer policy, unless everybody else in it has said that it
        does not act under it. A connection that was reset is no such proof, since a firewall can
        reset one, too."""
        first, *newer = self._electorates
        idle = (*self._reports, *self._outside)
        return is_quorum(first.nodes, here) and all(
            is_quorum(e.nodes, here) or all(n in here or n in idle for n in e.nodes) for e in newer
        )

    def _is_most(self, here: list[bytes]) -> bool:
        """Whether more members are `here` than may be left behind alive. An exact half that decides
        by the tie-break would leave as many behind as go on; of two laptops, the other one. It
        waits first, because a short sleep or a loose cable should cost a pause and no steps."""
        return 2 * len(here) > sum(n not in self._lost.dead for n in self.base.view.nodes)

    def _gives_up(self, now: float, base: Policy, here: list[bytes]) -> bool:
        """Whether those `here` go on without the stripes that none of them holds, since nobody who
        held them will come back with them. If one of them is past the last update, all can have its
        results, and need no slots."""
        nodes, gone_since = base.view.nodes, self._parts.gone_since
        held_by = (nodes[k] for s in self.orphans for k in base.stripes[s].holders)
        long_ago = now - limits.PARTS_WAIT_SECONDS
        gone = all(
            n in self._lost.dead or gone_since.get(n, self._began) <= long_ago for n in held_by
        )
        ends = any(self._reports[n].iteration >= self._steps for n in here)
        return (self._parts.begin_anew or ends) and gone

    def _try(self, now: float, event: str) -> list[Letter]:
        """Decide, if every member has reported or is lost, and those that have may go on."""
        waits = [
            n
            for n in self._asked
            if self._awaits(n)
            and n not in (*self._lost.dead, *self._lost.out)
            and (n not in self._lost.nodes or now < self._silent_at)
        ]
        if waits and now < self._deadline:
            self.state = FENCE_TABLE.step(self.state, event, self.state)
            return []
        # From here on no more reports are waited for, so those that the others contradict can go.
        self._disbelieve()
        base = self.base  # only now: a report that is not believed must not choose it
        here = self._connected(base)
        missing = [n for n in self._asked if n not in here and n not in self._outside]
        quorum = self._decides(dict.fromkeys(here))
        if self._node not in here:  # this node has not frozen yet, or the base has no place for it
            self.state = FENCE_TABLE.step(self.state, event, FenceState.WAITING)
            return []
        proven = all(n in self._lost.dead for n in missing)
        decides = quorum and (now >= self._half_at or self._is_most(here))
        self.orphans = orphans(_held(base, self._reports, here))
        is_lacking = bool(self.orphans) and not self._gives_up(now, base, here)
        # If one has the last update the others finish it, and nothing is trained any more.
        ends = any(self._reports[n].iteration >= self._steps for n in here)
        until = min(self._partition_at, self._end_at) if ends else self._partition_at
        if is_lacking or (not decides and not proven and now < until):
            self.state = FENCE_TABLE.step(self.state, event, FenceState.WAITING)
            return []
        self.forks = not quorum
        self.restart = decide(
            base,
            {n: self._reports[n] for n in here},
            self.epoch,
            self._chunks,
            self._micro_batches,
            self._planner,
            self._node,
            forks=self.forks,
        )
        self.state = FENCE_TABLE.step(self.state, event, FenceState.PREPARING)
        self._answers = {}
        self._repeat_at = now
        self._answer_by = now + self._patience
        return self.tick(now)


def open_links(reports: dict[bytes, FenceReport]) -> list[Edge]:
    """Return the links that both ends report open."""
    pairs = [(a, b) for a, r in reports.items() for b in r.links if b in reports and a < b]
    return [edge(a, b) for a, b in pairs if a in reports[b].links]


def decide(
    base: Policy,
    reports: dict[bytes, FenceReport],
    epoch: Epoch,
    chunks: int,
    micro_batches: int,
    planner: Planner,
    leader: bytes,
    *,
    forks: bool,
) -> Restart:
    """Return how the reporters go on (protocol.md, 8.5)."""
    members = [m for m in base.view.members if m.node in reports]
    lineage = base.view.lineage
    if forks:
        mark = b"%d:%d:%d" % (base.view.number, *epoch)
        # The leader and the epoch are in it, so that no two forks have the same lineage.
        lineage = hashlib.sha256(lineage + leader + mark).digest()[: limits.LINEAGE_BYTES]
    links, apart, expelled = open_links(reports), base.view.apart, base.view.expelled
    view = make_view(lineage, base.view.number + 1, members, links, apart, expelled)
    stay = {n: reports[n] for n in view.nodes}
    plan = planner.plan(view, micro_batches, ())
    version = max(base.version, *(r.newest for r in stay.values())) + 1
    stripes = _held(base, stay, view.nodes)
    # All members are at `first` or one after it. The result of `first` exists if one has applied it
    # or has all of its chunks; then it is finished, and the iteration after it is done again. Where
    # chunks have holders, the reduced control word shows that the sums lie at all of these, of
    # which each stripe still has one, so the word alone is enough to finish the result.
    first = min(r.iteration for r in stay.values())
    newest = max(r.attempt for r in stay.values() if r.iteration == first)
    everything = control_word.bits(tuple(range(chunks)))
    have = {n: _has(r, first, newest, everything) for n, r in stay.items()}
    needed = 1 if stripes else int.from_bytes(everything, "little")
    enough = {n: int.from_bytes(have[n], "little") & needed == needed for n in view.nodes}
    holder = next((n for n in view.nodes if enough[n]), None)
    ahead = [r for r in stay.values() if r.iteration > first]
    applied = holder is not None
    name = _name_of(stay[holder], first) if holder is not None else bytes(32)
    if applied and _lacks_sums(stripes, have.values(), chunks):
        # Somebody who was lost may have the update with these sums, so this is another one.
        name = hashlib.sha256(name + attempt_id(lineage, epoch, newest)).digest()
    # The attempt that is done again gets a larger number than any that a reporter has had of that
    # iteration, so that chunks of two attempts are never taken for one.
    again = ahead if applied else list(stay.values())
    redo = max((r.attempt + 1 for r in again), default=0)
    at = first + 1 if applied else first
    pulls = _carried(base, stay, stripes)
    stripes = taken_over(stripes, len(view.nodes), at)  # after the last update nothing comes of it
    whole_plan = (plan.parents, plan.shares, pulls, plan.reason, (), stripes)
    policy = Policy(epoch[0], version, view, *whole_plan)
    # Work of an iteration that is finished does not count for the next one.
    working = {n: r.working if r.iteration == at else b"" for n, r in stay.items()}
    work = share_out(view.nodes, working, plan.shares, micro_batches)
    return Restart(
        policy,
        first,
        applied,
        newest + 1,
        redo,
        name,
        tuple(have[n] if applied else _data(have[n]) for n in view.nodes),
        tuple(control_word.bits(work[n]) for n in view.nodes),
    )


def _carried(base: Policy, stay: Container[bytes], stripes: tuple[Stripe, ...]) -> tuple[Pull, ...]:
    """Return the pulls of joiners that copy beside the training, from the sources that stay. What
    these keep for a joiner does not change with a fence, unless some of the `stripes` begin anew,
    which is in no update that they keep. All other joins are given up."""
    if orphans(stripes):
        return ()
    found: list[Pull] = []
    for pull in base.pulls:
        sources = tuple(n for n in pull.sources if n in stay)
        if pull.beside and sources:
            parent = pull.parent if pull.parent in sources else sources[0]
            found.append(replace(pull, sources=sources, parent=parent, feeds=()))
    return tuple(found)


def _held(
    base: Policy, reports: dict[bytes, FenceReport], nodes: Sequence[bytes]
) -> tuple[Stripe, ...]:
    """Return who of `nodes` holds which stripe: those that the policy in force names, and those
    that report to have learned them since."""
    learned = {n: reports[n].learned for n in nodes}
    return with_learned(renumbered(base.stripes, base.view.nodes, nodes), nodes, learned)


def _name_of(report: FenceReport, first: int) -> bytes:
    """Return the name of the attempt of iteration `first` whose result a reporter has."""
    return report.before_id if report.iteration > first else report.attempt_id


def _lacks_sums(stripes: tuple[Stripe, ...], have: Iterable[bytes], chunks: int) -> bool:
    """Whether nobody has the results of some chunk that nobody holds."""
    here = 0
    for bits in have:
        here |= int.from_bytes(bits, "little")
    lost = (c for s in orphans(stripes) for c in range(s + 1, chunks, len(stripes)))
    return any(not here >> c & 1 for c in lost)


def _data(have: bytes) -> bytes:
    """Return `have` without chunk 0, because in a round that is done again each member's control
    word says anew which micro-batches it has done."""
    value = int.from_bytes(have, "little") & ~1
    return value.to_bytes((value.bit_length() + 7) // 8, "little")


def _has(report: FenceReport, first: int, newest: int, everything: bytes) -> bytes:
    """Return which chunks of the newest attempt of iteration `first` a reporter has; those of older
    attempts do not count, since sums of two attempts do not fit together."""
    if report.iteration > first:
        return everything
    return report.have if report.attempt == newest else b""


def share_out(
    nodes: tuple[bytes, ...],
    working: dict[bytes, bytes],
    shares: tuple[int, ...],
    micro_batches: int,
) -> dict[bytes, tuple[int, ...]]:
    """Return member -> its micro-batches: those that it works on already, and of the others as many
    as bring it closest to its share. So no work is handed over that somebody has."""
    work = {n: list(control_word.numbers(working[n], micro_batches)) for n in nodes}
    taken = dict.fromkeys(m for found in work.values() for m in found)
    wanted = dict(zip(nodes, shares, strict=True))
    for m in range(micro_batches):
        if m not in taken:
            lucky = max(nodes, key=lambda n: wanted[n] - len(work[n]))
            work[lucky].append(m)
    return {n: tuple(sorted(found)) for n, found in work.items()}
