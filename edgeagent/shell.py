"""The loop between the node's machines and the world: events in, effects done.

Law: no decision here. Each effect of `protocols.effects` has exactly one way of being done, and
everything that happens (frames, timers, hand-overs) becomes exactly one event. Events that come up
while effects are being done wait until those are done.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from edgeagent.dataplane.forwarding import Forwarding
from edgeagent.dataplane.gauges import Gauges
from edgeagent.dataplane.probe import Prober
from edgeagent.dataplane.reduce import Reducer
from edgeagent.dataplane.shards import (
    leaves,
    shard_header,
    shard_target,
    shard_view,
)
from edgeagent.errors import EdgeAgentError
from edgeagent.local.waits import Waits
from edgeagent.logs import node_log
from edgeagent.network import member_of, peer_of
from edgeagent.planner import StandardPlanner
from edgeagent.trace import trace_lines
from edgeagent.trainer_side import TrainerSide
from edgeagent.transport.complaints import Lines
from protocols import effects, events, limits
from protocols.errors import RemoteProtocolError
from protocols.member.context import NodeConfig
from protocols.member.node import Node
from protocols.member.recorder import Recorder
from protocols.network.heartbeats import Heartbeats
from protocols.network.link_end import LinkEnd
from protocols.network.progress import Progress
from protocols.network.routing import Router
from protocols.rounds.word_check import WordShape
from protocols.wire import codec
from protocols.wire.bulk import BulkHeader, BulkKind
from protocols.wire.messages import PullBegins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edgeagent import handover
    from edgeagent.network import Network
    from edgeagent.observer import Observer
    from edgeagent.planner.policies import CustomPolicy
    from edgeagent.search import Spawn
    from edgeagent.shared_memory import SharedMemory
    from edgeagent.transport.api import Link
    from protocols.cluster.view import Member
    from protocols.rounds.control_word import ControlWord
    from protocols.rounds.round import RoundSpec
    from protocols.wire.envelope import Envelope

READ_AFTER_PROBES = 4  # frames of a probe after which the gauges are read again
AHEAD_BYTES = 1 << 20  # of the round in which a joiner copied the state it has the rest, or else
AHEAD_ROUNDS = 3  # at most so many rounds are on their way to it
FOLLOW_SECONDS = 0.01  # after which to see again how far a joiner has followed
DISTRUST_SECONDS = 30.0  # a node that left may take so long to fetch what is on its way to it


class Shell:
    """One agent's node and what it acts on. All on one event loop; implements `LinkListener`."""

    def __init__(
        self,
        me: Member,
        hello: handover.Hello,
        memory: SharedMemory,
        trainer: Callable[[handover.Message], None],
        network: Network,
        observer: Observer,
        wanted_neighbours: tuple[str, ...],
        departed: Callable[[str, str], None],
        join_failed: Callable[[str, float], None],
        use_token: Callable[[bytes], None],
        spawn: Spawn,
        pauses: bool = False,
        rotate_every: int = 0,
        custom: CustomPolicy | None = None,
        join_stall_s: float = 0.0,
    ) -> None:
        """`trainer` sends to the trainer; `departed(why, message)` is called when the node's part
        is over, `join_failed(reason, pause_s)` when its join has; `use_token` changes the token;
        `spawn` starts a task whose failure ends the agent; `custom` plans; others: `NodeConfig`."""
        self._memory = memory
        self._state = memory.state.view()
        self._network = network
        self._observer = observer
        self._departed = departed
        self._join_failed = join_failed
        self._use_token = use_token
        self._spawn = spawn
        self.watch: Callable[[], None] = lambda: None  # called after each event
        self._loop = asyncio.get_running_loop()
        self._contribution = memory.contribution.array(hello.accumulate)
        self._reducer = self._make_reducer(hello)
        self._config = NodeConfig(
            me,
            self._reducer.chunks,
            hello.state_bytes,
            hello.micro_batches,
            hello.micro_batches * hello.micro_batch_size,
            hello.steps or limits.MAX_INTEGER,
            wanted_neighbours,
            pauses,
            rotate_every,
            self._contribution.nbytes,
            join_stall_s,
        )
        self._router = Router(me.node, me.incarnation)
        self.node: Node | None = None
        self.recorder = Recorder()
        self._log = node_log(me.name)
        self.links: dict[bytes, Link] = {}
        self._inbox: deque[events.Event] = deque()
        self._busy = self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._ping_timer: asyncio.TimerHandle | None = None
        self._distrusted: dict[bytes, asyncio.TimerHandle] = {}
        self._lines = Lines(observer.say, self._loop.time)
        self._forwarding = Forwarding()
        self._heartbeats = Heartbeats()
        self._progress = Progress()
        chunk_bytes = hello.chunk_elements * self._contribution.itemsize
        self._prober = Prober(self._heartbeats.delay)
        self._gauges = Gauges(self._loop.time, self._heartbeats)
        self._planner = StandardPlanner(self._contribution.nbytes, chunk_bytes, custom)
        self.trainer = self._trainer_side(hello, trainer)
        self.waits = self._make_waits(chunk_bytes)

    def _make_waits(self, chunk_bytes: int) -> Waits:
        payload = self._contribution.nbytes
        say = self._observer.say
        return Waits(lambda: self.node, self._heartbeats, payload, chunk_bytes, say)

    def _make_reducer(self, hello: handover.Hello) -> Reducer:
        even, odd = self._memory.reduced
        return Reducer(
            self._contribution,
            (even.array(hello.accumulate), odd.array(hello.accumulate)),
            hello.chunk_elements,
            self,
            self._reduced,
            WordShape(hello.micro_batches, hello.parameters, dict(hello.exact_buffers)),
            lambda: self.node.context.policies if self.node is not None else {},
            self._loop.call_soon,
            self._loop.time,
        )

    def _trainer_side(
        self, hello: handover.Hello, send: Callable[[handover.Message], None]
    ) -> TrainerSide:
        return TrainerSide(
            hello,
            self._memory,
            self._contribution,
            self._reducer,
            lambda: self.node,
            self.handle,
            send,
            self._observer,
            self._gauges,
            self._spawn,
        )

    # --- beginnings and ends ----------------------------------------------------------------------

    def found(self, lineage: bytes) -> None:
        """Found a cluster of one from the trainer's own state, which must not be `spoilt`."""
        own = self.trainer.own_state
        assert own is not None, "a cluster founded from half a state"
        self.node = node = Node(self._config, self._planner, self._router)
        now = self._loop.time()
        self._perform(self.recorder.found(node, now, lineage, own.past, own.meta, own.commit))
        self._ping()

    @property
    def spoilt(self) -> bool:
        """Whether the state is neither the trainer's own any more nor that of a cluster's member:
        a pull has begun to overwrite it."""
        return self.trainer.own_state is None and not (self.node and self.node.context.is_member)

    @property
    def is_whole(self) -> bool:
        """Whether what the trainer has is a whole state, its own or a cluster's."""
        joining = self.node.joining if self.node is not None else None
        pulled = joining is not None and joining.has_pulled
        return pulled or not self.spoilt

    def join(self, sponsor: Member, incarnation: int) -> None:
        """Join the cluster of `sponsor`; a node that was there before is given up. Who has been a
        member in this process needs a larger `incarnation` than then: nobody who has not heard of
        its end is to take it for the member that it was."""
        self.trainer.note_own_state()
        self.trainer.forget()
        self._reducer.reset()
        me = replace(self._config.me, incarnation=incarnation)
        if me != self._config.me:
            self._config = replace(self._config, me=me)
            self._router = Router(me.node, incarnation)
        self.node = node = Node(self._config, self._planner, self._router)
        self._perform(self.recorder.join(node, self._loop.time(), sponsor))
        self._ping()

    def give_way(self) -> None:
        """Depart ("yielded") as soon as the trainer is idle, to join another cluster."""
        self.handle(events.YieldWanted())

    def leave(self) -> None:
        """Leave gracefully."""
        self.handle(events.LeaveWanted())

    def orphaned(self) -> None:
        """The trainer is gone: hand back its work and leave, so that nobody waits for it."""
        self.trainer.gone()
        if self.node is not None:
            self.leave()

    async def drop_links(self) -> None:
        """Close all links and forget the node."""
        self.trainer.note_own_state()
        self.node = None
        self._inbox.clear()
        await asyncio.gather(*(link.close(flush=False) for link in list(self.links.values())))

    async def close(self) -> None:
        """Send what is queued, close all links, end all tasks."""
        self._closed = True
        for timer in (self._timer, self._ping_timer, *self._distrusted.values()):
            if timer is not None:
                timer.cancel()
        await asyncio.gather(*(link.close(flush=True) for link in list(self.links.values())))
        if (hashing := self.trainer.hashing) is not None:  # the digest is an event users wait for
            await asyncio.wait([hashing])

    def trace(self) -> Iterator[str]:
        """Return the lines of a trace of what the node was told and what it wanted done."""
        about = {"node": self._config.me.name, "planner": self._planner.inputs}
        return trace_lines(self.recorder, self._loop.time(), about)

    # --- events -----------------------------------------------------------------------------------

    def handle(self, event: events.Event) -> None:
        """Give the node one event and do what it wants."""
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
                self._perform(self.recorder.handle(self.node, self._loop.time(), event))
                self._forwarding.release(self._pulls, self.links)
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
        self._link_over(link.peer.node)  # one of before, which is still closing
        self.links[link.peer.node] = link
        self._heartbeats.linked(self._loop.time(), link.peer.node)
        self.handle(events.LinkUp(member_of(link.peer)))

    def _link_over(self, peer: bytes) -> None:
        """Forget what belonged to the link with `peer`, if there is one."""
        if self.links.pop(peer, None) is not None:
            self._reducer.forget(peer)
            self._observer.delays.pop(peer, None)
            self._heartbeats.gone(peer)
            self._progress.gone(self._loop.time(), peer)
            self._shorten(peer)
            self._forwarding.forget(peer)

    def link_down(self, link: Link, reason: str, why: LinkEnd) -> None:
        """Called by the transport."""
        peer = link.peer.node
        if self.links.get(peer) is link:
            self._link_over(peer)
            self.handle(events.LinkDown(peer, why))
            if (timer := self._distrusted.pop(peer, None)) is not None:
                timer.cancel()
                self._network.distrust(peer)

    def control_received(self, link: Link, frame: bytes) -> None:
        """Called by the transport."""
        self._heartbeats.heard(self._loop.time(), link.peer.node)
        try:
            self.handle(events.Received(link.peer.node, codec.decode(frame)))
        except RemoteProtocolError as error:
            self.accuse(link.peer.node, str(error))

    def bulk_arriving(self, link: Link, header: BulkHeader) -> memoryview | None:
        """Called by the transport."""
        try:
            return self._bulk_arriving(link, header)
        except RemoteProtocolError as error:
            self.accuse(link.peer.node, str(error))
            return None

    def _bulk_arriving(self, link: Link, header: BulkHeader) -> memoryview | None:
        if header.kind is BulkKind.SHARD:
            return self._shard_arriving(link.peer.node, header)
        if header.kind is BulkKind.PROBE:
            if header.index % READ_AFTER_PROBES == 0:
                self.handle(self._gauges.read(self.links))
            return None
        if self.node is None:
            return None
        return self._reducer.arriving(link.peer.node, header)

    def bulk_received(self, link: Link, header: BulkHeader) -> None:
        """Called by the transport."""
        try:
            self._bulk_received(link, header)
        except RemoteProtocolError as error:
            self.accuse(link.peer.node, str(error))

    def _bulk_received(self, link: Link, header: BulkHeader) -> None:
        source = link.peer.node
        if header.kind is not BulkKind.SHARD:
            self._reducer.received(source, header)
            return
        joining = self.node.joining if self.node is not None else None
        if joining is None or not joining.expects(source, header.index):
            return
        shard = shard_target(self._state, joining.shard_bytes, header)
        self._observer.shard_arrived(link.peer.name, header.length, link.incoming_rate)
        digest = hashlib.sha256(shard).digest()
        self.handle(events.ShardArrived(source, header.index, digest, link.incoming_rate))

    def _shard_arriving(self, source: bytes, header: BulkHeader) -> memoryview | None:
        joining = self.node.joining if self.node is not None else None
        if joining is None or header.reference != joining.number:
            return None
        if not joining.expects(source, header.index):
            return None
        self.trainer.own_state = None
        return shard_target(self._state, joining.shard_bytes, header)

    # --- Wire (of the reducer) --------------------------------------------------------------------

    def send_bulk(self, to: bytes, header: BulkHeader, payload: memoryview) -> None:
        """Queue a bulk frame for `to`; a joiner that does not take what it follows has to go."""
        link = self.links.get(to)
        if link is None:
            return
        if header.kind is BulkKind.DOWN and not self._is_member(to):
            if self._forwarding.waiting(link) + len(payload) > self._most_waiting:
                self._cut(link, "it takes too little of what is sent to it", LinkEnd.CUT)
                return
            self._forwarding.send(link, header, payload, hold=self._pulls(to))
            return
        link.send_bulk(header, payload)

    def _pulls(self, node: bytes) -> bool:
        """Whether a joiner is copying the state from members, this one among them."""
        return self.node is not None and self.node.cycle.holds_for(node)

    def _is_member(self, node: bytes) -> bool:
        policy = self.node.context.policy if self.node is not None else None
        return policy is not None and policy.view.member(node) is not None

    @property
    def _most_waiting(self) -> int:
        return max(limits.MAX_SUBSCRIBER_QUEUE_BYTES, 2 * self._contribution.nbytes)

    def accuse(self, peer: bytes, reason: str) -> None:
        """End the link to `peer`, which sent what cannot be, and tell the others."""
        if (link := self.links.get(peer)) is not None:
            self.handle(events.Faulty(peer, reason))
            self._cut(link, reason, LinkEnd.PROTOCOL_ERROR)

    def _cut(self, link: Link, reason: str, why: LinkEnd) -> None:
        """End a link at once, with one line."""
        self._lines.say("cut", f"closed the link to {link.peer.name}: {reason}")
        link.discard_bulk()
        link.cut(reason, why)

    def hold_bulk(self, peer: bytes, hold: bool) -> None:
        """Stop reading bulk frames from `peer`, or read again."""
        if (link := self.links.get(peer)) is not None:
            (link.pause_bulk if hold else link.resume_bulk)()

    def discard_bulk(self, peer: bytes) -> None:
        """Write no more into the buffer of the payload that `peer` is sending."""
        if (link := self.links.get(peer)) is not None:
            link.discard_bulk()

    # --- effects ----------------------------------------------------------------------------------

    def _perform(self, wanted: list[effects.Effect]) -> None:
        for effect in wanted:
            try:
                self._perform_one(effect)
            except RemoteProtocolError as error:  # nobody here to blame: it may be relayed
                kind = type(effect).__name__
                self._lines.say(kind, f"ignored what another agent asked for ({kind}): {error}")
        self._arm()

    def _perform_one(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Send(to, envelope) if self._stale(envelope):
                self._perform_one(effects.CloseLink(to))  # the joiner turns to its other sources
            case effects.Send(to, envelope):
                if (link := self.links.get(to)) is not None:
                    link.send_control(codec.encode(envelope))
            case effects.StartRound(spec):
                self._reducer.start(spec)
            case effects.ServeRound(spec):
                self._reducer.serve(spec)
            case effects.FreezeRound():
                self.handle(events.Frozen(self._reducer.freeze()))
            case effects.GiveWork():
                self.trainer.give_work(effect)
            case effects.KeepUpdate(iteration):
                self.trainer.keep(iteration)
            case effects.Contribute(word):
                self._reducer.contribute(word)
            case effects.Apply():
                self._apply(effect, self.node)
            case effects.TakePieces(iteration):
                self.trainer.take_pieces(iteration)
            case effects.Differs():
                self.trainer.tell_difference(effect)
            case effects.TakeDigest(iteration, commit):
                self.trainer.take_digest(iteration, commit)
            case effects.BeginTraining():
                self.trainer.begin(effect)
            case effects.Report(event, values):
                if event == "delay":
                    self._heartbeats.answered(values["id"], values["seconds"])
                if self._log is not None and self.node is not None:
                    self._log.report(self.node.context, effect)
                self._observer.report(event, values)
            case effects.UseToken(token):
                self._use_token(token)
            case effects.Depart(why, message):
                self._departed(why, message)
            case effects.JoinFailed(reason, pause_s):
                self._join_failed(reason, pause_s)
            case _:
                self._perform_for_peers(effect)

    def _perform_for_peers(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Trust(member):
                self._network.trust(member.certificate)
                self.keep_trust(member.node)
            case effects.Distrust(node):
                self._distrust_later(node)
            case effects.Dial(member):
                self._spawn(self._dial(member))
            case effects.Probe(node):
                if (link := self.links.get(node)) is not None:
                    self._spawn(self._prober.probe(link))
            case effects.CloseLink(node):
                if (link := self.links.get(node)) is not None:
                    link.discard_bulk()  # nothing more of it is written anywhere
                    self._spawn(link.close(flush=True))
            case effects.SendManifest(joiner, join, shard_bytes):
                self._spawn(self._send_manifest(joiner, join, shard_bytes))
            case effects.SendShards(joiner, join, iteration, shard_bytes, shards):
                self._send_shards(joiner, join, iteration, shard_bytes, shards)

    def _stale(self, envelope: Envelope) -> bool:
        """Whether this offers a state that nobody has kept up to date since the trainer ended."""
        return self.trainer.is_gone and isinstance(envelope.message, PullBegins)

    def _apply(self, effect: effects.Apply, node: Node | None) -> None:
        """Have the update applied, as soon as what joiners need for it is on its way to them."""
        self._forwarding.release(self._pulls, self.links)
        copied = node is not None and node.cycle.was_copied
        most = AHEAD_BYTES if copied else AHEAD_ROUNDS * self._contribution.nbytes
        if self.node is node and self._forwarding.is_ahead(self.links, most):
            self._loop.call_later(FOLLOW_SECONDS, self._apply, effect, node)
        elif self.node is node:
            self.trainer.apply(effect)

    def _reduced(self, spec: RoundSpec, word: ControlWord) -> None:
        """The reducer has completed a round."""
        self._observer.reduced()
        self._gauges.reduced()
        self.handle(events.RoundReduced(spec.iteration, spec.attempt, word))

    async def _send_manifest(self, joiner: bytes, join: int, shard_bytes: int) -> None:
        found = await asyncio.to_thread(leaves, self._state, shard_bytes)
        self.handle(events.ManifestReady(joiner, join, found))

    def _send_shards(
        self, joiner: bytes, join: int, iteration: int, shard_bytes: int, shards: tuple[int, ...]
    ) -> None:
        lineage = self.node.context.lineage if self.node is not None else b""
        for shard in shards:
            payload = shard_view(self._state, shard_bytes, shard)
            self.send_bulk(joiner, shard_header(lineage, join, iteration, shard, payload), payload)

    async def _dial(self, member: Member) -> None:
        try:
            self._network.trust(member.certificate)
            await self._network.dial(peer_of(member))
        except (EdgeAgentError, RemoteProtocolError) as error:
            self._lines.say("dial", f"no link to {member.name}: {error}")
            self.handle(events.DialFailed(member.node))

    def keep_trust(self, node: bytes) -> None:
        """`node` was admitted anew: distrust it no more when its old link ends."""
        if (timer := self._distrusted.pop(node, None)) is not None:
            timer.cancel()

    def _distrust_later(self, node: bytes) -> None:
        """A node that left may still have to fetch what is on its way to it."""
        if node not in self.links:
            self._network.distrust(node)
        elif node not in self._distrusted:
            later = self._loop.call_later(DISTRUST_SECONDS, self._network.distrust, node)
            self._distrusted[node] = later

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
        for peer in self._heartbeats.beat(now):
            if (link := self.links.get(peer)) is not None:
                self._observer.say(f"nothing heard from {link.peer.name}: closing the link")
                self._heartbeats.gone(peer)
                self._progress.ends(now, peer, link.sending)
                self._shorten(peer)
                self.handle(events.Silent(peer))
        self._look_at_progress(now)
        if self.node is not None:
            self._perform(self.recorder.ping(self.node, now))
            self.handle(self._gauges.read(self.links))
            self.waits.tell(now)
        if not self._closed:
            self._ping_timer = self._loop.call_later(limits.HEARTBEAT_SECONDS, self._ping)

    def _look_at_progress(self, now: float) -> None:
        """End the links over which what is sent does not arrive any more."""
        sending = {n: states for n, link in self.links.items() if (states := link.sending)}
        delays = {n: self._heartbeats.delay(n) for n in sending}
        for peer in self._progress.beat(now, sending, delays):
            self._shorten(peer)
            self._cut(self.links[peer], "what is sent does not arrive", LinkEnd.STALLED)

    def _shorten(self, peer: bytes) -> None:
        """Have new connections with `peer` send segments as short as the path needs."""
        segment = self._progress.segment(peer)
        if segment is not None:
            self._network.shorten(peer, segment)
