"""The loop between the node's machines and the world: events in, effects performed.

The shell decides nothing. Each effect belongs to one family (`protocols/effects.py`) and is
performed by the module for that family; everything that happens (frames, timers, hand-overs)
becomes one event. Events that arise while effects are performed wait until all of them are done, so
that the node never sees an event in the middle of another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, assert_never

from edgeagent.dataplane.gauges import LAST_ROUND_COUNTS, Gauges
from edgeagent.local.waits import Waits
from edgeagent.logs import node_log
from edgeagent.network import member_of
from edgeagent.planner.shares import LEAST_GAIN, LEAST_GAIN_OF_ROUNDS, ShareRule
from edgeagent.planner.standard import StandardPlanner
from edgeagent.planner.work_cost import WorkCost
from edgeagent.shell.copies import Copies
from edgeagent.shell.peers import Peers
from edgeagent.shell.pulls import Pulls
from edgeagent.shell.rounds import Rounds
from edgeagent.shell.searches import Searches
from edgeagent.shell.stripes import Stripes
from edgeagent.shell.trainer_side import TrainerSide
from edgeagent.trace import trace_lines
from protocols import effects, events, limits
from protocols.cluster.stripes import OnLost
from protocols.errors import RemoteProtocolError
from protocols.member.context import NodeConfig
from protocols.member.node import Node
from protocols.member.recorder import Recorder
from protocols.network.routing import Router
from protocols.wire import codec
from protocols.wire.bulk import BulkHeader, BulkKind
from protocols.wire.messages import UpdateRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edgeagent import handover
    from edgeagent.network import Network
    from edgeagent.observer import Observer
    from edgeagent.shared_memory import SharedMemory
    from edgeagent.shell.owner import Options, Owner
    from edgeagent.transport.api import Link
    from protocols.cluster.view import Member
    from protocols.network.link_end import LinkEnd

READ_AFTER_PROBES = 4  # probe frames after which the gauges are read, as a probe may end any time


class Shell:
    """One agent's node and everything it acts on, all on one event loop. Implements
    `LinkListener`."""

    def __init__(
        self,
        me: Member,
        hello: handover.Hello,
        memory: SharedMemory,
        network: Network,
        observer: Observer,
        owner: Owner,
        options: Options,
    ) -> None:
        """`hello` and `memory` are those of the trainer."""
        self._loop = asyncio.get_running_loop()
        self._observer = observer
        observer.local_steps = hello.local_steps
        observer.in_cells = hello.in_cells
        least_gain = LEAST_GAIN_OF_ROUNDS if hello.local_steps else LEAST_GAIN
        cost = WorkCost(hello.fixed_cost, hello.square_cost)
        rule = ShareRule(cost, hello.least_share, least_gain)
        self._owner = owner
        self.watch: Callable[[], None] = lambda: None  # after every event but heartbeats
        self.node: Node | None = None
        self.recorder = Recorder()
        self._log = node_log(me.name)
        self._inbox: deque[events.Event] = deque()
        self._busy = self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._ping_timer: asyncio.TimerHandle | None = None
        self.peers = Peers(self, network, observer, owner.spawn)
        self._gauges = gauges = self._gauges_of(hello, network)
        self.rounds = Rounds(self, self.peers, hello, memory, observer, gauges)
        state = memory.state.view()
        self.copies = copies = Copies(self, self.peers, self.rounds, hello, state, owner.spawn)
        parts = (self.rounds, copies, hello, memory, observer, gauges, owner)
        self.trainer = side = TrainerSide(self, *parts, options.wait_for)
        self.pulls = Pulls(self, self.peers, side, copies, state, observer, owner.spawn)
        side.stripes = self.stripes = Stripes(self, self.peers, hello, memory, owner, side.owed)
        item_bytes, size = self.rounds.contribution.itemsize, hello.chunk_elements
        payload = self.rounds.formats.bytes_of(hello.elements, size, item_bytes)
        chunk_bytes = self.rounds.formats.bytes_of(size, size, item_bytes)
        self._planner = StandardPlanner(payload, chunk_bytes, options.custom, options.trees, rule)
        self.searches = Searches(self, self._planner, owner.spawn)
        self._config = NodeConfig(
            me,
            self.rounds.reducer.chunks,
            hello.state_bytes,
            hello.micro_batches,
            hello.micro_batches * hello.micro_batch_size,
            hello.steps or limits.MAX_INTEGER,
            options.wanted_neighbours,
            options.pauses,
            options.rotate_every,
            payload,
            options.join_stall_s,
            hello.constant_bytes,
            hello.constants,
            max(1, limits.WINDOW_BYTES // chunk_bytes),
            self.copies.update_bytes,
            options.join_way,
            options.stands_by,
            options.follows,
            self.stripes.count,
            hello.copies,
            self.stripes.stripe_bytes,
            OnLost(hello.on_lost),
        )
        self._router = Router(me.node, me.incarnation)
        sizes = (payload, chunk_bytes)
        told = (observer.say, lambda: self._planner.rule)
        self.waits = Waits(lambda: self.node, self.peers.heartbeats, *sizes, *told)

    def _gauges_of(self, hello: handover.Hello, network: Network) -> Gauges:
        """Return what measures the speed of the trainer whose first message is `hello`."""
        return Gauges(
            self._loop.time,
            self.peers.heartbeats,
            lambda share: self._planner.rule.cost.units(share, hello.micro_batches),
            is_priced=not hello.in_cells,
            rounds=hello.local_steps > 0,
            last_counts=hello.last_round_counts or LAST_ROUND_COUNTS,
            stretches=network.stretches,
        )

    # --- beginnings and ends ----------------------------------------------------------------------

    def found(self, lineage: bytes, incarnation: int) -> None:
        """Found a cluster of one from the trainer's own state, which must not be `spoilt`.

        `lineage` is the random id of the new cluster's history; for `incarnation` see `join`.
        """
        own = self.trainer.own_state
        assert own is not None, "a cluster founded from half a state"
        self._note_constants()
        self._forget()
        self.trainer.kept_work.founded()
        self._live_as(incarnation)
        self.node = node = Node(self._config, self._planner, self._router)
        now = self._loop.time()
        self._perform(self.recorder.found(node, now, lineage, own.past, own.meta, own.commit))
        self._arm()
        self._ping()

    @property
    def spoilt(self) -> bool:
        """Whether the state in memory is neither the trainer's own nor that of a member, because a
        pull has begun to overwrite it."""
        return self.trainer.own_state is None and not (self.node and self.node.context.is_member)

    @property
    def is_whole(self) -> bool:
        """Whether the state in memory is a whole one, the trainer's own or a cluster's."""
        joining = self.node.joining if self.node is not None else None
        pulled = joining is not None and (joining.has_pulled or joining.stands_by)
        return pulled or not self.spoilt

    def join(self, sponsor: Member, incarnation: int) -> None:
        """Join the cluster of `sponsor`, giving up a node that was there before.

        A device that was a member before in this process needs a larger `incarnation` than then, so
        that no member that has not heard of its departure takes it for the former member.
        """
        self._note_constants()
        self.trainer.note_own_state()
        self._forget()
        self._live_as(incarnation)
        self.node = node = Node(self._config, self._planner, self._router)
        self._perform(self.recorder.join(node, self._loop.time(), sponsor))
        self._arm()
        self._ping()

    def _live_as(self, incarnation: int) -> None:
        me = replace(self._config.me, incarnation=incarnation)
        if me != self._config.me:
            self._config = replace(self._config, me=me)
            self._router = Router(me.node, incarnation)

    def _forget(self) -> None:
        """Drop what belonged to the node before: rounds, updates that were kept, what is sent to
        joiners or comes from sources. Iterations of the next node may have the same numbers."""
        self.trainer.forget()
        self.copies.forget()
        self.pulls.forget()
        self.stripes.forget()
        self.rounds.reducer.reset()

    def _note_constants(self) -> None:
        """Note which constant part the state here has: the cluster's of which this node was a
        member; none that is known if its state differed, or once a pull has overwritten some."""
        if self.node is None:
            return  # it was noted when the last node was given up
        known, joining = self._config.constants, self.node.joining
        if joining is not None and joining.stands_by:
            known = self.node.context.constants
        elif self.node.was_member:
            known = b"" if self.node.context.diverged else self.node.context.constants
        elif self.spoilt and not (joining and joining.keeps_constants):
            known = b""
        self._config = replace(self._config, constants=known)

    def give_way(self) -> None:
        """Depart ("yielded") as soon as the trainer is idle, in order to join another cluster."""
        self.handle(events.YieldWanted())
        self.trainer.kept_work.hand_back()

    def leave(self) -> None:
        """Leave gracefully."""
        self.handle(events.LeaveWanted())
        self.trainer.kept_work.hand_back()

    def orphaned(self) -> None:
        """Leave, as the trainer has ended."""
        self.handle(events.TrainerEnded())
        self.leave()

    async def drop_links(self) -> None:
        """Close all links, those too that are being opened, and forget the node."""
        self._note_constants()
        self.trainer.note_own_state()
        self.trainer.drop_kept()
        self.node = None
        self.peers.give_up_dials()
        self.copies.forget()
        self.pulls.forget()
        self._inbox.clear()
        await self.peers.close(flush=False)

    async def close(self) -> None:
        """Send what is queued, close all links and end all tasks."""
        self._closed = True
        self.peers.stop_timers()
        for timer in (self._timer, self._ping_timer):
            if timer is not None:
                timer.cancel()
        await self.peers.close(flush=True)
        if (hashing := self.trainer.hashing) is not None:  # users rely on the digest's event
            await asyncio.wait([hashing])

    def trace(self) -> Iterator[str]:
        """Return the lines of a trace of the events given to the node and its effects."""
        about = {"node": self._config.me.name, "planner": self._planner.inputs}
        return trace_lines(self.recorder, self._loop.time(), about)

    # --- events -----------------------------------------------------------------------------------

    def learned_cost(self, cost: WorkCost) -> None:
        """Use what the trainer has found that parts of the model cost."""
        self._planner.rule = replace(self._planner.rule, cost=cost)
        self._gauges.priced()

    def handle(self, event: events.Event) -> None:
        """Give the node one event and perform the effects that it returns."""
        if self.node is None:
            return
        self._inbox.append(event)
        if not self._busy:
            self._work_off()

    def _work_off(self) -> None:
        self._busy = True
        try:
            while self._inbox and self.node is not None:
                event = self._inbox.popleft()
                if self._log is not None:
                    self._log.event(self.node.context, event)
                beats = events.is_heartbeat(event, self.node.context.lineage)
                self._perform(self.recorder.handle(self.node, self._loop.time(), event))
                if beats:
                    continue
                self._arm()
                self.rounds.release()
                self.trainer.kept_work.look()
                self.watch()
        except RemoteProtocolError:
            if self._inbox:
                self._loop.call_soon(self._work_off)
            raise
        finally:
            self._busy = False

    # --- LinkListener -----------------------------------------------------------------------------

    def link_up(self, link: Link) -> None:
        """Called by the transport."""
        self._link_over(link.peer.node)  # an older link with this peer may still be closing
        if self.node is None:
            self.peers.refuse(link)
            return
        self.peers.up(link)
        self.handle(events.LinkUp(member_of(link.peer)))

    def link_down(self, link: Link, reason: str, why: LinkEnd) -> None:
        """Called by the transport."""
        peer = link.peer.node
        if self.peers.links.get(peer) is link:
            self._link_over(peer)
            self.handle(events.LinkDown(peer, why))
            self.peers.distrust_now(peer)

    def _link_over(self, peer: bytes) -> None:
        if self.peers.over(peer):
            self.rounds.forget(peer)

    def control_received(self, link: Link, frame: bytes) -> None:
        """Called by the transport."""
        self.peers.heard(link.peer.node)
        try:
            envelope = codec.decode(frame)
            if isinstance(envelope.message, UpdateRecord):
                self.copies.check(envelope.message)
            self.handle(events.Received(link.peer.node, envelope))
        except RemoteProtocolError as error:
            self.peers.accuse(link.peer.node, str(error))

    def bulk_arriving(self, link: Link, header: BulkHeader) -> memoryview | None:
        """Called by the transport."""
        try:
            return self._bulk_arriving(link, header)
        except RemoteProtocolError as error:
            self.peers.accuse(link.peer.node, str(error))
            return None

    def _bulk_arriving(self, link: Link, header: BulkHeader) -> memoryview | None:
        if header.kind is BulkKind.SHARD:
            return self.pulls.arriving(link.peer.node, header)
        if header.kind is BulkKind.UPDATE:
            return self.copies.arriving(link.peer.node, header)
        if header.kind is BulkKind.SLOT:
            return self.stripes.arriving(link.peer.node, header)
        if header.kind is BulkKind.PROBE:
            if header.index % READ_AFTER_PROBES == 0:
                self.handle(self._gauges.read(self.peers.links))
            return None
        return self.rounds.arriving(link.peer.node, header)

    def bulk_received(self, link: Link, header: BulkHeader) -> None:
        """Called by the transport."""
        try:
            if header.kind is BulkKind.SHARD:
                self.pulls.received(link, header)
            elif header.kind is BulkKind.UPDATE:
                self.copies.received(link, header)
            elif header.kind is BulkKind.SLOT:
                self.stripes.received(link, header)
            else:
                self.rounds.reducer.received(link.peer.node, header)
        except RemoteProtocolError as error:
            self.peers.accuse(link.peer.node, str(error))

    # --- effects ----------------------------------------------------------------------------------

    def _perform(self, wanted: list[effects.Effect]) -> None:
        for effect in wanted:
            try:
                self._perform_one(effect)
            except RemoteProtocolError as error:  # relayed, so there is no neighbour to accuse
                kind = type(effect).__name__
                line = f"ignored what another agent asked for ({kind}): {error}"
                self.peers.lines.say(kind, line)

    def _perform_one(self, effect: effects.Effect) -> None:
        if isinstance(effect, effects.Apply | effects.PassOver):
            self.rounds.when_followed(effect.iteration, partial(self.trainer.perform, effect))
        elif isinstance(effect, effects.PeerEffect):
            self.peers.perform(effect)
        elif isinstance(effect, effects.RoundEffect):
            self.rounds.perform(effect)
        elif isinstance(effect, effects.TrainerEffect):
            self.trainer.perform(effect)
        elif isinstance(effect, effects.ShardEffect):
            self.pulls.perform(effect)
        elif isinstance(effect, effects.CopyEffect):
            self.copies.perform(effect)
        elif isinstance(effect, effects.StripeEffect):
            self.stripes.perform(effect)
        elif isinstance(effect, effects.PlannerEffect):
            self.searches.perform(effect)
        else:
            self._perform_for_owner(effect)

    def _perform_for_owner(self, effect: effects.OwnerEffect) -> None:
        match effect:
            case effects.Report(event, values):
                if event == "delay":
                    self.peers.heartbeats.answered(values["id"], values["seconds"])
                if self._log is not None and self.node is not None:
                    self._log.report(self.node.context, effect)
                self._observer.report(event, values)
            case effects.UseToken(token):
                self._owner.use_token(token)
            case effects.Depart(why, message):
                self._owner.departed(why, message)
            case effects.JoinFailed(reason, pause_s, stands_by):
                self._owner.join_failed(reason, pause_s, stands_by)
            case effects.StandsBy(reason):
                self._owner.stands_by(reason)
            case _:
                assert_never(effect)

    # --- time -------------------------------------------------------------------------------------

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.node.deadline if self.node is not None else None
        if due is not None and not self._closed:
            self._timer = self._loop.call_at(due, self.handle, events.Tick())

    def _ping(self) -> None:
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        now = self._loop.time()
        self.peers.beat(now)
        if self.node is not None:
            self._perform(self.recorder.ping(self.node, now))
            self.handle(self._gauges.read(self.peers.links))
            self.trainer.kept_work.look()
            self.waits.tell(now)
        if not self._closed:
            self._ping_timer = self._loop.call_later(limits.HEARTBEAT_SECONDS, self._ping)
