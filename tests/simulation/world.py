"""A small seeded world: several nodes' real machines against each other, time and network virtual.

Law: everything that happens follows from the seed. Control messages are delayed at random and so
overtake each other; bulk frames of one direction of a link keep their order, as on a TCP stream.
Training is a stand-in: the contribution of micro-batch (i, m) is a known integer vector and an
update adds the sum to the state, so that the right state of every iteration is known exactly.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import random
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING

from edgeagent.planner import StandardPlanner
from protocols import codec, control_word, effects
from protocols.context import NodeConfig
from protocols.control_word import ControlWord
from protocols.messages import EVERYONE, Message
from protocols.node import Node
from protocols.round import Add, Complete, Finish, Round, RoundEffect, RoundSpec, SendDown, SendUp
from protocols.view import Member

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.messages import Envelope
    from protocols.routing import Router

VECTOR = 4  # elements of the stand-in gradient, one a chunk
STATE_ELEMENTS = 4096  # the stand-in state is larger, so that a pull has several shards
SAMPLES = 32


def contribution(iteration: int, micro_batch: int) -> list[int]:
    """Return the known gradient of one micro-batch."""
    return [(iteration * 31 + micro_batch * 7 + k * 3) % 1009 + 1 for k in range(VECTOR)]


@cache
def expected_state(iteration: int, micro_batches: int) -> list[int]:
    """Return the state at the start of `iteration` if every micro-batch counted exactly once."""
    if iteration == 0:
        return [0] * VECTOR
    parts = [contribution(iteration - 1, m) for m in range(micro_batches)]
    before = expected_state(iteration - 1, micro_batches)
    return [sum(column) for column in zip(before, *parts, strict=True)]


def state_bytes(state: list[int]) -> bytes:
    """Return the flat training state that stands for `state`."""
    return b"".join(x.to_bytes(16, "little") for x in state) * (STATE_ELEMENTS // VECTOR)


@cache
def leaves_of(whole: bytes, shard_bytes: int) -> tuple[bytes, ...]:
    """Return the digests of all shards of a state."""
    pieces = [whole[k : k + shard_bytes] for k in range(0, len(whole), shard_bytes)]
    return tuple(hashlib.sha256(p).digest() for p in pieces)


@lru_cache(512)
def decoded(frame: bytes) -> Envelope:
    """Decode a control frame; many nodes get the same one."""
    return codec.decode(frame)


def member(number: int, incarnation: int = 1, *, sparse: bool = False) -> Member:
    """Return the `number`th node of the world."""
    node = hashlib.sha256(b"node %d" % number).digest()
    address = f"10.0.0.{number}:1"
    return Member(node, incarnation, f"n{number}", "sim", (address,), b"", sparse=sparse)


@dataclass
class Reduce:
    """The stand-in data plane of one node: the real `Round`, integers for chunks."""

    round: Round
    own: list[int] | None = None
    word: ControlWord | None = None
    partial: dict[int, object] = field(default_factory=dict)
    frozen: bool = False
    inbox: dict[tuple[bytes, int], object] = field(default_factory=dict)


class Host:
    """One device: its node, its trainer stand-in, its data plane."""

    def __init__(self, world: World, who: Member) -> None:
        self.world = world
        self.me = who
        self.links: dict[bytes, Host] = {}
        self.trusted: dict[bytes, None] = {}
        self.node: Node | None = None
        self.gone: str | None = None  # why it departed
        self.state = [0] * VECTOR
        self.iteration = 0
        self.done: tuple[int, ...] = ()
        self.own = [0] * VECTOR
        self.reduce: Reduce | None = None
        self.early: list[tuple[bytes, tuple[object, ...], str, int, object]] = []
        self.sums: dict[int, list[int]] = {}
        self.pulled: dict[int, bytes] = {}
        self.history: dict[int, tuple[bytes, bytes, tuple[int, ...]]] = {}
        self.reports: list[effects.Report] = []
        self.joins_failed: list[str] = []
        self.serves: dict[int, list[int]] = {}
        self.kept: dict[int, dict[int, object]] = {}  # reduced chunks of rounds that are over
        self.token = b""  # the one that a member passed on
        self.inbox: list[effects.Event] = []
        self.busy = False
        self.refuses = False  # the trainer hands everything back ...
        self.most_work: int | None = None  # ... or what exceeds this number of micro-batches

    # --- effects ------------------------------------------------------------------------------

    def handle(self, event: effects.Event) -> None:
        self.world.changed[self.me.node] = self
        self.inbox.append(event)
        if self.busy:
            return
        self.busy = True
        while self.inbox and self.node is not None and self.gone is None:
            self.perform(self.node.handle(self.world.now, self.inbox.pop(0)))
        self.busy = False
        self.inbox.clear()
        self.world.arm(self)

    def perform(self, wanted: list[effects.Effect]) -> None:
        for effect in wanted:
            self.perform_one(effect)

    def perform_one(self, effect: effects.Effect) -> None:
        world = self.world
        match effect:
            case effects.Send(to, envelope):
                frame = codec.encode(envelope)
                world.later(world.delay(), lambda: world.control(self, to, frame))
            case effects.Trust(who):
                self.trusted[who.node] = None
            case effects.Distrust(node):
                self.trusted.pop(node, None)
            case effects.Dial(who):
                world.later(world.delay(), lambda: world.dial(self, who))
            case effects.CloseLink(node):
                world.later(world.most_delay, lambda: world.hang_up(self, node))  # flushed
            case effects.BeginTraining(iteration, adopt, _, _):
                self.iteration = iteration
                if adopt:
                    self.adopt()
            case effects.StartRound(spec):
                self.start_round(spec)
            case effects.ServeRound(spec):
                self.serve_round(spec)
            case effects.FreezeRound():
                assert self.reduce is not None
                self.reduce.frozen = True
                self.handle(effects.Frozen(self.reduce.round.have))
            case effects.GiveWork(iteration, micro_batches):
                work = (iteration, micro_batches)
                world.later(world.compute(), lambda: self.compute(*work))
            case effects.Contribute(word):
                self.contribute(word)
            case effects.Apply(iteration, _, _):
                world.later(world.compute(), lambda: self.apply(iteration))
            case effects.TakeDigest(iteration, commit):
                lineage = self.node.context.lineage if self.node else b""
                self.history[iteration] = (lineage, commit, tuple(self.state))
            case effects.SendManifest(joiner, join, shard_bytes):
                self.send_manifest(joiner, join, shard_bytes)
            case effects.SendShards(joiner, join, _, shard_bytes, shards):
                self.serves.setdefault(join, []).extend(shards)
                for shard in shards:
                    self.send_shard(joiner, shard_bytes, shard)
            case effects.Report():
                self.reports.append(effect)
            case effects.UseToken(token):
                self.token = token
            case effects.JoinFailed(reason):
                self.joins_failed.append(reason)
                if self.world.joins_end:
                    self.gone = "join failed"
                    world.later(0.1, lambda: world.close(self))
            case effects.Depart(why, message):
                self.gone = why if why != "error" else message
                world.later(world.linger, lambda: world.close(self))

    # --- trainer stand-in ---------------------------------------------------------------------

    def compute(self, iteration: int, micro_batches: tuple[int, ...]) -> None:
        if self.gone is not None:
            return
        if iteration != self.iteration:
            return
        if self.refuses:
            micro_batches = ()
        elif self.most_work is not None:
            micro_batches = micro_batches[: self.most_work]
        for m in micro_batches:
            assert m not in self.done, "a micro-batch given twice"
            self.own = [a + b for a, b in zip(self.own, contribution(iteration, m), strict=True)]
        self.done += micro_batches
        event = effects.Contributed(iteration, self.done, float(len(self.done)), b"", b"", True)
        self.handle(event)

    def apply(self, iteration: int) -> None:
        if self.gone is not None:
            return
        assert iteration == self.iteration, "an update out of order"
        total = self.sums[iteration]
        self.state = [a + b for a, b in zip(self.state, total, strict=True)]
        self.iteration += 1
        self.done, self.own = (), [0] * VECTOR
        self.handle(effects.Applied(iteration, b"meta %d" % self.iteration))

    def adopt(self) -> None:
        joining = self.node.joining if self.node else None
        assert joining is not None
        whole = b"".join(self.pulled[k] for k in sorted(self.pulled))
        first = [whole[k : k + 16] for k in range(0, 16 * VECTOR, 16)]
        self.state = [int.from_bytes(x, "little") for x in first]
        assert whole == state_bytes(self.state), "a torn state"

    # --- data plane ---------------------------------------------------------------------------

    def start_round(self, spec: RoundSpec) -> None:
        if self.reduce is not None:
            self.kept[self.reduce.round.spec.iteration] = self.reduce.partial
        self.reduce = Reduce(Round(spec))
        kept = self.kept.get(spec.iteration, {})
        for spread in spec.spread:
            if spread.source is None:
                self.reduce.partial |= {chunk: kept[chunk] for chunk in spread.chunks}
        self.drive(self.reduce.round.begin())
        early, self.early = self.early, []
        for sender, key, kind, chunk, value in early:
            self.chunk(sender, key, kind, chunk, value)

    def serve_round(self, spec: RoundSpec) -> None:
        if self.reduce is not None and self.reduce.round.spec.iteration == spec.iteration:
            kept = self.reduce.partial
        else:
            kept = self.kept[spec.iteration]
        for spread in spec.spread:
            for chunk in spread.chunks:
                for to in spread.to:
                    self.bulk(to, "down", chunk, kept[chunk], spec)

    def contribute(self, word: ControlWord) -> None:
        assert self.reduce is not None
        self.reduce.own, self.reduce.word = list(self.own), word
        self.drive(self.reduce.round.contribute())

    def chunk(
        self, sender: bytes, key: tuple[object, ...], kind: str, chunk: int, value: object
    ) -> None:
        """A chunk of a round came in over bulk."""
        if self.gone is not None:
            return
        reduce = self.reduce
        if reduce is not None and reduce.frozen and key == reduce.round.spec.key:
            return
        if reduce is None or key != reduce.round.spec.key:
            if reduce is None or key[3:] > reduce.round.spec.key[3:]:
                self.early.append((sender, key, kind, chunk, value))
            return
        if kind == "up":
            reduce.inbox[sender, chunk] = value
            self.drive(reduce.round.up(sender, chunk))
        else:
            reduce.partial[chunk] = value
            self.drive(reduce.round.down(sender, chunk))

    def part(self, chunk: int) -> object:
        assert self.reduce is not None
        assert self.reduce.own is not None
        return self.reduce.word if chunk == 0 else self.reduce.own[chunk - 1]

    def drive(self, wanted: list[RoundEffect]) -> None:
        reduce = self.reduce
        assert reduce is not None
        for effect in wanted:
            match effect:
                case Add(chunk, child, first):
                    base = self.part(chunk) if first else reduce.partial[chunk]
                    reduce.partial[chunk] = add(base, reduce.inbox.pop((child, chunk)))
                case SendUp(chunk, own):
                    value = self.part(chunk) if own else reduce.partial[chunk]
                    assert reduce.round.spec.parent is not None
                    self.bulk(reduce.round.spec.parent, "up", chunk, value)
                case Finish(chunk, own):
                    if own:
                        reduce.partial[chunk] = self.part(chunk)
                case SendDown(chunk, to):
                    for neighbour in to:
                        self.bulk(neighbour, "down", chunk, reduce.partial[chunk])
                case Complete():
                    spec = reduce.round.spec
                    word = reduce.partial[0]
                    assert isinstance(word, ControlWord)
                    sums = [reduce.partial[k + 1] for k in range(spec.chunks - 1)]
                    self.sums[spec.iteration] = [int(str(x)) for x in sums]
                    self.handle(effects.RoundReduced(spec.iteration, spec.attempt, word))

    def bulk(
        self, to: bytes, kind: str, chunk: int, value: object, spec: RoundSpec | None = None
    ) -> None:
        assert self.reduce is not None
        key = (spec or self.reduce.round.spec).key
        me = self.me.node
        self.world.stream(self, to, lambda host: host.chunk(me, key, kind, chunk, value))

    def send_manifest(self, joiner: bytes, join: int, shard_bytes: int) -> None:
        leaves = leaves_of(state_bytes(self.state), shard_bytes)
        ready = effects.ManifestReady(joiner, join, leaves)
        self.world.later(self.world.compute(), lambda: self.handle(ready))

    def send_shard(self, joiner: bytes, shard_bytes: int, shard: int) -> None:
        piece = state_bytes(self.state)[shard * shard_bytes : (shard + 1) * shard_bytes]
        piece = self.world.tamper(self, shard, piece)
        me = self.me.node
        self.world.stream(self, joiner, lambda host: host.shard(me, shard, piece))

    def shard(self, source: bytes, shard: int, piece: bytes) -> None:
        if self.gone is None and self.node is not None and self.node.joining is not None:
            if not self.node.joining.expects(source, shard):
                return
            self.pulled[shard] = piece
            digest = hashlib.sha256(piece).digest()
            self.handle(effects.ShardArrived(source, shard, digest))


def add(a: object, b: object) -> object:
    """Sum two parts of a chunk."""
    if isinstance(a, ControlWord) and isinstance(b, ControlWord):
        return control_word.decode_word(control_word.merge(a, b).encode())
    assert isinstance(a, int)
    assert isinstance(b, int)
    return a + b


class World:
    """Hosts, links and a queue of things to come."""

    def __init__(self, seed: int, *, micro_batches: int = 8, steps: int = 30) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.micro_batches = micro_batches
        self.steps = steps
        self.hosts: dict[bytes, Host] = {}
        self.tamper: Callable[[Host, int, bytes], bytes] = lambda _host, _shard, piece: piece
        self.sparse = False  # nodes want no links beyond those they ask for
        self.pauses = False  # without a quorum nodes wait
        self.rotate_every = 0  # steps, 0: the scheduler keeps its role
        self.joins_end = False  # a host whose join failed gives up
        self.lose: Callable[[Host, Host, Message], bool] = lambda _sender, _receiver, _message: (
            False
        )
        self.unreachable: Callable[[Host, Host], bool] = lambda _host, _other: False
        self.linger = 1.0  # seconds between a node's departure and the end of its links
        self.most_compute = 0.02
        self.arrived = 0  # messages and bulk frames
        self._moments: dict[int, list[Callable[[], None]]] = {}
        self.lost = 0  # control messages that `lose` took
        self.most_delay = self.random.choice((0.001, 0.01, 0.1))
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._streams: dict[tuple[bytes, bytes], float] = {}
        self._armed: dict[bytes, float] = {}
        self.changed: dict[bytes, Host] = {}  # since the last check
        self.commits: dict[tuple[bytes, int], bytes] = {}  # C of the start of each iteration
        self.leaders: dict[tuple[bytes, int], bytes] = {}  # whom a quorum elected, by term

    # --- time ---------------------------------------------------------------------------------

    def later(self, delay: float, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay, self._count, what))

    def delay(self) -> float:
        return self.random.uniform(0.0001, self.most_delay)

    def compute(self) -> float:
        return self.random.uniform(0.0001, self.most_compute)

    def arm(self, host: Host) -> None:
        """Tick `host` when its node wants it."""
        due = host.node.deadline if host.node and host.gone is None else None
        if due is None or self._armed.get(host.me.node, math.inf) <= due:
            return
        self._armed[host.me.node] = due
        self.later(max(0.0, due - self.now) + 1e-6, lambda: self.tick(host))

    def tick(self, host: Host) -> None:
        self._armed.pop(host.me.node, None)
        due = host.node.deadline if host.node and host.gone is None else None
        if due is None:
            return
        if due <= self.now:
            host.handle(effects.Tick())
        else:
            self.arm(host)

    def run(self, until: Callable[[], bool], most: float = 300.0) -> None:
        """Run until `until()`; fail if that takes more than `most` virtual seconds."""
        end = self.now + most
        while not until():
            assert self._queue, f"nothing left to happen: {self.describe()}"
            self.now, _, what = heapq.heappop(self._queue)
            assert self.now < end, f"no progress: {self.describe()}"
            what()
            self.check()

    # --- network ------------------------------------------------------------------------------

    def control(self, sender: Host, to: bytes, frame: bytes) -> None:
        if (host := sender.links.get(to)) is None:
            return
        self.arrives()
        if sender.links.get(to) is not host:
            return  # something happened to the link at the last moment
        envelope = decoded(frame)
        if self.lose(sender, host, envelope.message):
            self.lost += 1
        else:
            host.handle(effects.Received(sender.me.node, envelope))

    def stream(self, sender: Host, to: bytes, what: Callable[[Host], None]) -> None:
        """Deliver over bulk, in order."""
        if (host := sender.links.get(to)) is None:
            return
        key = (sender.me.node, to)
        at = max(self._streams.get(key, 0.0), self.now + self.delay())
        self._streams[key] = at
        self.later(at - self.now, partial(self.bulk, host, what))

    def bulk(self, host: Host, what: Callable[[Host], None]) -> None:
        self.arrives()
        what(host)

    def before(self, count: int, what: Callable[[], None]) -> None:
        """Do `what` right before the `count`th message or bulk frame from now arrives."""
        self._moments.setdefault(self.arrived + count, []).append(what)

    def arrives(self) -> None:
        self.arrived += 1
        for what in self._moments.pop(self.arrived, []):
            what()

    def dial(self, host: Host, who: Member) -> None:
        other = self.hosts.get(who.node)
        if host.gone is not None:
            return
        dead = other is None or other.gone is not None or host.me.node not in other.trusted
        if other is None or dead or self.unreachable(host, other):
            host.handle(effects.DialFailed(who.node))
        elif who.node not in host.links:
            host.links[who.node], other.links[host.me.node] = other, host
            host.handle(effects.LinkUp(other.me))
            other.handle(effects.LinkUp(host.me))

    def hang_up(self, host: Host, node: bytes) -> None:
        if (other := host.links.get(node)) is not None:
            self.unlink(host, other, clean=True)

    def unlink(self, a: Host, b: Host, *, clean: bool) -> None:
        a.links.pop(b.me.node, None)
        b.links.pop(a.me.node, None)
        a.handle(effects.LinkDown(b.me.node, clean))
        b.handle(effects.LinkDown(a.me.node, clean))

    def close(self, host: Host) -> None:
        for other in list(host.links.values()):
            self.unlink(host, other, clean=True)

    def kill(self, host: Host) -> None:
        """`kill -9`: every neighbour sees a reset, each at its own moment."""
        host.gone = "killed"
        for other in list(host.links.values()):
            del host.links[other.me.node]
            self.later(self.delay(), partial(self.reset, other, host))

    def reset(self, host: Host, gone: Host) -> None:
        if host.links.pop(gone.me.node, None) is not None:
            host.handle(effects.LinkDown(gone.me.node, clean=False, reset=True))

    def cut(self, a: Host, b: Host) -> None:
        """A link fails: both ends time out."""
        if b.me.node in a.links:
            a.links.pop(b.me.node, None)
            b.links.pop(a.me.node, None)
            a.handle(effects.LinkDown(b.me.node, clean=False, reset=False))
            b.handle(effects.LinkDown(a.me.node, clean=False, reset=False))

    def vanish(self, host: Host) -> None:
        """Power off: no goodbye."""
        host.gone = host.gone or "vanished"
        for other in list(host.links.values()):
            self.unlink(host, other, clean=False)

    def say(self, sender: Host, to: Host, message: Message, *, everyone: bool = False) -> None:
        """Have `sender` say something that its machine did not decide to say."""
        assert sender.node is not None
        context = sender.node.context
        policy = context.policy
        key = (policy.view.number, policy.version) if policy else (0, 0)
        tags = (context.lineage, context.election.term, *key, context.iteration, context.attempt)
        destination = EVERYONE if everyone else to.me.node
        envelope = context.router.stamp(tags, destination, message)
        to.handle(effects.Received(sender.me.node, envelope))

    # --- people -------------------------------------------------------------------------------

    def config(self, who: Member, neighbours: tuple[str, ...] = ()) -> NodeConfig:
        size = STATE_ELEMENTS * 16
        counts = (self.micro_batches, SAMPLES, self.steps)
        options = (neighbours, self.pauses, self.rotate_every)
        return NodeConfig(who, VECTOR + 1, size, *counts, *options)

    def add(self, number: int, incarnation: int = 1, neighbours: tuple[str, ...] = ()) -> Host:
        """A device's new agent; one of before on the same device is killed first."""
        who = member(number, incarnation, sparse=self.sparse)
        before = self.hosts.get(who.node)
        router: Router | None = None
        if before is not None and before.node is not None:
            self.vanish(before)
            if before.me == who:
                router = before.node.context.router
        host = self.hosts[who.node] = Host(self, who)
        host.node = Node(self.config(who, neighbours), StandardPlanner(), router)
        return host

    def found(self, number: int = 0) -> Host:
        host = self.add(number)
        assert host.node is not None
        lineage = self.random.randbytes(16)
        host.perform(host.node.found(self.now, lineage, 0, b"meta 0"))
        self.arm(host)
        return host

    def join(
        self,
        number: int,
        sponsor: Host,
        *,
        incarnation: int = 1,
        neighbours: tuple[str, ...] = (),
    ) -> Host:
        host = self.add(number, incarnation, neighbours)
        assert host.node is not None
        sponsor.trusted[host.me.node] = None
        host.perform(host.node.join(self.now, sponsor.me))
        self.arm(host)
        return host

    # --- truth --------------------------------------------------------------------------------

    @property
    def members(self) -> list[Host]:
        return [
            h for h in self.hosts.values() if h.gone is None and h.node and h.node.context.is_member
        ]

    def check(self) -> None:
        """What must hold after every event, of those whom it concerned."""
        while self.changed:
            _, host = self.changed.popitem()
            if host.node is None:
                continue
            context = host.node.context
            election = context.election
            if election.leads and election.by_quorum:
                key, node = (context.lineage, election.term), host.me.node
                assert self.leaders.setdefault(key, node) == node, "two schedulers in one term"
            fresh, host.history = host.history, {}
            for iteration, (lineage, commit, state) in fresh.items():
                known = self.commits.setdefault((lineage, iteration), commit)
                assert known == commit, "two histories"
                right = expected_state(iteration, self.micro_batches)
                assert list(state) == right, f"{host.me.name} has the wrong state at {iteration}"

    def describe(self) -> str:
        lines = []
        for host in self.hosts.values():
            if host.node is not None:
                node = host.node
                joining = node.joining.state if node.joining else "-"
                lines.append(
                    f"{host.me.name}: {node.cycle.state} i={node.context.iteration} join={joining} "
                    f"role={node.context.election.state} term={node.context.election.term} "
                    f"policy={node.context.policy.key if node.context.policy else None} "
                    f"gone={host.gone}"
                )
        return "\n".join(lines)
