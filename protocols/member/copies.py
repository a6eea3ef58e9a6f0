"""What this member keeps for joiners that copy the state beside the training.

Nobody waits for such a joiner. When the policy that names its pull comes into force, each source
takes a snapshot of the state; only the update of that one iteration waits until the snapshot is
there. From then on each source also keeps a copy of every update, and tells the joiner of it. The
joiner asks for shards of the snapshot and for parts of updates as its links allow, and applies the
updates to the snapshot as the members have done.

- A snapshot and a kept update never change, so it does not matter when they are asked for, and all
  sources have the same bytes. A fence touches neither: an update is kept only once it is applied.
- R is copied beside the training. An update is applied only when the R of all earlier iterations is
  copied, because then their memory is used again.
- What is kept is bounded. It is freed when the join ends, when the joiner has asked for nothing for
  long, when the link to it ends, and for the joiner that is furthest behind when all kept updates
  together are too large.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from protocols import limits
from protocols.effects import (
    DropSnapshot,
    DropUpdates,
    LogUpdate,
    SendManifest,
    SendShards,
    SendUpdate,
    TakeSnapshot,
)
from protocols.errors import RemoteProtocolError
from protocols.wire.messages import CopyEnded, NoSnapshot, PullBegins, UpdateRecord, UpdateRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.cluster.policy import Policy, Pull
    from protocols.events import SnapshotTaken, UpdateCopied, UpdateLogged
    from protocols.member.context import Context
    from protocols.wire.messages import ManifestRequest, Message


def update_part_bytes(update_bytes: int) -> int:
    """Return the size of the parts in which an update of `update_bytes` travels, in bytes."""
    part = max(limits.LEAST_UPDATE_PART_BYTES, -(-update_bytes // limits.UPDATE_PARTS))
    return min(-(-part // 64) * 64, limits.MAX_SHARD_BYTES)


def update_parts(update_bytes: int) -> int:
    """Return in how many parts an update of `update_bytes` travels."""
    return -(-update_bytes // update_part_bytes(update_bytes))


def pull_begins(context: Context, policy: Policy, pull: Pull) -> PullBegins:
    """Return what a source says to the joiner of `pull`, of the state that it has now; `policy` is
    the one in force."""
    return PullBegins(
        pull.join,
        context.iteration,
        *policy.key,
        context.commit,
        context.samples,
        context.meta,
        context.ancestors,
        context.constants,
    )


def most_logged(update_bytes: int) -> int:
    """Return how many updates of `update_bytes` a source keeps at most."""
    fitting = limits.MOST_LOGGED_BYTES // max(1, update_bytes)
    return max(limits.LEAST_LOGGED_UPDATES, fitting)


@dataclass(slots=True)
class _Copy:
    """What is kept for one joiner. `wants`: the first update that it may still ask for; `whole`: it
    has the whole snapshot."""

    joiner: bytes
    begins: PullBegins
    wants: int
    heard_at: float
    has_asked: bool = False
    whole: bool = False


@dataclass(slots=True)
class _Logged:
    """One update that is kept. `leaves` is None until its parts are hashed."""

    word: bytes
    members: int
    commit: bytes
    leaves: tuple[bytes, ...] | None = None


class Copies:
    """The part of one node that is a source of copies beside the training."""

    def __init__(self, context: Context, post: Callable[[bytes, Message], None]) -> None:
        self._context = context
        self._post = post  # sends to a node, which may be this one
        self._copies: dict[int, _Copy] = {}  # join -> what is kept for it
        self._logged: dict[int, _Logged] = {}  # iteration -> update
        self._copying: dict[int, None] = {}  # those of them whose R is being copied
        self._taking: dict[int, None] = {}  # iterations of snapshots that are being taken
        self._snapshots: dict[int, None] = {}  # iterations of snapshots that are kept
        self._repeat_at: float | None = None
        self._pause_s = limits.RETRY_SECONDS

    def __contains__(self, join: int) -> bool:
        return join in self._copies

    @property
    def is_reading(self) -> bool:
        """Whether the running update must not be applied yet: a snapshot of the state before it is
        being taken, or the R of an earlier iteration is being copied, the memory of which is used
        again after this update."""
        at = self._context.iteration
        return any(i < at for i in self._copying) or at in self._taking

    @property
    def lacking(self) -> bool:
        """Whether a joiner that has the snapshot lacks an update that is kept here, or will be."""
        newest = next(reversed(self._logged), -1)
        return any(copy.whole and copy.wants <= newest for copy in self._copies.values())

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do although nothing has happened."""
        times = [copy.heard_at + limits.COPY_IDLE_SECONDS for copy in self._copies.values()]
        if self._repeat_at is not None:
            times.append(self._repeat_at)
        return min(times, default=None)

    def begin(self, pull: Pull, begins: PullBegins) -> None:
        """Take a snapshot of the state for the join of `pull`, and tell the joiner with `begins`
        that it may ask. Nothing is kept for a joiner that is no neighbour."""
        context = self._context
        if pull.joiner.node not in context.links:
            return
        at = begins.iteration
        self._copies[pull.join] = _Copy(pull.joiner.node, begins, at, context.now)
        if at not in self._snapshots and at not in self._taking:
            self._taking[at] = None
            context.do(TakeSnapshot(at))
        elif at in self._snapshots:
            context.send(pull.joiner.node, begins)

    def taken(self, event: SnapshotTaken) -> None:
        """The snapshot is there, so that joiners may ask; or memory is short, and the scheduler is
        told to find another way for them."""
        context = self._context
        self._taking.pop(event.iteration, None)
        if event.ok:
            self._snapshots[event.iteration] = None
        for join, copy in list(self._copies.items()):
            if copy.begins.iteration != event.iteration:
                continue
            if event.ok:
                copy.heard_at = context.now
                context.send(copy.joiner, copy.begins)
            else:
                del self._copies[join]
                self.refuse(join)
        self._free()

    def refuse(self, join: int) -> None:
        """Tell the scheduler that `join` can copy nothing from here."""
        self._post(self._context.election.scheduler, NoSnapshot(join))

    def applying(self, iteration: int, word: bytes, members: int, commit: bytes) -> None:
        """The update of `iteration` is about to be applied: keep it if a joiner needs it. `word` is
        the reduced control word, and `commit` the commit id after it."""
        if not self._copies:
            return
        self._logged[iteration] = _Logged(word, members, commit)
        self._copying[iteration] = None
        self._context.do(LogUpdate(iteration))
        self._bound()

    def copied(self, event: UpdateCopied) -> None:
        """R of an iteration may change, since it is copied."""
        self._copying.pop(event.iteration, None)

    def logged(self, event: UpdateLogged) -> None:
        """The parts of an update are hashed: tell every joiner that needs it. If memory was short,
        nobody who needs that update can go on with what is kept here."""
        update = self._logged.get(event.iteration)
        if update is None:
            return
        update.leaves = event.leaves
        if not event.leaves:
            needing = [j for j, copy in self._copies.items() if copy.wants <= event.iteration]
            for join in needing:
                self._give_up(join)
            return
        for join, copy in self._copies.items():
            if copy.wants <= event.iteration:
                self._context.send(copy.joiner, _record(join, event.iteration, update))

    def manifest_wanted(self, joiner: bytes, request: ManifestRequest) -> None:
        """Have the digests of the snapshot that are asked for sent to `joiner`."""
        copy = self._asked(joiner, request.join)
        if copy is not None and not copy.whole:
            at, size, first = copy.begins.iteration, request.shard_bytes, request.first
            self._context.do(SendManifest(joiner, request.join, size, first, at))

    def shards_wanted(
        self, joiner: bytes, join: int, shard_bytes: int, shards: tuple[int, ...]
    ) -> None:
        """Have `shards` of the snapshot sent to `joiner`."""
        copy = self._asked(joiner, join)
        if copy is not None and not copy.whole:
            at = copy.begins.iteration
            self._context.do(SendShards(joiner, join, at, shard_bytes, shards, True))

    def update_wanted(self, joiner: bytes, request: UpdateRequest) -> None:
        """Have parts of an update sent to `joiner`, or tell it of the update again. Raises
        `RemoteProtocolError` if there are no such parts."""
        join, iteration, parts = request.join, request.iteration, request.parts
        count = update_parts(self._context.config.update_bytes)
        if any(part >= count for part in parts) or len(dict.fromkeys(parts)) != len(parts):
            raise RemoteProtocolError("a request for parts of an update that do not exist")
        copy = self._asked(joiner, join)
        if copy is None:
            return
        copy.whole = copy.whole or request.whole
        # It may ask for one that is not made yet, and so say that it has all before. One of which
        # it is not told yet is not freed: it may have another one of that iteration, from a source
        # that was lost, and has to hear of this one.
        untold = (at for at, update in self._logged.items() if update.leaves is None)
        end = next(reversed(self._logged), copy.wants - 1) + 1
        copy.wants = max(copy.wants, min(request.needs, iteration, next(untold, end)))
        if iteration not in self._logged:
            self._free()
            return
        update = self._logged[iteration]
        if parts:
            self._context.do(SendUpdate(joiner, join, iteration, parts))
        elif update.leaves:
            self._context.send(joiner, _record(join, iteration, update))
        self._free()

    def link_down(self, node: bytes) -> None:
        """Keep nothing any more for `node`, which can ask for it no more."""
        for join in [j for j, copy in self._copies.items() if copy.joiner == node]:
            del self._copies[join]
        self._free()

    def end(self, join: int) -> None:
        """Keep nothing any more for the join `join`, which has ended or needs it no longer."""
        if self._copies.pop(join, None) is not None:
            self._free()

    def tick(self, now: float) -> None:
        """Free what nobody asks for, and tell joiners again that have not asked for anything: a
        link that breaks loses what was sent on it last."""
        idle = [
            join
            for join, copy in self._copies.items()
            if now >= copy.heard_at + limits.COPY_IDLE_SECONDS
        ]
        for join in idle:
            self._give_up(join)
        silent = [
            copy
            for copy in self._copies.values()
            if not copy.has_asked and copy.begins.iteration in self._snapshots
        ]
        if not silent:
            self._repeat_at, self._pause_s = None, limits.RETRY_SECONDS
        elif self._repeat_at is None:
            self._repeat_at = now + self._pause_s
        elif now >= self._repeat_at:
            self._pause_s *= 2
            self._repeat_at = now + self._pause_s
            for copy in silent:
                self._context.send(copy.joiner, copy.begins)

    def _asked(self, joiner: bytes, join: int) -> _Copy | None:
        """Note that `joiner` asks for something; return what is kept for it, None if nothing is."""
        copy = self._copies.get(join)
        if copy is None or copy.joiner != joiner:
            return None
        if not copy.whole and copy.begins.iteration not in self._snapshots:
            return None
        copy.has_asked, copy.heard_at = True, self._context.now
        return copy

    def _give_up(self, join: int) -> None:
        copy = self._copies.pop(join)
        self._context.send(copy.joiner, CopyEnded(join))
        self._free()

    def _bound(self) -> None:
        """End copies, the one that is furthest behind first, until what is kept is in its bound."""
        most = most_logged(self._context.config.update_bytes)
        while self._copies and len(self._logged) > most:
            self._give_up(min(self._copies, key=lambda join: (self._copies[join].wants, join)))

    def _free(self) -> None:
        """Free the snapshots and updates that no joiner needs any more."""
        copies = self._copies.values()
        needed = {copy.begins.iteration: None for copy in copies if not copy.whole}
        for at in [at for at in self._snapshots if at not in needed]:
            del self._snapshots[at]
            self._context.do(DropSnapshot(at))
        end = next(reversed(self._logged), -1) + 1  # they are kept in the order of iterations
        before = min((copy.wants for copy in copies), default=end)
        if old := list(takewhile(lambda at: at < before, self._logged)):
            for at in old:
                del self._logged[at]
                self._copying.pop(at, None)
            self._context.do(DropUpdates(before))


def _record(join: int, iteration: int, update: _Logged) -> UpdateRecord:
    leaves = update.leaves or ()
    return UpdateRecord(join, iteration, update.word, update.members, update.commit, leaves)
