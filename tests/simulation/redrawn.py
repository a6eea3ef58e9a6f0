"""Clusters whose links change: how often the scheduler then makes another plan.

The members are the real machines in virtual time with the standard planner, which packs ways. Each
of them tells twice a second what an agent's meter would: the median of the last five samples of
each link, each of which is off by chance. The simulator's chunks take no longer on slow links, so
the figures are about plans, and not about rounds.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from edgeagent.planner.standard import StandardPlanner
from edgeagent.planner.ways.of_view import ways_s
from protocols import events
from protocols.network.measures import Measures, Rate
from tests.simulation.world import World

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy
    from protocols.scheduler.planning import Planner
    from tests.simulation.host import Host

MBIT = 1e6 / 8
LEAST, MOST = 20 * MBIT, 155 * MBIT  # the rates that are drawn, bytes/s
DELAY_S = 0.002
PAYLOAD, CHUNK = 8_000_000, 64_000  # bytes
TELL_S = 0.5  # between two reports of a device
SAMPLES = 5  # of which the median counts
COMPUTE_S = (0.3, 0.5)  # for each of a trainer's answers, so that a step takes about a second
LOOK_S, JUDGE_S = 0.25, 7.0  # between looks at the policy, and between judgements of its ways
FOLLOW_S = 5.0  # in which a plan is to follow links that have changed
# So many times as long must rounds take along the ways in force for others to be worth it, and for
# that to be clear in spite of the noise: the planner wants to save 15 % by what is measured.
WORTH, CLEARLY_WORTH = 1.25, 1.3


@dataclass(frozen=True)
class Change:
    """A policy that replaced another one at `at` (virtual seconds)."""

    at: float
    other_ways: bool  # else the tree of the control word, or the shares, are others


@dataclass(frozen=True)
class Redrawing:
    """Some links got other rates at `at`. Rounds along the ways in force then took `over_best`
    times as long as along those that are found for these rates."""

    at: float
    over_best: float


@dataclass
class Story:
    """What happened in the time that was watched."""

    redrawn: list[Redrawing] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    over_best: list[float] = field(default_factory=list)  # as in `Redrawing`, every `JUDGE_S`
    steps: int = 0

    def waits_s(self, worth: float = WORTH) -> list[float]:
        """After how long each redrawing was followed that made rounds take at least `worth` times
        as long as along the best ways."""
        found = []
        for number, redrawing in enumerate(self.redrawn):
            if redrawing.over_best >= worth:
                later = self.redrawn[number + 1 :]
                end = later[0].at if later else math.inf
                after = [c.at for c in self.changes if c.other_ways and redrawing.at < c.at <= end]
                found.append(after[0] - redrawing.at if after else math.inf)
        return found

    @property
    def unprompted(self) -> list[Change]:
        """The changes that followed no redrawing within `FOLLOW_S`."""
        return [
            change
            for change in self.changes
            if not any(0 <= change.at - r.at <= FOLLOW_S for r in self.redrawn)
        ]


class RedrawnWorld(World):
    """A cluster of `size`, each linked to each, whose links are measured with an error of `noise`
    (a fraction, the standard deviation of one sample)."""

    def __init__(self, seed: int, size: int, noise: float = 0.06) -> None:
        super().__init__(seed, steps=1_000_000)
        self.most_delay = 0.01
        self._noise = noise
        self._compute_s = (0.001, 0.002)  # until all are together
        self.rates: dict[tuple[bytes, bytes], float] = {}
        self._samples: dict[tuple[bytes, bytes], deque[float]] = {}
        first = self.found()
        self.all: list[Host] = [first, *(self.join(k, first) for k in range(1, size))]
        self.run(lambda: all(host.is_member for host in self.all))
        nodes = [host.me.node for host in self.all]
        for pair in ((a, b) for a in nodes for b in nodes if a != b):
            self._draw(pair)
            self._samples[pair] = deque(maxlen=SAMPLES)
        self._compute_s = COMPUTE_S
        self._report()

    @property
    def planner(self) -> Planner:
        """The planner of each node, as agents have it."""
        return StandardPlanner(PAYLOAD, CHUNK, trees="packed")

    def compute(self) -> float:
        """Return how long a trainer needs for its next answer."""
        return self.random.uniform(*self._compute_s)

    def searching(self) -> float:
        """Return how long a search for ways takes."""
        return 0.03 * len(self.hosts) / 6

    def redraw(self, links: int) -> None:
        """Give so many directions other rates."""
        for pair in self.random.sample(sorted(self.rates), links):
            self._draw(pair)

    def _draw(self, pair: tuple[bytes, bytes]) -> None:
        self.rates[pair] = self.random.uniform(LEAST, MOST)

    def _report(self) -> None:
        for host in self.all:
            me = host.me.node
            incoming = []
            for other in (h.me.node for h in self.all if h is not host):
                samples = self._samples[other, me]
                off = max(0.1, self.random.gauss(1.0, self._noise))
                samples.append(self.rates[other, me] * off)
                rate = statistics.median(samples)
                incoming.append(events.Incoming(other, DELAY_S, rate, 0, alone=True))
            # As an agent tells it: the median of several micro-batches, which differ little.
            seconds = statistics.mean(COMPUTE_S) * self.random.gauss(1.0, self._noise / 3)
            host.handle(events.Measured(tuple(incoming), seconds, seconds, seconds))
        self.later(TELL_S, self._report)

    @property
    def policy(self) -> Policy:
        """The policy in force at the first member."""
        node = self.all[0].node
        assert node is not None
        assert node.context.policy is not None
        return node.context.policy

    def over_best(self) -> float:
        """Return how much longer a round takes along the ways in force than along those that are
        found with the rates as they really are, by what the planner expects."""
        policy = self.policy
        links = {pair: Rate(DELAY_S, rate) for pair, rate in self.rates.items()}
        known, sizes = Measures(links), (PAYLOAD, CHUNK)
        best = self.planner.search(policy, known).ways
        now_s, best_s = (
            ways_s(policy.view, known, *sizes, ways, policy) for ways in (policy.ways, best)
        )
        return now_s / min(now_s, best_s)

    def _is_past(self, at: float) -> bool:
        return self.now >= at

    def watch(self, seconds: float, *, every_s: float = 0.0, links: int = 1) -> Story:
        """Return what happens in the next `seconds`, if so many `links` (directions) get other
        rates every `every_s` seconds (0: never)."""
        story, present = Story(), self.policy
        end, judged, before = self.now + seconds, self.now, self.all[0].iteration

        def change() -> None:
            if self.now + every_s > end:  # what follows is to be seen
                return
            self.redraw(links)
            story.redrawn.append(Redrawing(self.now, self.over_best()))
            self.later(every_s, change)

        if every_s:
            self.later(every_s, change)
        while self.now < end:
            until = min(end, self.now + LOOK_S)
            self.run(partial(self._is_past, until))
            if self.policy.key != present.key:
                other = self.policy.ways != present.ways
                story.changes.append(Change(self.now, other))
                present = self.policy
            if self.now >= judged + JUDGE_S:
                judged = self.now
                story.over_best.append(self.over_best())
        story.steps = self.all[0].iteration - before
        return story
