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

from edgeagent import handover
from edgeagent.dataplane.gauges import Gauges
from edgeagent.dataplane.probe import Prober
from edgeagent.dataplane.reduce import Reducer
from edgeagent.dataplane.shards import (
    leaves,
    shard_header,
    shard_target,
    shard_view,
    state_digest,
)
from edgeagent.errors import EdgeAgentError
from edgeagent.network import member_of, peer_of
from edgeagent.planner import StandardPlanner
from edgeagent.transport.complaints import Lines
from protocols import codec, effects, limits
from protocols.bulk import BulkHeader, BulkKind
from protocols.context import NodeConfig
from protocols.errors import RemoteProtocolError
from protocols.heartbeats import Heartbeats
from protocols.messages import PullBegins
from protocols.node import Node
from protocols.routing import Router

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.network import Network
    from edgeagent.observer import Observer
    from edgeagent.planner.policies import CustomPolicy
    from edgeagent.search import Spawn
    from edgeagent.shared_memory import SharedMemory
    from edgeagent.transport.api import Link
    from protocols.control_word import ControlWord
    from protocols.messages import Envelope
    from protocols.round import RoundSpec
    from protocols.view import Member

HASH_INLINE_BYTES = 4 << 20  # a larger state is hashed in a thread
READ_AFTER_PROBES = 4  # frames of a probe after which the gauges are read again
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
        join_failed: Callable[[str], None],
        use_token: Callable[[bytes], None],
        spawn: Spawn,
        pauses: bool = False,
        rotate_every: int = 0,
        custom: CustomPolicy | None = None,
    ) -> None:
        """`trainer` sends to the trainer; `departed(why, message)` and `join_failed(reason)` are
        called when the node's part is over, or its join has failed; `use_token` changes the token;
        `spawn` starts a task whose failure ends the agent; `custom` plans; others: `NodeConfig`."""
        self._state = memory.state.view()
        self._trainer = trainer
        self._network = network
        self._observer = observer
        self._departed = departed
        self._join_failed = join_failed
        self._use_token = use_token
        self._spawn = spawn
        self.watch: Callable[[], None] = lambda: None  # called after each event
        self._loop = asyncio.get_running_loop()
        self._contribution = memory.contribution.array(hello.accumulate)
        self._reducer = Reducer(
            self._contribution,
            (memory.reduced[0].array(hello.accumulate), memory.reduced[1].array(hello.accumulate)),
            hello.chunk_elements,
            self,
            self._reduced,
        )
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
        )
        self._router = Router(me.node, me.incarnation)
        self.node: Node | None = None
        self.links: dict[bytes, Link] = {}
        self._inbox: deque[effects.Event] = deque()
        self._busy = self._closed = self._orphan = False
        self._timer: asyncio.TimerHandle | None = None
        self._ping_timer: asyncio.TimerHandle | None = None
        self._hashing: asyncio.Task[None] | None = None
        self._apply: effects.Apply | None = None  # waits for the hash of the state
        self._words: dict[int, ControlWord] = {}
        self._distrusted: dict[bytes, asyncio.TimerHandle] = {}
        self._lines = Lines(observer.say, self._loop.time)
        self._forwarded: dict[bytes, deque[tuple[int, int]]] = {}
        self._heartbeats = Heartbeats()
        chunk_bytes = hello.chunk_elements * self._contribution.itemsize
        self._prober = Prober(self._heartbeats.delay)
        self._gauges = Gauges(self._loop.time, self._heartbeats)
        self._planner = StandardPlanner(self._contribution.nbytes, chunk_bytes, custom)
        self._contributed: handover.Contributed | None = None
        self._own_state: tuple[int, bytes] | None = (hello.iteration, hello.meta)  # None: spoilt

    # --- beginnings and ends ----------------------------------------------------------------------

    def found(self, lineage: bytes) -> None:
        """Found a cluster of one from the trainer's own state, which must not be `spoilt`."""
        assert self._own_state is not None, "a cluster founded from half a state"
        self.node = node = Node(self._config, self._planner, self._router)
        self._perform(node.found(self._loop.time(), lineage, *self._own_state))
        self._ping()

    @property
    def spoilt(self) -> bool:
        """Whether the state is neither the trainer's own any more nor that of a cluster's member:
        a pull has begun to overwrite it."""
        return self._own_state is None and not (self.node and self.node.context.is_member)

    def join(self, sponsor: Member, incarnation: int) -> None:
        """Join the cluster of `sponsor`; a node that was there before is given up. Who has been a
        member in this process needs a larger `incarnation` than then: nobody who has not heard of
        its end is to take it for the member that it was."""
        self._note_own_state()
        self._reducer.reset()
        me = replace(self._config.me, incarnation=incarnation)
        if me != self._config.me:
            self._config = replace(self._config, me=me)
            self._router = Router(me.node, incarnation)
        self.node = node = Node(self._config, self._planner, self._router)
        self._perform(node.join(self._loop.time(), sponsor))
        self._ping()

    def _note_own_state(self) -> None:
        """What a member's trainer has is whole: it could found a cluster from it."""
        if self.node is not None and self.node.context.is_member:
            self._own_state = (self.node.context.iteration, self.node.context.meta)

    def give_way(self) -> None:
        """Depart ("yielded") as soon as the trainer is idle, to join another cluster."""
        self.handle(effects.YieldWanted())

    def leave(self) -> None:
        """Leave gracefully."""
        self.handle(effects.LeaveWanted())

    def orphaned(self) -> None:
        """The trainer is gone: hand back its work and leave, so that nobody waits for it."""
        self._orphan = True
        node = self.node
        if node is not None:
            if node.cycle.state == "computing":
                self._contributed = None  # P may hold half of what was to be added
            self._answer_for_trainer(node.context.iteration)
            self.leave()

    async def drop_links(self) -> None:
        """Close all links and forget the node."""
        self._note_own_state()
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
        if self._hashing is not None:  # the digest is an event that users wait for
            await asyncio.wait([self._hashing])

    # --- events -----------------------------------------------------------------------------------

    def handle(self, event: effects.Event) -> None:
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
                self._perform(self.node.handle(self._loop.time(), self._inbox.popleft()))
                self.watch()
        except RemoteProtocolError:
            if self._inbox:
                self._loop.call_soon(self._work_off)
            raise
        finally:
            self._busy = False

    def from_trainer(self, message: handover.Message) -> None:
        """A message of the trainer."""
        match message:
            case handover.Contributed():
                self._contributed = message
                self._observer.contributed(message.compute_seconds)
                self._gauges.contributed(len(message.micro_batches), message.compute_seconds)
                self.handle(
                    effects.Contributed(
                        message.iteration,
                        message.micro_batches,
                        message.loss_sum,
                        message.gradient_bitmap,
                        message.integer_buffers,
                        message.integer_buffers_agree,
                    )
                )
            case handover.Applied(iteration, _, skipped, meta):
                self._stepped(iteration, skipped)
                if self.node is None and self._own_state is not None:
                    self._own_state = (iteration + 1, meta)  # of the member that this node was
                self.handle(effects.Applied(iteration, meta))
            case handover.ExitRequested():
                self.leave()
            case handover.Away(away):
                self.handle(effects.AwayWanted(away))
            case handover.Evaluated(iteration, name, value):
                self._observer.event("evaluated", iteration=iteration, name=name, value=value)

    # --- LinkListener -----------------------------------------------------------------------------

    def link_up(self, link: Link) -> None:
        """Called by the transport."""
        self.links[link.peer.node] = link
        self._heartbeats.linked(self._loop.time(), link.peer.node)
        self.handle(effects.LinkUp(member_of(link.peer)))

    def link_down(self, link: Link, reason: str, clean: bool) -> None:
        """Called by the transport."""
        peer = link.peer.node
        if self.links.get(peer) is link:
            del self.links[peer]
            self._reducer.forget(peer)
            self._observer.delays.pop(peer, None)
            self._heartbeats.gone(peer)
            self._forwarded.pop(peer, None)
            self.handle(effects.LinkDown(peer, clean))
            if (timer := self._distrusted.pop(peer, None)) is not None:
                timer.cancel()
                self._network.distrust(peer)

    def control_received(self, link: Link, frame: bytes) -> None:
        """Called by the transport."""
        self._heartbeats.heard(self._loop.time(), link.peer.node)
        self.handle(effects.Received(link.peer.node, codec.decode(frame)))

    def bulk_arriving(self, link: Link, header: BulkHeader) -> memoryview | None:
        """Called by the transport."""
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
        self.handle(effects.ShardArrived(source, header.index, digest, link.incoming_rate))

    def _shard_arriving(self, source: bytes, header: BulkHeader) -> memoryview | None:
        joining = self.node.joining if self.node is not None else None
        if joining is None or header.reference != joining.number:
            return None
        if not joining.expects(source, header.index):
            return None
        self._own_state = None
        return shard_target(self._state, joining.shard_bytes, header)

    # --- Wire (of the reducer) --------------------------------------------------------------------

    def send_bulk(self, to: bytes, header: BulkHeader, payload: memoryview) -> None:
        """Queue a bulk frame for `to`; a joiner that does not take what it follows has to go."""
        link = self.links.get(to)
        if link is None:
            return
        if header.kind is BulkKind.DOWN and not self._is_member(to):
            if self._waiting_for(link) + len(payload) > self._most_waiting:
                self._cut(link, "it takes too little of what is sent to it")
                return
            end = link.bulk_bytes_sent + link.bulk_queued + len(payload)
            self._forwarded.setdefault(to, deque()).append((end, len(payload)))
        link.send_bulk(header, payload)

    def _is_member(self, node: bytes) -> bool:
        policy = self.node.context.policy if self.node is not None else None
        return policy is not None and policy.view.member(node) is not None

    def _waiting_for(self, link: Link) -> int:
        """Bytes of reduced chunks (copies, unlike shards) that `link` has not sent yet."""
        queued = self._forwarded.get(link.peer.node, deque())
        while queued and queued[0][0] <= link.bulk_bytes_sent:
            queued.popleft()
        return sum(size for _, size in queued)

    @property
    def _most_waiting(self) -> int:
        return max(limits.MAX_SUBSCRIBER_QUEUE_BYTES, 2 * self._contribution.nbytes)

    def accuse(self, peer: bytes, reason: str) -> None:
        """End the link to `peer`, whose part of a round cannot be right."""
        if (link := self.links.get(peer)) is not None:
            self._cut(link, reason)

    def _cut(self, link: Link, reason: str) -> None:
        """End a link at once, with one line; for the node it is lost from here on."""
        self._lines.say("cut", f"closed the link to {link.peer.name}: {reason}")
        link.discard_bulk()
        self.link_down(link, reason, clean=False)
        self._spawn(link.close(flush=False))

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
                self.handle(effects.Frozen(self._reducer.freeze()))
            case effects.GiveWork(iteration, micro_batches):
                self._give_work(iteration, micro_batches)
            case effects.Contribute(word):
                self._reducer.contribute(word)
            case effects.Apply():
                self._apply = effect
                if self._hashing is None:
                    self._send_apply()
            case effects.TakeDigest(iteration, commit):
                self._take_digest(iteration, commit)
            case effects.BeginTraining(iteration, adopt, meta, steps):
                steps = 0 if steps == limits.MAX_INTEGER else steps
                self._trainer(handover.Begin(iteration, adopt, meta, steps))
            case effects.Report(event, values):
                if event == "delay":
                    self._heartbeats.answered(values["id"], values["seconds"])
                self._observer.report(event, values)
            case effects.UseToken(token):
                self._use_token(token)
            case effects.Depart(why, message):
                self._departed(why, message)
            case effects.JoinFailed(reason):
                self._join_failed(reason)
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
        return self._orphan and isinstance(envelope.message, PullBegins)

    def _give_work(self, iteration: int, micro_batches: tuple[int, ...]) -> None:
        self._observer.work_given()
        if self._orphan:
            self._loop.call_soon(self._answer_for_trainer, iteration)
        else:
            self._trainer(handover.Work(iteration, micro_batches))

    def _send_apply(self) -> None:
        effect, self._apply = self._apply, None
        if effect is None:
            return
        word = effect.word
        self._words = {effect.iteration: word}
        self._observer.apply_sent()
        if self._orphan:
            applied = effects.Applied(effect.iteration, b"")
            self._loop.call_soon(self.handle, applied)
            return
        self._trainer(
            handover.Reduced(
                effect.iteration,
                effect.iteration % 2,
                word.weight,
                word.loss_sum,
                word.gradient_bitmap,
                word.integer_buffers,
                word.agree,
                tuple(self._reducer.square_sums),
                effect.members,
            )
        )

    def _answer_for_trainer(self, iteration: int) -> None:
        """Say what the trainer had finished of `iteration`, and nothing more."""
        last = self._contributed
        done = last.micro_batches if last is not None and last.iteration == iteration else ()
        if not done:
            self._contribution.fill(0)
        if self.node is not None and self.node.cycle.state == "applying":
            self.handle(effects.Applied(iteration, b""))
        elif last is not None and done:
            self.handle(
                effects.Contributed(
                    iteration,
                    done,
                    last.loss_sum,
                    last.gradient_bitmap,
                    last.integer_buffers,
                    last.integer_buffers_agree,
                )
            )
        else:
            self.handle(effects.Contributed(iteration, (), 0.0, b"", b"", True))

    def _stepped(self, iteration: int, skipped: bool) -> None:
        node, word = self.node, self._words.pop(iteration, None)
        if node is not None and word is not None:
            samples = self._config.samples_per_iteration
            policy = node.context.policy
            members = len(policy.view.members) if policy is not None else 1
            self._observer.stepped(
                iteration + 1, node.context.steps, word, samples, members, skipped
            )

    def _reduced(self, spec: RoundSpec, word: ControlWord) -> None:
        """The reducer has completed a round."""
        self._observer.reduced()
        self._gauges.reduced()
        self.handle(effects.RoundReduced(spec.iteration, spec.attempt, word))

    def _take_digest(self, iteration: int, commit: bytes) -> None:
        node = self.node
        if node is None or self._orphan:
            return
        meta = node.context.meta
        if len(self._state) <= HASH_INLINE_BYTES:
            self._digest_taken(iteration, commit, state_digest(self._state, meta))
        else:
            self._hashing = self._spawn(self._hash(iteration, commit, meta))

    async def _hash(self, iteration: int, commit: bytes, meta: bytes) -> None:
        digest = await asyncio.to_thread(state_digest, self._state, meta)
        self._hashing = None
        self._digest_taken(iteration, commit, digest)
        self._send_apply()

    def _digest_taken(self, iteration: int, commit: bytes, digest: str) -> None:
        self._observer.event("digest", iteration=iteration, state=digest, commit=commit.hex())

    async def _send_manifest(self, joiner: bytes, join: int, shard_bytes: int) -> None:
        found = await asyncio.to_thread(leaves, self._state, shard_bytes)
        self.handle(effects.ManifestReady(joiner, join, found))

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
            self.handle(effects.DialFailed(member.node))

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
            self._timer = self._loop.call_at(due, self.handle, effects.Tick())

    def _ping(self) -> None:
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        now = self._loop.time()
        for peer in self._heartbeats.beat(now):
            if (link := self.links.get(peer)) is not None:
                self._observer.say(f"nothing heard from {link.peer.name}: closing the link")
                self._heartbeats.gone(peer)
                self.handle(effects.Silent(peer))
        if self.node is not None:
            self._perform(self.node.ping(now))
            self.handle(self._gauges.read(self.links))
        if not self._closed:
            self._ping_timer = self._loop.call_later(limits.HEARTBEAT_SECONDS, self._ping)
