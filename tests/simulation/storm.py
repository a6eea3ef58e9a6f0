"""One random history per seed: a cluster comes together, and then everything goes wrong.

The seed decides everything that happens, so a seed that fails once fails again and can be examined.
`play` raises AssertionError when an invariant breaks (`truth.py`), and when some device still runs
`CALM_SECONDS` after the last fault has healed, besides the time that its steps take. Every device
that did not leave and was not killed has to finish. The exception is a device whose state a pull
has half overwritten: it may give up, because it has no state to go on from, but only if no member
is left that it could join.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from protocols.cluster.stripes import OnLost
from protocols.events import Incoming, Measured
from protocols.scheduler.join_cost import JoinWay
from protocols.wire import messages as m
from tests.simulation import faults
from tests.simulation.harsh import Ambush, HarshWorld, Pair
from tests.simulation.narrow import NO_BULK, PASSES
from tests.simulation.sharding import lost_stripes
from tests.simulation.ways import WaysPlanner
from tests.simulation.world import member

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.faults import Intensities
    from tests.simulation.host import Host

# How many devices ever exist in one history: the largest cluster, and some that come later.
MOST_HOSTS = 20
# From this seed on policies of odd seeds have several ways (`ways.py`); earlier ones play as ever.
FIRST_WITH_WAYS = 700_000
# From this seed on half of these search for ways while everything else goes on.
FIRST_WITH_SEARCHES = 770_000
FIRST_WITH_FEW_LINKS = 802000  # ... in which devices may want no more than two or three links
FIRST_WITH_STREAMS = 820_000  # ... in a third of which trainers announce chunks while they compute
# From this seed on joiners of half of the histories copy beside the training, of the others while
# the members hold their update; earlier ones play as ever.
FIRST_BESIDE = 840_000
# From this seed on up to three times a member finds that it had better stand by.
FIRST_WITH_STANDBY = 890_000
# From this seed on no device keeps all of the optimizer's state, but with one or two copies of it
# all of them together do.
FIRST_WITH_STRIPES = 910_000
MOST_STRIPES = 4
# From this seed on devices do not wait for those that alone have a part of it, but stop or go on.
FIRST_WITH_LOSSES = 960_000
# From this seed on some wait, too, and parts may be so large that few are learned at once.
FIRST_WITH_LARGE_STRIPES = 980_000
# From this seed on a round is not a sum of gradients but of what devices did in local steps or with
# subnets of their own, so it matters who computed what; no optimizer is divided there.
FIRST_WITH_ROUNDS = 1_000_000
ROUNDS = ("local steps", "subnets")
# From this seed on trainers of up to two devices end for good, in each way to train.
FIRST_WITH_ENDED_TRAINERS = 1_010_000
# From this seed on a device follows the others from outside, in half of the histories without a
# divided optimizer, and in half of these for a while only.
FIRST_WITH_FOLLOWERS = 1_270_000
# After so many seconds of calm a history ends in which a part of that state is lost for good.
LOST_SECONDS = 20.0
# After so many seconds faults begin although not all devices are members yet. Where many members
# talk much and frames are truncated, joins are cut off again and again; `waits.py` judges whether
# that is the reason for which a device has waited.
TOGETHER_SECONDS = 290.0
# How many seconds of the world's clock the devices may take to end after the last fault has healed.
CALM_SECONDS = 240.0
# How many seconds after it begins a fault that never heals counts as healed: by then the devices
# have noticed it, or found a way round it.
FOUND_SECONDS = 45.0
# The kinds of faults that are spread over a history; each is a method of `Storm` or a partition.
PLANNED = (
    *faults.LINK_KINDS,
    *faults.PARTITION_KINDS,
    *faults.PEOPLE_KINDS,
    *faults.AMBUSH_KINDS,
    *faults.MEASURE_KINDS,
    *faults.TRAINER_KINDS,
    "crash",
    "power_off",
    "pause",
    "clock_step",
)
# The messages at whose arrival an ambush may strike: those with which members agree on something.
AMBUSHED = (
    *m.FENCE_MESSAGES,
    m.VoteRequest,
    m.Vote,
    m.Lead,
    m.PassRole,
    m.PolicyBody,
    m.PolicyStored,
    m.PullBegins,
    m.Pulled,
    m.CaughtUp,
    m.LinkLost,
)
# From this seed on, some histories are of a model with frozen weights. Those of smaller seeds are
# not, so that the seeds which are noted somewhere still stand for the same histories.
FIRST_FROZEN = 600_000
FROZEN = 0.25  # the part of these histories
# The reasons for which a device may have gone at the end; anything else is an error of its node.
ENDINGS = ("steps", "left", "killed", "powered off", "given up")


@dataclass(frozen=True)
class Size:
    """How large a history is: devices at its beginning, and iterations until training ends."""

    nodes: int
    steps: int


def size_of(seed: int) -> Size:
    """Draw the size of a history: mostly small clusters, which are quick and show most errors."""
    dice = faults.stream(seed, "size")
    nodes = dice.randint(3, 5) if dice.random() < 0.97 else dice.randint(6, 16)
    return Size(nodes, dice.randint(20, 60))


def run(seed: int, intensities: Intensities | None = None, size: Size | None = None) -> HarshWorld:
    """Play the history of `seed` to its end, check it and return its world.

    `intensities`, which say how many faults there are of each kind, and `size` follow from the seed
    unless they are given. Raises AssertionError if the history breaks an invariant.
    """
    return Storm(seed, intensities or faults.draw(seed), size or size_of(seed)).play()


class Storm:
    """One history, which `play` plays."""

    def __init__(self, seed: int, intensities: Intensities, size: Size) -> None:
        dice = faults.stream(seed, "world")
        batches = dice.randint(4, 8)
        self.world = HarshWorld(seed, intensities, micro_batches=batches, steps=size.steps)
        frozen = faults.stream(seed, "frozen").random() < FROZEN
        self.world.is_frozen = seed >= FIRST_FROZEN and frozen
        self.world.some_doubt = True
        if seed >= FIRST_WITH_WAYS and seed % 2:
            searches = seed >= FIRST_WITH_SEARCHES and seed % 4 == 1
            self.world.ways = WaysPlanner(seed, searches=searches)
        if seed >= FIRST_WITH_FEW_LINKS:  # otherwise all devices of a small cluster are linked
            self.world.most_links = faults.stream(seed, "links").choice((0, 0, 2, 3))
        self.world.streams = seed >= FIRST_WITH_STREAMS and seed % 3 == 0
        if seed >= FIRST_BESIDE and seed // 3 % 2:
            self.world.join_way = JoinWay.BESIDE
            self.world.memory_is_short = True
        self.world.most_compute = dice.choice((0.02, 0.1, 0.3))
        rounds = faults.stream(seed, "rounds")
        kinds = ROUNDS if seed < FIRST_WITH_ENDED_TRAINERS else (*ROUNDS, "sums", "divided")
        kind = rounds.choice(kinds) if seed >= FIRST_WITH_ROUNDS else ""
        if kind in ROUNDS:
            self.world.train(kind)
            self.world.streams = False
            self.world.most_compute = rounds.choice((0.1, 1.0, 4.0))
        elif seed >= FIRST_WITH_STRIPES and kind != "sums":
            stripes = faults.stream(seed, "stripes")
            self.world.stripes = stripes.randint(1, MOST_STRIPES)
            self.world.stripe_copies = stripes.choice((1, 1, 2))
            if seed >= FIRST_WITH_LOSSES:
                self.world.on_lost = stripes.choice((OnLost.FRESH, OnLost.FRESH, OnLost.STOP))
            if seed >= FIRST_WITH_LARGE_STRIPES:
                self.world.on_lost = stripes.choice((OnLost.WAIT, self.world.on_lost))
                self.world.stripe_bytes = stripes.choice((0, 6 << 20, 16 << 20))
        standby = faults.stream(seed, "standby")
        self._stands_by = standby if seed >= FIRST_WITH_STANDBY else None
        self.world.most_delay = dice.choice((0.001, 0.01, 0.1, 0.3))
        ended = faults.stream(seed, "ended trainers")
        self._end_trainers = ended if seed >= FIRST_WITH_ENDED_TRAINERS else None
        followers = faults.stream(seed, "followers")
        follows = seed >= FIRST_WITH_FOLLOWERS and not self.world.stripes
        self._followers = followers if follows and followers.random() < 0.5 else None
        self._size = size
        # Whether faults begin at once, while the devices still come together.
        self._together = dice.random() < 0.3
        self._dice = dice
        self._calm_at = 0.0  # when the last fault will have healed
        self._numbers = 0  # how many devices have been started so far
        self._worst: list[float] = []  # the moments around which most faults happen

    def play(self) -> HarshWorld:
        """Play the history to its end, check it and return its world."""
        world, nodes = self.world, self._size.nodes
        # Mostly the first device founds the cluster at once; otherwise all look for one first.
        alone = self._dice.random() < 0.8
        self._start(first=alone)
        for _ in range(nodes - 1):
            world.later(self._dice.uniform(0.0, 1.0), self._start)
        if not self._together:
            world.run(lambda: len(world.members) == nodes or self._is_overdue or not self._running)
        window = 1.0 + self._size.steps * (0.5 * world.most_compute + world.most_delay)
        self._worst = [self._dice.uniform(0.0, window) for _ in range(self._dice.randint(1, 2))]
        for kind in PLANNED:
            self._plan(kind, window)
        if self._stands_by is not None:
            for _ in range(self._stands_by.randint(0, 3)):
                world.later(self._stands_by.uniform(0.0, window), self._stand_by)
        if self._followers is not None:
            self._follow(self._followers, window)
        if self._end_trainers is not None:
            for _ in range(self._end_trainers.randint(1, 2)):
                world.later(self._end_trainers.uniform(0.0, window), self._end_trainer)
        self._calm(window)
        world.run(self._is_over, self._patience)
        self._judge()
        return world

    def _is_over(self) -> bool:
        if self.world.now < self._calm_at:
            return False
        return not self._running or self._is_lost()

    def _is_lost(self) -> bool:
        """Whether a part of the optimizer's state is lost for good, so that all wait for ever. Then
        end it."""
        if not self.world.stripes or self.world.on_lost is not OnLost.WAIT:
            return False
        if self.world.now < self._calm_at + LOST_SECONDS:
            return False
        members = [host for host in self._running if host.is_member]
        if not members or not all(lost_stripes(host) for host in members):
            return False
        for lacking in members:
            self.world.keepers.check(lacking)
        for host in self._running:
            host.gone = "powered off"
        return True

    @property
    def _patience(self) -> float:
        """Return how many seconds all devices may take to end once there is calm."""
        slowest = self._size.steps * (world_round(self.world) + 0.1)
        return CALM_SECONDS + slowest

    @property
    def _is_overdue(self) -> bool:
        """Whether the devices take so long to come together that the faults begin meanwhile."""
        return self.world.now >= TOGETHER_SECONDS

    @property
    def _running(self) -> list[Host]:
        return [h for h in self.world.hosts.values() if h.gone is None]

    def _judge(self) -> None:
        """Check, at the end, that every device has ended for a good reason and with the right
        state."""
        world = self.world
        for host in world.hosts.values():
            assert host.gone in ENDINGS, f"{host.me.name} ended with {host.gone!r}"
            if host.gone == "steps" and not host.lost_trainer:
                assert host.iteration == world.steps, f"{host.me.name} ended early"
                assert world.is_right(host), f"{host.me.name} ended with a wrong state"
        assert not world.deserted, f"{world.deserted} gave up beside a cluster"

    def _start(self, *, first: bool = False) -> None:
        if self._numbers < MOST_HOSTS:
            self._numbers += 1
            self.world.start(self._numbers - 1, first=first)

    # --- what happens ---------------------------------------------------------------------------

    def _plan(self, kind: str, window: float) -> None:
        """Let as many faults of this kind as the intensities say happen at random moments.

        They lie within the first `window` seconds or shortly after one of the worst moments, since
        faults that come together are the most likely to show an error.
        """
        dice = self.world.dice[kind]
        happen: Callable[[random.Random, str], None] = getattr(self, f"_{kind}", self._partition)
        for _ in range(int(getattr(self.world.intensities, kind))):
            at = dice.uniform(0.0, window)
            if dice.random() < 0.7:
                at = dice.choice(self._worst) + dice.uniform(0.0, dice.choice((0.05, 0.5, 4.0)))
            self._calm(at)
            self.world.later(at, partial(happen, random.Random(dice.random()), kind))

    def _calm(self, seconds: float) -> None:
        """Note that there is a fault until `seconds` from now."""
        self._calm_at = max(self._calm_at, self.world.now + seconds)
        self.world.later(seconds, lambda: None)  # the world's clock moves on to events alone

    def _stall(self, dice: random.Random, kind: str) -> None:
        host = self._linked(dice)
        if host is not None:
            other = dice.choice(sorted(host.links))
            self._block(dice, kind, [(host.me.node, other)])

    def _small_frames(self, dice: random.Random, kind: str) -> None:
        """Have large frames swallowed between two devices or between one and all others.

        This is one way or both ways, for some seconds or for ever. It is not for ever where no
        segment is short enough to pass and a device could reach nobody, or not the only one that
        has a part of a divided optimizer's state: that could not end well.
        """
        host = self._linked(dice)
        if host is None:
            return
        me, everybody = host.me.node, [member(k).node for k in range(MOST_HOSTS)]
        wide = dice.random() < 0.25
        others = [n for n in everybody if n != me] if wide else [dice.choice(sorted(host.links))]
        out, back = [(me, n) for n in others], [(n, me) for n in others]
        pairs = dice.choice((out, back, [*out, *back]))
        passes = dice.choice(PASSES)
        spans = (dice.uniform(1.0, 8.0), dice.uniform(8.0, 40.0), None)
        seconds = dice.choice(spans)
        if (wide or self.world.stripes) and passes == NO_BULK and seconds is None:
            seconds = spans[1]
        self.world.fire(kind)
        self._calm(FOUND_SECONDS if seconds is None else seconds)
        self.world.narrow.open(pairs, passes, seconds)

    def _cut(self, dice: random.Random, kind: str) -> None:
        host = self._linked(dice)
        if host is not None:
            self.world.fire(kind)
            self.world.cut(host, host.links[dice.choice(sorted(host.links))])

    def _partition(self, dice: random.Random, kind: str) -> None:
        """Divide all devices, including those that come later, into two sides.

        A bridge is one device that both sides still reach; `isolate` leaves one device alone; in a
        partition that is `one_way` only the messages of one side are lost.
        """
        nodes = [member(k).node for k in range(MOST_HOSTS)]
        dice.shuffle(nodes)
        alive = [n for n in nodes if n in self.world.hosts and self.world.hosts[n].gone is None]
        if len(alive) < 2:
            return
        middle = alive[0] if kind == "bridge" else b""
        one = alive[0]
        side = {n: n == one if kind == "isolate" else dice.random() < 0.5 for n in nodes}
        pairs = [(a, b) for a in nodes for b in nodes if side[a] != side[b]]
        pairs = [p for p in pairs if middle not in p]
        if kind == "one_way":
            pairs = [(a, b) for a, b in pairs if side[a]]
        self._block(dice, kind, pairs)

    def _block(self, dice: random.Random, kind: str, pairs: list[Pair]) -> None:
        self.world.fire(kind)
        seconds = dice.choice((dice.uniform(0.05, 2.0), dice.uniform(2.0, 6.0), 15.0))
        self._calm(seconds)
        self.world.block(pairs, seconds)

    def _crash(self, dice: random.Random, kind: str) -> None:
        for _ in range(1 + (dice.random() < 0.25)):
            if victim := self._victim(dice):
                self.world.fire(kind)
                self.world.kill(victim)
                self._come_back(victim)

    def _power_off(self, dice: random.Random, kind: str) -> None:
        if victim := self._victim(dice):
            self.world.fire(kind)
            self.world.power_off(victim)
            self._come_back(victim)

    def _ambush(self, dice: random.Random, kind: str) -> None:
        """Wait for a message of one kind, then strike its sender, its receiver or both.

        A fault at a random moment rarely meets the few messages at which it matters.
        """
        what, left = dice.choice(AMBUSHED), dice.randint(1, 6)
        seconds = dice.choice((dice.uniform(0.05, 2.0), dice.uniform(2.0, 15.0)))

        def strike(sender: Host, receiver: Host) -> None:
            world = self.world
            world.fire(kind)
            for victim in dice.choice(((sender,), (receiver,), (sender, receiver))):
                how = dice.choice(("kill", "power off", "pause", "cut"))
                if victim.gone is not None:
                    continue
                if how == "cut":
                    world.cut(sender, receiver)
                elif how == "pause":
                    self._calm(seconds)
                    world.pause(victim, seconds)
                else:
                    (world.kill if how == "kill" else world.power_off)(victim)
                    self._come_back(victim)

        self.world.ambushes.append(Ambush(what, left, strike))

    def _come_back(self, dead: Host) -> None:
        """Perhaps switch a dead device on again, with its disk or as a new device."""
        world = self.world
        for kind in faults.RESTART_KINDS:
            dice = world.dice[kind]
            if dice.random() < getattr(world.intensities, kind):
                wait = dice.uniform(0.1, 6.0)
                self._calm(wait)
                world.later(wait, partial(self._restart, dead, kind))
                return

    def _restart(self, dead: Host, kind: str) -> None:
        self.world.fire(kind)
        if kind == "restart_blank":
            self._start()
        else:
            number = int(dead.me.name[1:])
            self.world.start(number, dead.me.incarnation + 1)

    def _pause(self, dice: random.Random, kind: str) -> None:
        if victim := self._victim(dice):
            self.world.fire(kind)
            seconds = dice.choice((dice.uniform(0.05, 2.0), dice.uniform(2.0, 20.0)))
            self._calm(seconds)
            self.world.pause(victim, seconds)

    def _clock_step(self, dice: random.Random, kind: str) -> None:
        if victim := self._victim(dice):
            self.world.fire(kind)
            self.world.clock_step(victim, dice.uniform(0.05, 5.0))

    def _leave(self, dice: random.Random, kind: str) -> None:
        if victim := self._victim(dice):
            self.world.fire(kind)
            victim.refuses = dice.random() < 0.5
            self.world.seekers[victim.me.node].leave()

    def _stand_by(self) -> None:
        """Let a member find that the others are faster without it."""
        members = [h for h in self._running if h.node is not None and h.node.context.is_member]
        if members and self._stands_by is not None:
            self._stands_by.choice(members).stand_by()

    def _follow(self, dice: random.Random, window: float) -> None:
        """Let a device follow from outside from some moment on, in half of the histories for a
        while. It may be a member by then, which leaves for that."""
        who = member(dice.randint(1, self._size.nodes - 1)).node
        begin = dice.choice((0.0, dice.uniform(0.0, window)))
        self.world.later(begin, partial(self.world.follow, who))
        if dice.random() < 0.5:
            end = begin + dice.uniform(0.0, window)
            self.world.later(end, partial(self.world.follow, who, wanted=False))

    def _end_trainer(self) -> None:
        """Let the trainer of a member end, so that its agent leaves."""
        members = [h for h in self._running if h.is_member and not h.lost_trainer]
        if members and self._end_trainers is not None:
            victim = self._end_trainers.choice(members)
            victim.lose_trainer()
            self.world.seekers[victim.me.node].leave()

    def _measure(self, dice: random.Random, kind: str) -> None:
        """Let most devices measure other speeds at the same time, so that the plan changes."""
        for host in self._running:
            if dice.random() < 0.7:
                self.world.fire(kind)
                links = tuple(
                    Incoming(node, 10 ** -dice.uniform(1, 4), 10 ** dice.uniform(5, 9), 0)
                    for node in sorted(host.links)
                )
                host.handle(Measured(links, 10 ** -dice.uniform(1, 3), 0.1, 0.1))

    def _hang(self, dice: random.Random, kind: str) -> None:
        """Have a trainer answer nothing for a while, and now and then those of all devices."""
        everybody = dice.random() < 0.15
        for victim in self._running if everybody else [self._victim(dice)]:
            if victim is not None:
                self.world.fire(kind)
                seconds = dice.choice((dice.uniform(0.1, 4.0), dice.uniform(4.0, 50.0)))
                self._calm(seconds)
                victim.hang(seconds, promised=kind == "away")

    _away = _hang

    def _join(self, _dice: random.Random, kind: str) -> None:
        self.world.fire(kind)
        self._start()

    def _victim(self, dice: random.Random) -> Host | None:
        running = self._running
        return dice.choice(running) if running else None

    def _linked(self, dice: random.Random) -> Host | None:
        linked = [h for h in self._running if h.links]
        return dice.choice(linked) if linked else None


def world_round(world: HarshWorld) -> float:
    """Return how many seconds an undisturbed iteration takes at most."""
    return 2 * world.most_compute + 6 * world.most_delay
