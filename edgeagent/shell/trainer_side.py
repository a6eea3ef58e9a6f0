"""The trainer as the shell sees it: the node's work goes to it, and its answers become events.

This module decides nothing. Whatever the node wants of the trainer becomes one hand-over message,
and every message of the trainer becomes one event. Updates that a late trainer has missed are kept
here and reach it through a memory region of their own.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, assert_never

from edgeagent import handover
from edgeagent.dataplane.claims import piece_digests, pieces, state_claim
from edgeagent.dataplane.shards import state_digest, state_digest_while
from edgeagent.dataplane.snapshot import copy_in_blocks
from edgeagent.errors import EdgeAgentError
from edgeagent.marks import MARK_APPLYING, MARK_ITERATION
from edgeagent.planner.work_cost import WorkCost
from edgeagent.shell.kept_work import KeptWork
from edgeagent.shell.owed_steps import OwedSteps
from edgeagent.state_difference import where
from protocols import effects, events, limits
from protocols.cluster.ancestry import Past
from protocols.rounds.control_word import read_squares

if TYPE_CHECKING:
    from edgeagent.dataplane.gauges import Gauges
    from edgeagent.dataplane.reduce import Vector
    from edgeagent.dataplane.reduced_memory import Keeping
    from edgeagent.observer import Observer
    from edgeagent.shared_memory import SharedMemory
    from edgeagent.shell.copies import Copies
    from edgeagent.shell.hub import Hub
    from edgeagent.shell.owner import Owner
    from edgeagent.shell.rounds import Rounds
    from edgeagent.shell.stripes import Stripes
    from protocols.member.copying import Copying
    from protocols.member.node import Node
    from protocols.rounds.control_word import ControlWord

# What is larger is hashed or copied in a thread. Otherwise the event loop would stand meanwhile,
# and neighbours would take this device for gone: to copy 512 MiB took 2 s on a slow machine.
HASH_INLINE_BYTES = COPY_INLINE_BYTES = 4 << 20
# At least this often the trainer copies its state to shared memory, where the agent can save it. So
# much training, and one step, is lost at most if the trainer hangs.
KEPT_AT_LEAST_S = 2.0


@dataclass(frozen=True, slots=True)
class OwnState:
    """A whole training state that this device has.

    `past` is the history of the state and `meta` its scalars. `trained` says that the device was a
    member with it, so that it may go on from it if no other cluster does.
    """

    past: Past
    meta: bytes
    commit: bytes = bytes(32)
    trained: bool = False


class TrainerSide:
    """Gives work and sums to one trainer, and its answers to the node."""

    def __init__(
        self,
        hub: Hub,
        rounds: Rounds,
        copies: Copies,
        hello: handover.Hello,
        memory: SharedMemory,
        observer: Observer,
        gauges: Gauges,
        owner: Owner,
        wait_for: int,
    ) -> None:
        self._samples = hello.micro_batches * hello.micro_batch_size
        self._state = memory.state.view()
        self._marks = memory.marks.array("int64")
        self._tensors = hello.tensors
        self._replay_region = memory.replay
        self._replay: Vector = memory.replay.array(hello.accumulate)
        self._replays: int | None = None  # the iteration whose R lies there
        self._kept: dict[int, tuple[Vector, tuple[float, ...]]] = {}  # R and sums of squares
        self._keeping: dict[int, asyncio.Task[None]] = {}  # iterations of which R is being copied
        self._held = rounds.held
        self.stripes: Stripes | None = None  # set once it is made, which needs this
        self._held_by: dict[int, tuple[int, ...]] = {}  # iteration -> stripes to be stepped
        self._sums: dict[int, dict[int, Vector]] = {}  # sums that belong to these, by chunk
        self._reducer = rounds.reducer
        self._copies = copies
        self._hub = hub
        self._handle = hub.handle
        self.kept_work = KeptWork(hub, wait_for, observer, self._give_work)
        self._send = owner.to_trainer
        self.owed = OwedSteps(self._send, rounds.held)
        self._spawn = owner.spawn
        self._observer = observer
        self._gauges = gauges
        self._loop = asyncio.get_running_loop()
        # The state that the trainer has; None once a pull has begun to overwrite it.
        self.own_state: OwnState | None = OwnState(Past(hello.iteration), hello.meta)
        # The newest state that is known to lie in shared memory. A trainer on another device does
        # not copy every state there.
        self.kept_state: OwnState | None = self.own_state
        self._kept_at = self._loop.time()
        self._reads: dict[int, bool] = {}  # iteration -> whether the state after it was asked for
        self._script_away = self._paused = False
        self.hashing: asyncio.Task[None] | None = None
        # The iteration of which the state is being hashed; None once that state is not there.
        self._hashed: int | None = None
        self._words: dict[int, ControlWord] = {}

    def note_own_state(self) -> None:
        """Note the state of a member's trainer as whole, so that a cluster could be founded from
        it. That of a late trainer is noted each time it has applied an update. A member that is let
        go is none any more when it hears of that, but has the same state still. So has one that
        follows from outside, or has done so in its join."""
        node = self._hub.node
        if node is None:
            return
        if node.was_member:
            c = node.context
            if not node.debt.is_stale:
                self.own_state = OwnState(c.past, c.meta, c.commit, trained=True)
        elif node.joining is not None and node.joining.is_refuted:
            self.own_state = None
        elif (copy := _own_copy(node)) is not None and not node.debt.is_stale:
            self.own_state = OwnState(*copy.own, trained=True)

    def begins_from(self, past: Past) -> None:
        """Set the history of the state with which the trainer has begun."""
        if self.own_state is not None:
            self.own_state = replace(self.own_state, past=past)

    def whole_state(self) -> OwnState | None:
        """Return the trainer's state if it is whole, None if a pull has partly overwritten it."""
        self.note_own_state()
        return self.own_state

    # --- from the trainer ---------------------------------------------------------------------

    def received(self, message: handover.Message) -> None:
        """Turn a message of the trainer into an event."""
        match message:
            case handover.Contributed():
                dropped = len(message.micro_batches) - message.trained
                self._observer.contributed(message.compute_seconds, message.trained, dropped)
                self._gauges.contributed(message.trained, message.compute_seconds)
                self._handle(
                    events.Contributed(
                        message.iteration,
                        message.micro_batches,
                        message.loss_sum,
                        message.gradient_bitmap,
                        message.integer_buffers,
                        message.integer_buffers_agree,
                        message.turn,
                        message.settings,
                        message.other_settings,
                        message.stop,
                    )
                )
            case handover.ChunksReady(iteration, micro_batches, chunks, turn):
                self._handle(events.ChunksReady(iteration, micro_batches, chunks, turn))
            case handover.Published(iteration, attempt):
                self._handle(events.Published(iteration, attempt))
            case handover.Progressed():
                self._gauges.progressed(message.share, message.part, message.compute_seconds)
                self._observer.progressed(message.share, message.part)
                done = message.micro_batches
                self._handle(events.Progressed(message.iteration, done, message.turn))
            case handover.Costs(fixed, square):
                cost = WorkCost(fixed, square)
                if not cost.is_possible:
                    raise EdgeAgentError("the trainer announced subnets of an impossible cost")
                self._hub.learned_cost(cost)
            case handover.Applied(iteration, _, skipped, meta):
                self._reducer.memory.returned(iteration)
                self.owed.applied(message)
                self._kept.pop(iteration, None)
                self._sums.pop(iteration, None)
                self._free_replay(iteration)
                if self.stripes is not None and iteration in self._held_by:
                    self.stripes.applied(self._held_by.pop(iteration))
                self._stepped(iteration, skipped)
                self._note_applied(iteration, meta)
                self.kept_work.stepped()
                here = self._has_state_of(iteration + 1)
                claim = state_claim(self._state, meta, iteration + 1) if here else b""
                self._handle(events.Applied(iteration, meta, claim))
            case handover.Stepped():
                self.owed.made()
            case handover.ExitRequested():
                self._handle(events.LeaveWanted())
            case handover.Away(away):
                self._script_away = away
                self._handle(events.AwayWanted(away or self._paused))
            case handover.Evaluated(iteration, name, value, quiet):
                self._observer.evaluated(iteration, name, value, quiet=quiet)

    def _free_replay(self, iteration: int) -> None:
        """Give back the memory of what the trainer has replayed, unless more is to follow."""
        if self._replays == iteration and not self._kept:
            self._replays = None
            self._replay_region.release()
            if self._held is not None:
                self._held.drop_missed()

    def _note_applied(self, iteration: int, meta: bytes) -> None:
        node, own = self._hub.node, self.own_state
        if node is not None and node.context.is_member:
            past = replace(node.context.past, iteration=iteration + 1)
            self.own_state = OwnState(past, meta, trained=True)
        elif node is not None and (copy := _own_copy(node)) is not None:
            past = replace(copy.own[0], iteration=iteration + 1)
            self.own_state = OwnState(past, meta, trained=True)
        elif own is not None and (node is None or node.over):  # this node was a member before
            past = replace(own.past, iteration=iteration + 1)
            self.own_state = replace(own, past=past, meta=meta)
        if self._reads.pop(iteration, True):
            self.kept_state = self.own_state

    def pause(self, paused: bool) -> None:
        """Ask for no share while `paused`, whatever the script says; each node is told anew."""
        self._paused = paused
        node, away = self._hub.node, paused or self._script_away
        takes_part = node is not None and node.context.is_member and not node.over
        if node is not None and takes_part and node.debt.is_away is not away:
            self._handle(events.AwayWanted(away))

    # --- to the trainer -----------------------------------------------------------------------

    def perform(self, effect: effects.TrainerEffect) -> None:
        """Perform `effect`."""
        match effect:
            case effects.BeginTraining():
                self._begin(effect)
            case effects.GiveWork():
                self.kept_work.give(effect)
            case effects.KeepUpdate(iteration, stripes):
                self._keep(iteration, stripes)
            case effects.Publish():
                self._publish(effect)
            case effects.Apply():
                self._apply(effect)
            case effects.PassOver(iteration):
                self._handle(events.Applied(iteration, b""))
            case effects.TakePieces(iteration):
                self._take_pieces(iteration)
            case effects.Differs():
                self._tell_difference(effect)
            case effects.TakeDigest(iteration, commit):
                self._take_digest(iteration, commit)
            case _:
                assert_never(effect)

    def _keep(self, iteration: int, stripes: tuple[int, ...]) -> None:
        """Keep R of an iteration, and the sums of `stripes`, for a late trainer."""
        memory = self._reducer.memory
        inline = self._replay.nbytes <= COPY_INLINE_BYTES
        if inline or (keeping := memory.keeping(iteration)) is None:
            self._kept[iteration] = self._reducer.kept(iteration)
        else:
            self._kept[iteration] = keeping.target, self._reducer.squares(iteration)
            self._keeping[iteration] = task = self._spawn(self._copy_kept(keeping))
            task.add_done_callback(lambda _: self._forget_keeping(iteration, task))
        if self._held is not None:
            self._sums[iteration] = self._held.copy_sums(stripes)

    async def _copy_kept(self, keeping: Keeping) -> None:
        """Copy R beside the event loop. It is pinned, so nothing is written to it meanwhile."""
        at = 0
        for section in keeping.sections:
            end = at + len(section)
            await self._copy(keeping.target[at:end], section)
            at = end
        self._reducer.memory.keep(keeping)

    def _forget_keeping(self, iteration: int, task: asyncio.Task[None]) -> None:
        if self._keeping.get(iteration) is task:
            del self._keeping[iteration]

    def _publish(self, effect: effects.Publish) -> None:
        """Have the trainer make results of the sums that this node owns."""
        word = effect.word
        ready = self.owed.wait(decides=True)
        if ready is not None:  # the trainer's time for this begins then
            late = events.UpdateDelayed(effect.iteration)
            ready.add_done_callback(lambda _: self._handle(late))
        self._send(
            handover.Publish(
                effect.iteration,
                effect.attempt,
                effect.stripes,
                word.weight,
                word.gradient_bitmap,
                read_squares(word.squares),
                word.settings,
                word.other_settings,
                effect.anew,
                effect.lost,
            ),
            ready,
        )

    def _begin(self, effect: effects.BeginTraining) -> None:
        """Have the trainer begin with the state that is in place."""
        self.kept_state = OwnState(Past(effect.iteration), effect.meta)
        steps = 0 if effect.steps == limits.MAX_INTEGER else effect.steps
        self._send(handover.Begin(effect.iteration, effect.adopt, effect.meta, steps))

    def _give_work(self, work: effects.GiveWork) -> None:
        """Have the trainer compute these micro-batches."""
        self._observer.work_given()
        self._send(handover.Work(work.iteration, work.micro_batches, work.turn))

    def drop_kept(self) -> None:
        """Free the updates that were kept for a late trainer, which gets none of them any more: its
        device is no member now, and may look for a cluster for hours."""
        self._kept.clear()
        self._sums.clear()

    def forget(self) -> None:
        """Drop what was kept for the node before, which is of no use to another."""
        self.kept_work.drop()
        self._hashed = None
        self._kept.clear()
        self._keeping.clear()
        self._sums.clear()
        self._words.clear()
        self._reads.clear()

    def _apply(self, effect: effects.Apply) -> None:
        """Have the update applied. A digest of the state before it that is not ready yet is given
        up: no step waits for it."""
        self._hashed = None
        word = effect.word
        self._words[effect.iteration] = word
        self._observer.apply_sent()
        buffer, squares, ready = self._lend(effect.iteration, effect.stripes)
        if self.stripes is not None:
            ready = self._slots_ready(self.stripes, effect, ready)
        self._held_by = {effect.iteration: effect.stripes}
        self._reads[effect.iteration] = is_read = self._reads_state(effect.iteration)
        self._send(
            handover.Reduced(
                effect.iteration,
                buffer,
                word.weight,
                word.loss_sum,
                word.gradient_bitmap,
                word.integer_buffers,
                word.agree,
                squares,
                effect.members,
                word.settings,
                word.other_settings,
                is_read,
                effect.stripes,
                effect.anew,
                effect.slots_now,
            ),
            ready,
        )

    def _slots_ready(
        self, stripes: Stripes, effect: effects.Apply, ready: asyncio.Future[None] | None
    ) -> asyncio.Future[None] | None:
        """Return what has to be done before the slots may be stepped with this update: what is
        `ready` then, the step of the update before, and all copies of slots for learners."""
        owed, lending = self.owed.wait(decides=True), stripes.lending
        if owed is None and lending is None:
            stripes.place(effect.iteration, effect.stripes)
            return ready

        async def done() -> None:
            await _all_done(owed, lending, ready)
            stripes.place(effect.iteration, effect.stripes)
            self._handle(events.UpdateDelayed(effect.iteration))

        return self._spawn(done())

    def _reads_state(self, iteration: int) -> bool:
        """Whether the state after the update of `iteration` is needed in shared memory."""
        node, now = self._hub.node, self._loop.time()
        is_read = node is None or node.over or node.cycle.reads_state(iteration)
        if is_read or now - self._kept_at >= KEPT_AT_LEAST_S:
            self._kept_at = now
            return True
        return False

    def _lend(
        self, iteration: int, stripes: tuple[int, ...]
    ) -> tuple[int, tuple[float, ...], asyncio.Future[None] | None]:
        """Return (the shared buffer with R of `iteration`, the sum of squares of each data chunk,
        what has to be done before R is there). The slots of `stripes` are stepped with it."""
        kept = self._kept.get(iteration) or self._copies.update(iteration)
        buffer = self._reducer.memory.lend(iteration) if kept is None else None
        if buffer is not None:
            if self._held is not None and stripes:
                self._held.lend()
            return buffer, tuple(self._reducer.square_sums), None
        vector, squares = kept or self._reducer.kept(iteration)
        self._replays = iteration
        ready: asyncio.Task[None] | None = None
        sums: dict[int, Vector] = {}
        if self._held is not None:
            known = self._sums.get(iteration)  # else another R was read meanwhile
            sums = known if known is not None else self._held.copy_sums(stripes)
        if vector.nbytes > COPY_INLINE_BYTES or iteration in self._keeping:
            ready = self._spawn(self._lay_out(vector, sums, self._keeping.get(iteration)))
        else:
            self._replay[:] = vector
            self._put_missed(sums)
        return handover.REPLAY_BUFFER, squares, ready

    def _put_missed(self, sums: dict[int, Vector]) -> None:
        if self._held is not None:
            self._held.put_missed(sums)

    async def _lay_out(
        self, vector: Vector, sums: dict[int, Vector], keeping: asyncio.Task[None] | None
    ) -> None:
        """Copy R and the sums that belong to it to where the trainer reads them, once `keeping` is
        done, which copies R to `vector`."""
        if keeping is not None:
            await keeping
        await self._copy(self._replay, vector)
        await asyncio.to_thread(self._put_missed, sums)

    async def _copy(self, target: Vector, source: Vector) -> None:
        to, what = (v.view("u1").data for v in (target, source))
        await asyncio.to_thread(copy_in_blocks, to, what)

    def _stepped(self, iteration: int, skipped: bool) -> None:
        node, word = self._hub.node, self._words.pop(iteration, None)
        policy = node.context.policy if node is not None else None
        if node is not None and word is not None and policy is not None:  # else it still copies
            members = len(policy.view.members)
            self._observer.stepped(
                iteration + 1, node.context.steps, word, self._samples, members, skipped
            )

    # --- digests ------------------------------------------------------------------------------

    def _has_state_of(self, iteration: int) -> bool:
        """Whether the state at the start of `iteration` lies in shared memory. A trainer on another
        device copies only those states there that are read."""
        return bool(self._marks[MARK_ITERATION] == iteration and not self._marks[MARK_APPLYING])

    def _take_pieces(self, iteration: int) -> None:
        """Hash each part that the claim of `iteration` covers; none if that state is not here."""
        here = self._has_state_of(iteration)
        found = piece_digests(self._state, self._tensors, iteration) if here else b""
        self._handle(events.PiecesTaken(iteration, found))

    def _tell_difference(self, effect: effects.Differs) -> None:
        """Report what differs between this device's state and that of the others."""
        names = [name for name, _, _ in pieces(self._tensors, len(self._state), effect.iteration)]
        piece = effect.piece
        tensor = names[piece] if piece is not None and piece < len(names) else ""
        found = where(tensor, effect.mine, effect.theirs)
        self._observer.report("first_difference", {"iteration": effect.iteration, "where": found})

    def _take_digest(self, iteration: int, commit: bytes) -> None:
        """Hash the state, which does not change before the next update."""
        node = self._hub.node
        if node is None:
            return
        meta = node.context.meta
        if len(self._state) <= HASH_INLINE_BYTES:
            self._digest_taken(iteration, commit, state_digest(self._state, meta))
        else:
            self._hashed = iteration
            self.hashing = self._spawn(self._hash(iteration, commit, meta))

    async def _hash(self, iteration: int, commit: bytes, meta: bytes) -> None:
        def is_there() -> bool:
            return self._hashed == iteration

        digest = await asyncio.to_thread(state_digest_while, is_there, self._state, meta)
        if digest is not None and is_there():
            self._digest_taken(iteration, commit, digest)

    def _digest_taken(self, iteration: int, commit: bytes, digest: str) -> None:
        self._observer.event("digest", iteration=iteration, state=digest, commit=commit.hex())


async def _all_done(*tasks: asyncio.Future[None] | None) -> None:
    for task in tasks:
        if task is not None:
            await task


def _own_copy(node: Node) -> Copying | None:
    """Return what a node has copied that follows from outside, or has done so in its join."""
    joining = node.joining
    return joining.copy if joining is not None and joining.stands_by else None
