"""One device of the simulated world: its node, a stand-in for its trainer, and its data plane.

A host performs the effects of its node as the agent's shell does, and decides nothing itself, so
that the tests examine the protocol alone. In place of training, micro-batch (i, m) contributes a
known vector of integers and an update adds the sum of all contributions to the state. Thus the
right state after every iteration is known exactly, and a micro-batch that was lost or counted twice
shows. A host reads its own clock, which may run faster or slower than the world's.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from protocols import effects, events, limits
from protocols.cluster.ancestry import Past
from protocols.network.progress import Progress
from protocols.rounds import control_word
from protocols.rounds.control_word import ControlWord
from protocols.rounds.divergence import is_final
from protocols.rounds.round import (
    Add,
    Complete,
    Decided,
    Finish,
    KeepSum,
    Round,
    RoundEffect,
    RoundSpec,
    SendDown,
    SendSum,
    SendUp,
)
from protocols.wire import codec
from tests.simulation import naming, pulls, streaming, trainer_effects
from tests.simulation.copies import CopyStore
from tests.simulation.narrow import LARGE_FRAME, SMALL_FRAME
from tests.simulation.numbers import STATE_ELEMENTS, VECTOR, settings, state_bytes, weights_of
from tests.simulation.sharding import Losses, Slots

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.cluster.view import Member
    from protocols.member.node import Node
    from tests.simulation.world import World

# The least rate in bytes per second that a probe of a link finds.
LEAST_RATE = 1e5

Mark = tuple[object, ...]  # the key of a round's attempt, and the root


@dataclass
class Reduce:
    """The data plane of one node for one round: the real `Round`, with integers for chunks.

    `own` and `word` are this node's contribution, `partial` has the sums by chunk, and `inbox` what
    children have sent and is not added yet. A `frozen` round accepts no chunk any more.
    """

    round: Round
    own: list[int] | None = None
    word: ControlWord | None = None
    partial: dict[int, object] = field(default_factory=dict)
    made: dict[int, Mark] = field(default_factory=dict)  # the attempt that reduced a chunk
    frozen: bool = False
    named: tuple[int, int] = (0, 0)  # the policy that the word names that is summed here
    inbox: dict[tuple[bytes, int], object] = field(default_factory=dict)


class Host:
    """One device of `world`; `who` names it as its cluster does."""

    def __init__(self, world: World, who: Member) -> None:
        self.world = world
        self.me = who
        self.links: dict[bytes, Host] = {}
        self.trusted: dict[bytes, None] = {}
        self.node: Node | None = None
        self.gone: str | None = None  # why the device has gone, None while it runs
        self.state = [0] * VECTOR  # the state where the trainer works on it
        self.constant = weights_of(who) if world.is_frozen else b""  # the state begins with it
        self.home = self.state  # the state in the shared memory, which the agent hashes and sends
        self.apart = False  # whether the trainer works elsewhere, so that `home` may be older
        self.iteration = 0
        self.done: tuple[int, ...] = ()  # the micro-batches in `own`
        self.training = world.training(world.micro_batches)
        self.own = [0] * VECTOR  # what this node adds to the sum of the round
        self.ahead = self.own  # that sum with what the trainer still computes
        self.reduce: Reduce | None = None  # the round under way
        # Chunks of rounds that have not begun here yet: sender, round, direction, chunk and value.
        self.early: list[tuple[bytes, tuple[object, ...], str, int, object]] = []
        self.sums: dict[int, list[int]] = {}  # the reduced gradient of each iteration
        # Which attempt has reduced each chunk of an iteration's sum.
        self.made: dict[int, tuple[tuple[int, Mark], ...]] = {}
        self.pulled: dict[int, bytes] = {}  # the shards that have arrived, by number
        self.copies = CopyStore(self)
        self.slots = Slots(self)  # used only if the world has stripes
        # The lineage, the commit id, the state at the start of each iteration, what it has lost.
        self.history: dict[int, tuple[bytes, bytes, tuple[int, ...], Losses]] = {}
        self.reports: list[effects.Report] = []
        self.joins_failed: list[str] = []
        self.serves: dict[int, list[int]] = {}  # the shards that it has sent, by join
        self.kept: dict[int, Reduce] = {}  # rounds that are over, by iteration
        self.token = b""  # the new token that a member has passed on
        self.inbox: list[events.Event] = []  # what its node has still to handle
        self.busy = False  # whether its node is handling an event
        self.busy_until = 0.0  # when the trainer has done all the work that it was given
        self.refuses = False  # whether the trainer hands all micro-batches back
        self.stops = False  # whether its script wants training to end, on all nodes
        self.most_work: int | None = None  # micro-batches beyond this number are handed back
        self.ends: dict[bytes, int] = {}  # the number of the link to each neighbour
        self.rate = 1.0  # how many of its clock's seconds pass in one of the world's
        self.offset = 0.0  # what its clock is ahead, in seconds
        self.armed = math.inf  # when its node wants its next tick, by its own clock
        self.asleep = False
        self.waiting: list[Callable[[], None]] = []  # what came up while it was asleep
        self.life = 0  # grows when its node is given up for another one
        self.rates: dict[bytes, float] = {}  # of links, in bytes/s, as probes have shown
        self.spoilt = False  # whether a pull has begun to overwrite the state
        self.turn = 0  # of the work that the trainer does, as the node counts
        self.hangs = False  # whether the trainer answers nothing at present
        self.undone: list[Callable[[], None]] = []  # what the trainer has to do after it has hung
        self.lost_trainer = False  # whether the trainer's process has ended
        self.slips = False  # whether the next update goes wrong here, unnoticed by this device
        self.is_wrong = False  # whether the state differs from that of the others
        self.past = Past()  # the ancestry of its state, for when it has to join or found again
        self.commit = bytes(32)  # the commit id of that state, as the world computes it
        self.trained = False  # whether it has been a member with a whole state since its last join
        self.aside: list[int] = []  # the iterations of the states that were put aside
        self.progress = Progress()
        self.segments: dict[bytes, int] = {}  # the longest segments of new links, by neighbour

    @property
    def is_member(self) -> bool:
        """Return whether the device takes part in a cluster at present."""
        return self.gone is None and self.node is not None and self.node.context.is_member

    @property
    def has_time(self) -> bool:
        """Return whether its trainer answers nothing, or replays updates before it does work that
        nobody else can, and the protocol still allows it time.

        Until that time, which is known, the others wait.
        """
        debt = self.node.debt if self.node is not None else None
        if debt is None:
            return False
        due = debt.later_due if debt.is_behind else debt.deadline
        return (self.hangs or debt.is_behind) and due is not None and self.clock() <= due

    def clock(self) -> float:
        """Return the time of this device's clock, in its own seconds."""
        return self.world.now * self.rate + self.offset

    def soon(self, delay: float, what: Callable[[], None]) -> None:
        """Have something done after `delay` seconds, unless this node is given up before."""
        self.world.later(delay, partial(self.awake, self.life, what))

    def awake(self, life: int, what: Callable[[], None]) -> None:
        """Do `what` now, or as soon as the device wakes up, unless its node is of another life."""
        if life != self.life or self.gone is not None:
            return
        if self.asleep:
            self.waiting.append(partial(self.awake, life, what))
        else:
            what()

    @property
    def flat(self) -> bytes:
        """The flat training state in the shared memory."""
        return self.constant + state_bytes(self.home)[len(self.constant) :]

    def forget(self) -> None:
        """Forget the rounds of the present node, because another begins in the same process."""
        self.life += 1
        self.copies.forget()
        self.slots.sums = {}
        self.reduce = None
        self.early, self.sums, self.kept, self.pulled, self.made = [], {}, {}, {}, {}
        self.done, self.own, self.turn = (), [0] * VECTOR, 0
        self.training.begin()
        self.armed = math.inf

    # --- effects ------------------------------------------------------------------------------

    def handle(self, event: events.Event) -> None:
        """Have the node handle an event and perform its effects.

        Effects may cause further events; they wait until those before them are done.
        """
        if self.asleep:
            self.waiting.append(partial(self.handle, event))
            return
        self.world.changed[self.me.node] = self
        self.inbox.append(event)
        if self.busy:
            return
        self.busy = True
        while self.inbox and self.node is not None and self.gone is None:
            first = self.inbox.pop(0)
            self.perform(self.node.handle(self.clock(), first))
            self.world.handled(self, first)
        self.busy = False
        self.inbox.clear()
        self.world.arm(self)

    def perform(self, wanted: list[effects.Effect]) -> None:
        for effect in wanted:
            self.perform_one(effect)

    def perform_one(self, effect: effects.Effect) -> None:
        world = self.world
        if isinstance(effect, effects.CopyEffect):
            self.copies.perform(effect)
            return
        if isinstance(effect, effects.TrainerEffect):
            trainer_effects.perform(self, effect)
            return
        if isinstance(effect, effects.StripeEffect):
            self.slots.lend(effect)
            return
        if isinstance(effect, effects.ShardEffect):
            pulls.perform(self, effect)
            return
        match effect:
            case effects.Send(to, envelope):
                world.post(self, to, codec.encode(envelope))
            case effects.Trust(who):
                self.trusted[who.node] = None
            case effects.Distrust(node):
                self.trusted.pop(node, None)
            case effects.Dial(who):
                # What a node still wants to dial when it is given up is not dialled any more.
                dial = partial(world.dial, self, who)
                world.later(world.delay(), partial(self.awake, self.life, dial))
            case effects.Probe(node):
                world.probe(self, node)
            case effects.LinkFell():
                pass  # links have no rates here
            case effects.CloseLink(node):
                end = self.ends.get(node)
                # What was sent before arrives first, as a real link is flushed before it closes.
                world.later(world.most_delay, lambda: self.hang_up(node, end))
            case effects.StartRound(spec):
                world.begun(self, spec)
                self.start_round(spec)
            case effects.ServeRound(spec):
                self.serve_round(spec)
            case effects.FreezeRound():
                self.handle(events.Frozen(self.freeze()))
            case effects.ContributeChunks(chunks):
                streaming.contribute(self, chunks)
            case effects.Contribute(word):
                self.contribute(word)
            case effects.HoldWord() | effects.NamePolicy():
                naming.perform(self, effect)
            case effects.PublishChunks():
                self.publish()
            case effects.SearchWays():
                self.search_ways(effect)
            case effects.Report():
                self.reports.append(effect)
            case effects.UseToken(token):
                self.token = token
            case effects.JoinFailed(reason):
                self.joins_failed.append(reason)
                world.join_failed(self)
            case effects.StandsBy(reason):
                world.stands_by(self, reason)
            case effects.Depart(why, message):
                world.departed(self, why if why != "error" else message)

    def search_ways(self, wanted: effects.SearchWays) -> None:
        """Have the node's planner search, and tell the node some time later what was found."""
        node = self.node
        assert node is not None
        found = node.context.planner.search(wanted.policy, node.monitor.measures, wanted.before)
        answer = events.WaysFound(wanted.number, found)
        self.soon(self.world.searching(), partial(self.handle, answer))

    def give_update(
        self, iteration: int, stripes: tuple[int, ...] = (), anew: tuple[int, ...] = ()
    ) -> None:
        """Give the trainer an update, which it applies some time later."""
        self.copies.use(iteration)
        if self.node is not None and self.node.context.iteration == iteration:
            self.world.completed(self, iteration)
        is_read = self.node is None or self.node.cycle.reads_state(iteration)
        update = partial(self.apply, iteration, is_read, stripes, anew)
        self.soon(self.world.compute(), partial(self.work, update))

    def hang_up(self, node: bytes, end: int | None) -> None:
        """Close link number `end` to `node`, and not one that was opened since."""
        if self.asleep:
            self.waiting.append(partial(self.hang_up, node, end))
        elif self.ends.get(node) == end:
            self.world.hang_up(self, node)

    # --- trainer stand-in ---------------------------------------------------------------------

    def work(self, what: Callable[[], None]) -> None:
        """Have the trainer do something now, or after it has hung."""
        if self.lost_trainer:
            return
        if self.hangs:
            self.undone.append(partial(self.awake, self.life, what))
        else:
            what()

    def computing(self) -> float:
        """Return after how many seconds the trainer has done the work that it is given now. It does
        one after the other, in the order in which it was given."""
        now = self.world.now
        self.busy_until = max(self.busy_until + 1e-9, now + self.world.compute())
        return self.busy_until - now

    def hang(self, seconds: float, *, promised: bool = False) -> None:
        """Have the trainer answer nothing for this long; `promised`: its script has said so."""
        if self.hangs or self.gone is not None:
            return
        self.hangs = True
        if promised:
            self.handle(events.AwayWanted(True))
        self.world.later(seconds, partial(self.wake, promised=promised))

    def lose_trainer(self) -> None:
        """End the trainer's process."""
        self.lost_trainer, self.undone = True, []
        self.handle(events.TrainerEnded())

    def stand_by(self) -> None:
        """Have the node find that the others are faster without it."""
        if self.node is not None and self.gone is None and not self.asleep:
            self.node.departure.stand_by(self.clock(), "its links are slow")
            self.handle(events.Tick())

    def wake(self, *, promised: bool) -> None:
        """End the trainer's silence: it does what has come up meanwhile."""
        self.hangs = False
        if promised:
            self.handle(events.AwayWanted(False))
        undone, self.undone = self.undone, []
        for what in undone:
            what()

    def compute(self, work: effects.GiveWork) -> None:
        iteration, micro_batches = work.iteration, work.micro_batches
        if self.gone is not None:
            return
        if iteration != self.iteration or work.turn < self.turn:
            return
        if work.turn != self.turn:
            self.turn, self.done, self.own = work.turn, (), [0] * VECTOR
            self.training.begin()
        if self.refuses:
            micro_batches = ()
        elif self.most_work is not None:
            micro_batches = micro_batches[: self.most_work]
        assert not set(micro_batches) & set(self.done), "a micro-batch given twice"
        self.world.worked(self, micro_batches)
        self.own = self.training.add(self.own, iteration, micro_batches, self.state)
        self.own[0] += self.is_wrong  # another state has another gradient
        self.done += micro_batches
        wanted = settings(iteration) if self.done else b""
        said = (iteration, self.done, float(len(self.done)), b"", b"", True, self.turn, wanted, b"")
        self.handle(events.Contributed(*said, self.stops))

    def apply(
        self, iteration: int, is_read: bool, stripes: tuple[int, ...], anew: tuple[int, ...]
    ) -> None:
        if self.gone is not None:
            return
        assert iteration == self.iteration, "an update out of order"
        total = self.sums[iteration]
        if self.world.stripes:
            before, self.state = self.state, list(total)
            self.slots.step(iteration, stripes, anew, before)
        else:
            self.state = [a + b for a, b in zip(self.state, total, strict=True)]
        if self.slips:
            self.state[-1] += 1
            self.slips, self.is_wrong = False, True
        self.home = self.state if is_read else self.home
        self.iteration += 1
        self.done, self.own = (), [0] * VECTOR
        self.training.begin()
        if self.node is not None and (self.node.context.is_member or self.node.over):
            self.spoilt, self.trained = False, True
            self.past = replace(self.node.context.past, iteration=self.iteration)
            self.commit = self.world.commit_of(self)
        self.handle(events.Applied(iteration, b"meta %d" % self.iteration, self.digest()))

    def digest(self) -> bytes:
        """Return the digest that this device claims for its state.

        It is b"" where the agent does not see the present state, because the trainer has it.
        """
        if self.lost_trainer or (self.apart and self.home is not self.state):
            return b""
        return hashlib.sha256(repr(self.state).encode()).digest()[: limits.CLAIM_BYTES]

    def adopt(self) -> None:
        """Make the pulled shards the state, after checking that they are of one state."""
        joining = self.node.joining if self.node else None
        assert self.node is not None
        assert joining is not None
        size, end = joining.shard_bytes, STATE_ELEMENTS * 16
        own = {k: self.constant[k * size : (k + 1) * size] for k in range(-(-end // size))}
        whole = b"".join((own | self.pulled).values())
        last = [whole[k : k + 16] for k in range(end - 16 * VECTOR, end, 16)]
        self.home = self.state = [int.from_bytes(x, "little") for x in last]
        self.is_wrong = False
        self.slots.adopt(self.iteration)
        assert whole == self.flat, "a torn state"
        for source in [h for n, h in self.world.hosts.items() if n in joining.sources]:
            # One that is no member may be another process by now, with weights of its own, and one
            # that has joined another cluster since has the weights of that.
            node = source.node if source.is_member else None
            counts = node is not None and node.context.lineage == self.node.context.lineage
            same = source.constant == self.constant
            assert same or not counts, "other frozen weights than its source"

    # --- data plane ---------------------------------------------------------------------------

    def start_round(self, spec: RoundSpec) -> None:
        if self.reduce is not None:
            self.kept[self.reduce.round.spec.iteration] = self.reduce
        self.reduce = Reduce(Round(spec))
        kept = self.kept.get(spec.iteration)
        for spread in spec.spread:
            if spread.source is None and kept is not None:
                self.reduce.partial |= {chunk: kept.partial[chunk] for chunk in spread.chunks}
                self.reduce.made |= {chunk: kept.made[chunk] for chunk in spread.chunks}
        self.drive(self.reduce.round.begin())
        early, self.early = self.early, []
        for sender, key, kind, chunk, value in early:
            self.chunk(sender, key, kind, chunk, value)

    def freeze(self) -> bytes:
        """Accept and complete no more chunks of this round; return which are worth keeping.

        The sums are not kept if the control word says that they lack a micro-batch that was handed
        back, because the round will run again.
        """
        assert self.reduce is not None
        self.reduce.frozen = True
        word = self.reduce.partial.get(0)
        have = self.reduce.round.have
        reduced = bool(have) and bool(have[0] & 1) and isinstance(word, ControlWord)
        total = self.world.micro_batches if self.reduce.round.spec.chunks > 1 else 0
        whole = reduced and isinstance(word, ControlWord) and is_final(word, total)
        worth = have if whole else self.reduce.round.kept
        self.world.kept(self, self.reduce, worth)
        return worth

    def serve_round(self, spec: RoundSpec) -> None:
        if self.reduce is not None and self.reduce.round.spec.iteration == spec.iteration:
            kept = self.reduce
        else:
            kept = self.kept[spec.iteration]
            if self.world.stripes:  # it is read from the weights, which change with each update
                assert self.iteration <= spec.iteration + 1, "a result that is not here any more"
        for spread in spec.spread:
            for chunk in spread.chunks:
                for to in spread.to:
                    self.bulk(to, "down", chunk, (kept.partial[chunk], kept.made[chunk]), spec)

    def contribute(self, word: ControlWord) -> None:
        assert self.reduce is not None
        own = list(self.own) if word.done else [0] * VECTOR
        self.reduce.own, self.reduce.word = own, word
        self.world.contributed(self, self.reduce)
        self.drive(self.reduce.round.contribute())

    def chunk(
        self, sender: bytes, key: tuple[object, ...], kind: str, chunk: int, value: object
    ) -> None:
        """Take in a chunk of a round that came over the bulk connection of a link.

        `key` is its round, and `kind` is "up" for a child's sum and "down" for the result.
        """
        if self.gone is not None:
            return
        if self.asleep:
            self.waiting.append(partial(self.chunk, sender, key, kind, chunk, value))
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
            return
        assert isinstance(value, tuple)
        (reduce.round.check_down if kind == "down" else reduce.round.check_sum)(sender, chunk)
        reduce.partial[chunk], reduce.made[chunk] = value
        self.drive((reduce.round.down if kind == "down" else reduce.round.sum_down)(sender, chunk))

    def publish(self) -> None:
        """Send the results that the trainer has made."""
        reduce = self.reduce
        assert reduce is not None
        for chunk in reduce.round.owned:
            at = reduce.round.spec.iteration
            reduce.partial[chunk], reduce.made[chunk] = self.slots.result(at, chunk)
        self.drive(reduce.round.publish())

    def part(self, chunk: int) -> object:
        """Return this node's own part of a chunk; chunk 0 is the control word."""
        assert self.reduce is not None
        assert self.reduce.own is not None
        return self.reduce.word if chunk == 0 else self.reduce.own[chunk - 1]

    def drive(self, wanted: list[RoundEffect]) -> None:
        """Perform what the round wants, with integers in place of vectors."""
        reduce = self.reduce
        assert reduce is not None
        for effect in wanted:
            match effect:
                case Add(chunk, child, first):
                    base = self.part(chunk) if first else reduce.partial[chunk]
                    reduce.partial[chunk] = add(base, reduce.inbox.pop((child, chunk)))
                case SendUp(chunk, own, parent):
                    value = self.part(chunk) if own else reduce.partial[chunk]
                    self.bulk(parent, "up", chunk, value)
                case Finish(chunk, own):
                    whole = self.part(chunk) if own else reduce.partial[chunk]
                    if isinstance(whole, ControlWord):
                        whole = naming.summed(reduce, whole)
                    reduce.partial[chunk] = whole
                    # By which attempt, and at which root, the chunk was summed.
                    reduce.made[chunk] = (*reduce.round.spec.key, self.me.node)
                case SendDown(chunk, to) | SendSum(chunk, to):
                    kind = "down" if isinstance(effect, SendDown) else "sum"
                    for neighbour in to:
                        reduced = (reduce.partial[chunk], reduce.made[chunk])
                        self.bulk(neighbour, kind, chunk, reduced)
                case KeepSum(chunk):
                    total, made = reduce.partial[chunk], reduce.made[chunk]
                    assert isinstance(total, int)
                    self.slots.keep(reduce.round.spec.iteration, chunk, total, made)
                case Decided():
                    spec, word = reduce.round.spec, reduce.partial[0]
                    assert isinstance(word, ControlWord)
                    self.handle(events.RoundDecided(spec.iteration, spec.attempt, word))
                case Complete():
                    spec = reduce.round.spec
                    word = reduce.partial[0]
                    assert isinstance(word, ControlWord)
                    sums = [reduce.partial[k + 1] for k in range(spec.chunks - 1)]
                    self.sums[spec.iteration] = [int(str(x)) for x in sums]
                    self.made[spec.iteration] = tuple(sorted(reduce.made.items()))
                    self.handle(events.RoundReduced(spec.iteration, spec.attempt, word))

    def bulk(
        self, to: bytes, kind: str, chunk: int, value: object, spec: RoundSpec | None = None
    ) -> None:
        assert self.reduce is not None
        if kind == "down" and self.node is not None and self.node.followers.has_failed(to):
            return
        key = (spec or self.reduce.round.spec).key
        me = self.me.node
        size = LARGE_FRAME if chunk else SMALL_FRAME  # chunk 0 is a control word
        self.world.stream(self, to, lambda host: host.chunk(me, key, kind, chunk, value), size)

    def probed(self, sender: Host) -> None:
        """Take in a probe from `sender`: a joiner then knows the rate of the link.

        Members learn nothing from it here; what they measure is one of the storm's faults.
        """
        joining = self.node.joining if self.node is not None else None
        if joining is None or not joining.on_the_way or sender.me.node not in self.links:
            return
        self.rates[sender.me.node] = LEAST_RATE * (1 + sender.me.node[0])
        found = [events.Incoming(n, 0.0, self.rates.get(n), 0) for n in sorted(self.links)]
        self.handle(events.Measured(tuple(found), None, None, None))


def add(a: object, b: object) -> object:
    """Return the sum of two parts of a chunk: of two numbers, or of two control words."""
    if isinstance(a, ControlWord) and isinstance(b, ControlWord):
        return control_word.decode_word(control_word.merge(a, b).encode())
    assert isinstance(a, int)
    assert isinstance(b, int)
    return a + b
