"""A small seeded world: the real machines of several nodes, with virtual time and network.

Everything that happens follows from the seed. Control messages are delayed at random and so
overtake each other; bulk frames of one direction of a link keep their order, as in a TCP stream.
Nothing goes wrong here except what a test asks for; `harsh.py` is the world of the random
histories.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import random
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from edgeagent.planner.standard import StandardPlanner
from protocols import events
from protocols.cluster.ancestry import Past
from protocols.cluster.stripes import OnLost, begun_anew
from protocols.cluster.view import Member
from protocols.member.context import NodeConfig
from protocols.member.node import Node
from protocols.network.link_end import LinkEnd
from protocols.rounds import control_word
from protocols.scheduler.join_cost import JoinWay
from protocols.wire import codec
from protocols.wire.messages import EVERYONE, Message
from tests.simulation.copies import UPDATE_BYTES
from tests.simulation.host import Host as Host
from tests.simulation.keepers import Keepers
from tests.simulation.numbers import (
    CONSTANT_BYTES,
    STATE_ELEMENTS,
    VECTOR,
    contribution,
    weights_of,
)
from tests.simulation.numbers import expected_state as expected_state
from tests.simulation.sharding import ANEW, Losses, chunks_of, expected
from tests.simulation.training import Sums, Training

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.network.routing import Router
    from protocols.rounds.round import RoundSpec
    from protocols.scheduler.planning import Planner
    from protocols.wire.envelope import Envelope
    from tests.simulation.gathering import Gathering
    from tests.simulation.host import Reduce
    from tests.simulation.ways import WaysPlanner

SAMPLES = 32  # of one iteration


@lru_cache(512)
def decoded(frame: bytes) -> Envelope:
    """Decode a control frame; the result is kept, because many nodes get the same frame."""
    return codec.decode(frame)


def member(number: int, incarnation: int = 1, *, sparse: bool = False) -> Member:
    """Return the `number`th node of the world."""
    node = hashlib.sha256(b"node %d" % number).digest()
    address = f"10.0.0.{number}:1"
    return Member(node, incarnation, f"n{number}", "sim", (address,), b"", sparse=sparse)


class World:
    """Hosts, their links, and a queue of what is to happen at which time."""

    def __init__(self, seed: int, *, micro_batches: int = 8, steps: int = 30) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.micro_batches = micro_batches
        self.steps = steps
        self.hosts: dict[bytes, Host] = {}
        self.tamper: Callable[[Host, int, bytes], bytes] = lambda _host, _shard, piece: piece
        self.is_frozen = False  # a part of the state never changes, and most devices start with it
        self.some_doubt = False  # some devices do not know whether they have that part as it was
        self.streams = False  # trainers announce chunks while they compute
        self.training: Callable[[int], Training] = Sums  # how devices train
        self.gathering: Gathering | None = None  # checks rounds where it matters who computed what
        self.is_long = False  # whether trainers say in the middle of a round how far they are
        self.keepers = Keepers(self)
        self.stripes = 0  # into which the optimizer's state is divided; 0: all keep all of it
        self.stripe_copies = 0  # of each
        self.stripe_bytes = 0  # of the slots of one, of which policies let 16 MiB be learned
        self.on_lost = OnLost.WAIT  # what devices do if all holders of one are lost
        # Lineage and iteration -> what of the state at its start was lost before.
        self.losses: dict[tuple[bytes, int], Losses] = {}
        # (iteration, chunk) of results that an owner made with slots that began anew.
        self.made_anew: set[tuple[int, int]] = set()
        self.sparse = False  # nodes want no links except those that they ask for
        self.most_links = 0  # that each node wants; 0: as many as the scheduler chooses
        self.pauses = False  # nodes wait if they have no quorum
        self.ways: WaysPlanner | None = None  # plans with several ways instead of one tree
        self.rotate_every = 0  # steps after which the role rotates; 0: never
        self.join_way = JoinWay.PAUSE  # how joiners copy the state
        self.memory_is_short = False  # whether now and then a device cannot keep copies for them
        self.outside: dict[bytes, None] = {}  # devices that are to follow, and not to enter
        self.joins_end = False  # a host whose join has failed gives up
        self.lose: Callable[[Host, Host, Message], bool] = lambda _sender, _receiver, _message: (
            False
        )
        self.unreachable: Callable[[Host, Host], bool] = lambda _host, _other: False
        self.severed: dict[tuple[bytes, bytes], None] = {}  # pairs that cannot open a link
        self.linger = 1.0  # seconds between a node's departure and the end of its links
        self.most_compute = 0.02
        self.arrived = 0  # number of messages and bulk frames that have arrived
        self._moments: dict[int, list[Callable[[], None]]] = {}  # number -> what happens before it
        self.lost = 0  # number of control messages that were lost because of `lose`
        self.most_delay = self.random.choice((0.001, 0.01, 0.1))
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._streams: dict[tuple[bytes, bytes], float] = {}
        self.changed: dict[bytes, Host] = {}  # hosts with events since the last check
        # (lineage, iteration) -> C before it, and who has told it
        self.commits: dict[tuple[bytes, int], tuple[bytes, Host]] = {}
        self.leaders: dict[tuple[bytes, int], bytes] = {}  # (lineage, term) -> who was elected

    # --- time ---------------------------------------------------------------------------------

    def later(self, delay: float, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay, self._count, what))

    def delay(self) -> float:
        return self.random.uniform(0.0001, self.most_delay)

    def compute(self) -> float:
        return self.random.uniform(0.0001, self.most_compute)

    def searching(self) -> float:
        return self.compute() + self.delay()

    def arm(self, host: Host) -> None:
        """Tell `host` the time (`Tick`) when its node's deadline comes."""
        due = host.node.deadline if host.node and host.gone is None else None
        if due is None or host.armed <= due:
            return
        host.armed = due
        wait = max(0.0, due - host.clock()) / host.rate
        self.later(wait + 1e-6, lambda: self.tick(host))

    def tick(self, host: Host) -> None:
        host.armed = math.inf
        due = host.node.deadline if host.node and host.gone is None else None
        if due is None:
            return
        if due <= host.clock():
            host.handle(events.Tick())
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

    def post(self, sender: Host, to: bytes, frame: bytes) -> None:
        """Send a control frame."""
        self.later(self.delay(), lambda: self.control(sender, to, frame))

    def control(self, sender: Host, to: bytes, frame: bytes) -> None:
        if (host := sender.links.get(to)) is None:
            return
        self.arrives()
        if sender.links.get(to) is not host:
            return  # the test has ended the link right before this message
        envelope = decoded(frame)
        if self.lose(sender, host, envelope.message):
            self.lost += 1
        else:
            host.handle(events.Received(sender.me.node, envelope))

    def stream(self, sender: Host, to: bytes, what: Callable[[Host], None], size: int = 0) -> None:
        """Deliver a bulk frame, in order. Its `size` matters only where paths are narrow
        (`narrow.py`)."""
        if (host := sender.links.get(to)) is None:
            return
        key = (sender.me.node, to)
        at = max(self._streams.get(key, 0.0), self.now + self.delay())
        self._streams[key] = at
        self.later(at - self.now, partial(self.bulk, host, what))

    def probe(self, host: Host, node: bytes) -> None:
        """Let `host` probe its link to a node, which can then measure it."""
        if (other := self.hosts.get(node)) is not None:
            self.later(self.delay(), partial(other.probed, host))

    def bulk(self, host: Host, what: Callable[[Host], None]) -> None:
        self.arrives()
        what(host)

    def before(self, count: int, what: Callable[[], None]) -> None:
        """Call `what` right before the `count`th message or bulk frame from now arrives."""
        self._moments.setdefault(self.arrived + count, []).append(what)

    def arrives(self) -> None:
        self.arrived += 1
        for what in self._moments.pop(self.arrived, []):
            what()

    def passes(self, sender: Host, host: Host) -> bool:
        """Whether frames of any length get from `sender` to `host`."""
        return (sender.me.node, host.me.node) not in self.severed

    def dial(self, host: Host, who: Member) -> None:
        other = self.hosts.get(who.node)
        if host.gone is not None:
            return
        dead = other is None or other.gone is not None or host.me.node not in other.trusted
        apart = (host.me.node, who.node) in self.severed
        if other is None or dead or apart or self.unreachable(host, other):
            host.handle(events.DialFailed(who.node))
        elif who.node not in host.links:
            host.links[who.node], other.links[host.me.node] = other, host
            host.handle(events.LinkUp(other.me))
            other.handle(events.LinkUp(host.me))

    def hang_up(self, host: Host, node: bytes) -> None:
        if (other := host.links.get(node)) is not None:
            self.unlink(host, other, LinkEnd.GOODBYE)

    def unlink(self, a: Host, b: Host, why: LinkEnd) -> None:
        self.unlink_for(a, b, why, why)

    def unlink_for(self, a: Host, b: Host, why: LinkEnd, other: LinkEnd) -> None:
        """End a link, for the reason `why` at the end of `a` and `other` at that of `b`."""
        a.links.pop(b.me.node, None)
        b.links.pop(a.me.node, None)
        a.handle(events.LinkDown(b.me.node, why))
        b.handle(events.LinkDown(a.me.node, other))

    def close(self, host: Host) -> None:
        for other in list(host.links.values()):
            self.unlink(host, other, LinkEnd.GOODBYE)

    def kill(self, host: Host) -> None:
        """Kill a process as `kill -9` does: each neighbour sees its connections end, at its own
        moment."""
        self.keepers.goes(host)
        host.gone = "killed"
        for other in list(host.links.values()):
            del host.links[other.me.node]
            self.later(self.delay(), partial(self.reset, other, host))

    def reset(self, host: Host, gone: Host) -> None:
        if host.links.pop(gone.me.node, None) is not None:
            host.handle(events.LinkDown(gone.me.node, LinkEnd.PROCESS_ENDED))

    def cut(self, a: Host, b: Host) -> None:
        """Break a link for good: both ends time out, and it cannot be opened again."""
        self.severed |= dict.fromkeys(((a.me.node, b.me.node), (b.me.node, a.me.node)))
        if b.me.node in a.links:
            a.links.pop(b.me.node, None)
            b.links.pop(a.me.node, None)
            a.handle(events.LinkDown(b.me.node, LinkEnd.SILENT))
            b.handle(events.LinkDown(a.me.node, LinkEnd.SILENT))

    def vanish(self, host: Host) -> None:
        """End a host without a goodbye, at once for all its neighbours."""
        self.keepers.goes(host)
        host.gone = host.gone or "vanished"
        for other in list(host.links.values()):
            self.unlink(host, other, LinkEnd.PROCESS_ENDED)

    def say(self, sender: Host, to: Host, message: Message, *, everyone: bool = False) -> None:
        """Have `sender` send a message that its node has not decided to send."""
        assert sender.node is not None
        context = sender.node.context
        policy = context.policy
        key = (policy.view.number, policy.version) if policy else (0, 0)
        tags = (context.lineage, context.election.term, *key, context.iteration, context.attempt)
        destination = EVERYONE if everyone else to.me.node
        envelope = context.router.stamp(tags, destination, message)
        to.handle(events.Received(sender.me.node, envelope))

    # --- people -------------------------------------------------------------------------------

    def config(self, who: Member, neighbours: tuple[str, ...] = ()) -> NodeConfig:
        size = STATE_ELEMENTS * 16
        counts = (self.micro_batches, SAMPLES, self.steps)
        options = (neighbours, self.pauses, self.rotate_every)
        config = NodeConfig(who, VECTOR + 1, size, *counts, *options)
        if self.join_way is not JoinWay.PAUSE:
            config = replace(config, update_bytes=UPDATE_BYTES, join_way=self.join_way)
        if self.ways is not None:
            config = replace(config, window=self.ways.window)
        if who.node in self.outside:
            config = replace(config, follows=True)
        if self.stripes:
            config = replace(
                config,
                stripes=self.stripes,
                copies=self.stripe_copies,
                stripe_bytes=self.stripe_bytes,
                on_lost=self.on_lost,
            )
        if not self.is_frozen:
            return config
        host = self.hosts.get(who.node)
        same = host is not None and host.me == who  # the same process, perhaps joining again
        weights = host.constant if host is not None and same else weights_of(who)
        doubts = self.some_doubt and who.node[-1] % 2 == 1
        digest = b"" if doubts else hashlib.sha256(weights).digest()
        return replace(config, constant_bytes=CONSTANT_BYTES, constants=digest)

    @property
    def planner(self) -> Planner:
        """The planner of each node."""
        return self.ways or StandardPlanner()

    def add(self, number: int, incarnation: int = 1, neighbours: tuple[str, ...] = ()) -> Host:
        """Add a device's new agent; if there was one on the same device it ends first."""
        who = member(number, incarnation, sparse=self.sparse)
        who = replace(who, most_links=self.most_links)
        before = self.hosts.get(who.node)
        router: Router | None = None
        if before is not None and before.node is not None:
            self.vanish(before)
            if before.me == who:
                router = before.node.context.router
        host = self.hosts[who.node] = Host(self, who)
        host.node = Node(self.config(who, neighbours), self.planner, router)
        return host

    def found(self, number: int = 0) -> Host:
        host = self.add(number)
        assert host.node is not None
        lineage = self.random.randbytes(16)
        host.perform(host.node.found(self.now, lineage, Past(), b"meta 0"))
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

    # --- what hosts tell ----------------------------------------------------------------------

    def follow(self, node: bytes, *, wanted: bool = True) -> None:
        """Have the user of a device want it to follow from outside, or to take part again."""
        self.outside.pop(node, None)
        if wanted:
            self.outside[node] = None
        host = self.hosts.get(node)
        if host is not None and host.node is not None:
            config = replace(host.node.context.config, follows=wanted)
            host.node.context.config = config

    def stands_by(self, host: Host, reason: str) -> None:
        """`host` follows from outside for now."""

    def join_failed(self, host: Host) -> None:
        """The join of `host` has failed."""
        if self.joins_end:
            host.gone = "join failed"
            self.later(0.1, lambda: self.close(host))

    def departed(self, host: Host, why: str) -> None:
        """The part of `host` is over."""
        self.keepers.goes(host)
        host.gone = why
        self.later(self.linger, lambda: self.close(host))

    def handled(self, host: Host, event: events.Event) -> None:
        """Called after `host` has taken an event."""

    def commit_of(self, _host: Host) -> bytes:
        """Return the commit id of the trainer's state, which may be behind its node's."""
        return bytes(32)

    def begun(self, host: Host, spec: RoundSpec) -> None:
        """Called when `host` is about to begin a round."""

    def worked(self, host: Host, micro_batches: tuple[int, ...]) -> None:
        """Called when the trainer of `host` has computed micro-batches of its iteration."""

    def contributed(self, host: Host, reduce: Reduce) -> None:
        """Called when `host` contributes to its attempt of a round."""

    def kept(self, host: Host, reduce: Reduce, have: bytes) -> None:
        """Check the chunks `have` that `host`, which has frozen, reports of its round: a fence may
        keep them, so each must be the sum of all micro-batches."""
        spec, chunks = reduce.round.spec, control_word.numbers(have, reduce.round.spec.chunks)
        parts = [contribution(spec.iteration, m) for m in range(self.micro_batches)]
        whole = [sum(column) for column in zip(*parts, strict=True)]
        if self.stripes:
            chunks, whole = self._results(host, reduce, chunks)
        wrong = [c for c in chunks if c and reduce.partial[c] != whole[c - 1]]
        liars = any(h.is_wrong for h in self.hosts.values())
        assert not wrong or liars, f"{host.me.name} keeps sums that lack work at {spec.iteration}"

    def _results(
        self, host: Host, reduce: Reduce, chunks: tuple[int, ...]
    ) -> tuple[tuple[int, ...], list[int]]:
        """Return those of the `chunks` that are to be updated, and what all results should be. The
        result of a chunk of which the sum is lost is the old one."""
        policy, at = (
            host.node.context.policy if host.node is not None else None,
            reduce.round.spec.iteration,
        )
        stripes = policy.stripes if policy is not None else ()
        anew = {
            (ANEW, x.anew, c)
            for s, x in enumerate(stripes)
            if 0 < x.anew <= at
            for c in chunks_of((s,), self.stripes)
        }
        lost = chunks_of(begun_anew(stripes, at + 1), self.stripes)
        whole = self.right(at + 1, host.slots.losses | anew)
        if host.iteration == at:
            lost = [c for c in lost if c in chunks and reduce.partial[c] == host.state[c - 1]]
        return tuple(c for c in chunks if c not in lost), whole

    def replaced(self, host: Host) -> None:
        """Called when the first shard of another state is about to overwrite that of `host`."""

    def completed(self, host: Host, iteration: int) -> None:
        """Called when the round of `iteration` is complete at `host`."""

    # --- truth --------------------------------------------------------------------------------

    def right(self, iteration: int, losses: Losses = frozenset()) -> list[int]:
        """Return the state at the start of `iteration` if every micro-batch counted once, except
        for `losses`."""
        if self.stripes:
            return expected(iteration, self.micro_batches, losses)[0]
        return expected_state(iteration, self.micro_batches)

    def is_right(self, host: Host) -> bool:
        """Return whether the state of `host` is the right one."""
        return host.state == self.right(host.iteration, host.slots.losses)

    @property
    def members(self) -> list[Host]:
        return [
            h for h in self.hosts.values() if h.gone is None and h.node and h.node.context.is_member
        ]

    def check(self) -> None:
        """Check what must hold after every event, for the hosts that the event concerned."""
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
            for iteration, (lineage, commit, state, losses) in fresh.items():
                known, who = self.commits.setdefault((lineage, iteration), (commit, host))
                # One that is lost with sums that only it had may have an update of its own.
                lost = losses and who.gone is not None
                assert known == commit or lost, "two histories"
                assert list(state) == self.right(iteration, losses) or host.is_wrong, (
                    f"{host.me.name} has the wrong state at {iteration}"
                )

    def describe(self) -> str:
        lines = []
        for host in self.hosts.values():
            if host.node is None:
                lines.append(f"{host.me.name}: no node gone={host.gone}")
            else:
                node = host.node
                joining = node.joining.state if node.joining else "-"
                lines.append(
                    f"{host.me.name}: {node.cycle.state} i={node.context.iteration} join={joining} "
                    f"role={node.context.election.state} term={node.context.election.term} "
                    f"policy={node.context.policy.key if node.context.policy else None} "
                    f"gone={host.gone}"
                )
        return "\n".join(lines)
