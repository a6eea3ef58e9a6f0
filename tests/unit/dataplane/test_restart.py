"""Rounds that are given up and done again: whole clusters whose members die, in any interleaving.

Whatever happens, the result of each iteration must be the sum of all its micro-batches, each of
them once. Gradients are small whole numbers, so sums are exact in every tree. Half of a payload
arrives with its header, so that bytes of attempts that were given up are in R when they must not
count.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edgeagent.dataplane import reduce
from edgeagent.dataplane.reduce import Reducer, Vector
from protocols.cluster.policy import Policy
from protocols.cluster.view import Member, View, edge, is_quorum, make_view
from protocols.network.measures import NOTHING_KNOWN, Measures
from protocols.rounds.control_word import ControlWord, bits, numbers
from protocols.rounds.round import RoundSpec, Spread, spread_plan
from protocols.rounds.word_check import WordShape
from protocols.scheduler.fence import decide
from protocols.scheduler.planning import Plan
from protocols.wire.messages import FenceReport, Restart

from .cluster import CHUNK, CHUNKS, ELEMENTS, LINEAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from protocols.cluster.standby import Costly
    from protocols.cluster.view import Edge
    from protocols.network.measures import Times
    from protocols.scheduler.planning import Found, Offer
    from protocols.wire.bulk import BulkHeader

AHEAD = (94, 105, 133, 263)  # old chunks of who was an iteration ahead come after the fence
BATCH, FIRST, LAST = 7, 3, 7


class AnyTree:
    """Plans a random tree and random shares."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def plan(
        self,
        view: View,
        micro_batches: int,
        away: tuple[bytes, ...],
        present: Policy | None = None,
        measures: Measures = NOTHING_KNOWN,
        found: Found | None = None,
    ) -> Plan:
        order = list(view.nodes)
        self.chance.shuffle(order)
        parents = {n: self.chance.choice(order[:k]) if k else b"" for k, n in enumerate(order)}
        owners = [self.chance.choice(order) for _ in range(micro_batches)]
        shares = tuple(owners.count(n) for n in view.nodes)
        return Plan(tuple(parents[n] for n in view.nodes), shares, "")

    searches = False

    def search(
        self, policy: Policy, measures: Measures = NOTHING_KNOWN, before: Found | None = None
    ) -> Found:
        raise NotImplementedError

    def neighbours(
        self,
        view: View,
        wanted: tuple[str, ...],
        most: int = 0,
        measures: Measures = NOTHING_KNOWN,
    ) -> tuple[bytes, ...]:
        raise NotImplementedError

    def links(self, view: View, measures: Measures = NOTHING_KNOWN) -> tuple[Edge, ...]:
        raise NotImplementedError

    def rate(
        self, sender: bytes, receiver: bytes, measures: Measures = NOTHING_KNOWN
    ) -> float | None:
        raise NotImplementedError

    def step_s(
        self, view: View, micro_batches: int, measures: Measures = NOTHING_KNOWN
    ) -> float | None:
        raise NotImplementedError

    def costly(
        self,
        view: View,
        micro_batches: int,
        times: Mapping[bytes, Times],
        step_s: float,
        measures: Measures = NOTHING_KNOWN,
    ) -> Costly | None:
        raise NotImplementedError

    def assign(
        self, shards: tuple[int, ...], shard_bytes: int, offers: tuple[Offer, ...]
    ) -> dict[bytes, tuple[int, ...]]:
        raise NotImplementedError


def gradient(iteration: int, micro_batch: int) -> Vector:
    """Return what one micro-batch adds."""
    source = np.random.default_rng([iteration, micro_batch])
    result: Vector = source.integers(-99, 99, ELEMENTS).astype(np.float32)
    return result


@dataclass
class Stream:
    """One direction of one link."""

    frames: deque[tuple[BulkHeader, memoryview]] = field(default_factory=deque)
    target: memoryview | None = None
    begun: bool = False
    held: bool = False


class Device:
    """One member, with a short version of what its cycle does."""

    def __init__(self, world: World, name: bytes) -> None:
        self.world, self.name = world, name
        self.policy = world.policy
        self.own: Vector = np.zeros(ELEMENTS, np.float32)
        self.reduced: tuple[Vector, Vector] = (self.own.copy(), self.own.copy())
        self.later: list[Callable[[], None]] = []  # what it goes on with after a slice of work
        later = self.later.append if world.sliced else None
        shape = WordShape(BATCH, 0, {})
        self.reducer = Reducer(self.own, self.reduced, CHUNK, self, self.done, shape, later=later)
        self.iteration, self.attempt = FIRST, 0
        self.given: tuple[int, ...] = ()  # micro-batches it is to compute
        self.answer: tuple[int, ...] = ()  # those it has computed
        self.asked: tuple[int, ...] = ()  # those it has computed or handed back
        self.refuses = False
        self.word: ControlWord | None = None  # reduced
        self.contributed = self.complete = self.frozen = False
        self.decision: Restart | None = None
        self.results: dict[int, tuple[bytes, bytes, list[float]]] = {}

    # --- the wire -----------------------------------------------------------------------------

    def send_bulk(self, to: bytes, header: BulkHeader, payload: memoryview) -> None:
        if to in self.world.devices:
            self.world.streams[self.name, to].frames.append((header, payload))

    def hold_bulk(self, peer: bytes, hold: bool) -> None:
        raise AssertionError("so much is never early")

    def accuse(self, peer: bytes, reason: str) -> None:
        raise AssertionError(reason)

    def discard_bulk(self, peer: bytes) -> None:
        self.world.streams[peer, self.name].target = None
        self.world.discards += 1

    # --- rounds -------------------------------------------------------------------------------

    def done(self, spec: RoundSpec, word: ControlWord) -> None:
        assert (spec.iteration, spec.attempt) == (self.iteration, self.attempt)
        assert not self.frozen or self.world.sliced
        if self.frozen:
            return  # a round that the freeze itself completed is left to the fence
        assert not self.complete
        self.complete, self.word = True, word
        squares = list(self.reducer.square_sums)
        result = self.reduced[self.iteration % 2].tobytes()
        self.results[self.iteration] = (result, word.done, squares)

    def spread(self, decision: Restart) -> tuple[Spread, ...]:
        nodes = decision.policy.view.nodes
        parents = dict(zip(nodes, decision.policy.parents, strict=True))
        return spread_plan(self.name, parents, dict(zip(nodes, decision.have, strict=True)), CHUNKS)

    def spec(
        self, at: int, attempt: int, spread: tuple[Spread, ...], *, contributes: bool
    ) -> RoundSpec:
        policy, view = self.policy, self.policy.view
        tags = (view.lineage, view.number, policy.version, at, attempt)
        place = (policy.tree.parent(self.name), policy.tree.children(self.name), ())
        return RoundSpec(*tags, *place, CHUNKS, contributes, spread, policy.term)

    def enter(self) -> None:
        """Begin an iteration, or continue it as a fence has decided."""
        decision, work = self.decision, self.policy.micro_batches(self.name)
        spread: tuple[Spread, ...] = ()
        self.contributed = self.complete = False
        if decision is not None and self.iteration == decision.iteration + decision.applied:
            self.attempt = decision.redo
            mine = decision.work[self.policy.view.nodes.index(self.name)]
            work = numbers(mine, BATCH)
            spread = () if decision.applied else self.spread(decision)
        self.given = tuple(sorted({*self.given, *work}))
        self.reducer.start(self.spec(self.iteration, self.attempt, spread, contributes=True))

    def contribute(self) -> None:
        """Compute what is new, or hand some of it back."""
        self.contributed = True
        new = [m for m in self.given if m not in self.asked]
        done = [m for m in new if not self.world.hands_back()]
        self.asked, self.answer = self.given, tuple(sorted({*self.answer, *done}))
        self.refuses |= self.answer != self.given
        self.own[:] = sum((gradient(self.iteration, m) for m in self.answer), np.float32(0))
        me = self.policy.view.nodes.index(self.name)
        refusing = bits((me,)) if self.refuses else b""
        word = ControlWord(1, 1, bits(self.answer), refusing, 1.0, b"", b"", True)
        self.reducer.contribute(word)

    def slice(self) -> None:
        self.later.pop(0)()

    def next(self) -> None:
        """Apply the result, or do the round again if it lacks micro-batches."""
        assert self.word is not None
        if missing := numbers(self.word.done, BATCH, unset=True):
            self.again(self.word, missing)
            return
        self.iteration, self.attempt, self.refuses = self.iteration + 1, 0, False
        self.given = self.answer = self.asked = ()
        self.enter()

    def again(self, word: ControlWord, missing: tuple[int, ...]) -> None:
        nodes = self.policy.view.nodes
        able = numbers(word.refusing, len(nodes), unset=True) or tuple(range(len(nodes)))
        dealt = [m for k, m in enumerate(missing) if nodes[able[k % len(able)]] == self.name]
        self.attempt, self.contributed, self.complete = self.attempt + 1, False, False
        self.asked, self.given = self.answer, tuple(sorted([*self.answer, *dealt]))
        self.reducer.start(self.spec(self.iteration, self.attempt, (), contributes=True))

    # --- fences -------------------------------------------------------------------------------

    def freeze(self) -> None:
        self.frozen = True
        have = self.reducer.freeze()
        self.world.reports[self.name] = FenceReport(
            1,
            self.world.fences,
            self.iteration,
            self.attempt,
            bytes(32),
            bytes(32),
            have,
            bits(self.answer if self.asked == self.given else self.given),
            self.policy,
            self.policy.version,
            tuple(sorted(self.world.devices)),
            (),
        )

    def commit(self) -> None:
        decision = self.world.decision
        assert decision is not None
        self.decision, self.policy, self.frozen = decision, decision.policy, False
        finish = (decision.iteration, decision.finish, self.spread(decision))
        if decision.applied and self.iteration == decision.iteration:
            self.attempt, self.contributed, self.complete = decision.finish, True, False
            self.reducer.start(self.spec(*finish, contributes=False))
            return
        if decision.applied:
            self.reducer.serve(self.spec(*finish, contributes=False))
        self.enter()


class World:
    """All members, linked each to each."""

    def __init__(self, seed: int, *, sliced: bool = False) -> None:
        """`sliced`: reducers put work off to later slices; the caller makes slices short."""
        self.sliced = sliced
        self.chance = random.Random(seed)
        names = [k.to_bytes(32, "big") for k in range(1, self.chance.randint(2, 6) + 1)]
        members = [Member(n, 1, "n", "sim", (), b"", False) for n in names]
        view = make_view(LINEAGE, 1, members, [edge(a, b) for a, b in combinations(names, 2)])
        self.planner = AnyTree(self.chance)
        plan = self.planner.plan(view, BATCH, ())
        self.policy = Policy(1, 1, view, plan.parents, plan.shares, (), "")
        self.streams = {(a, b): Stream() for a in names for b in names if a != b}
        self.devices = {n: Device(self, n) for n in names}
        self.reports: dict[bytes, FenceReport] = {}
        self.decision: Restart | None = None
        self.waiting: list[bytes] | None = None  # who has not frozen, or not acted, yet
        self.fences = self.discards = self.applied = self.kept = self.forks = 0
        self.refusals = 0  # how many micro-batches may still be handed back

    def hands_back(self) -> bool:
        """Whether a device that is asked to compute a micro-batch hands it back."""
        if self.refusals == 0 or self.chance.random() > 0.2:
            return False
        self.refusals -= 1
        return True

    def run(self, fences: int, refusals: int) -> None:
        self.refusals = refusals
        for device in self.devices.values():
            device.enter()
        while moves := self.moves():
            if self.waiting is None and self.fences < fences and self.chance.random() < 0.01:
                self.open_fence()
                continue
            kind = self.chance.choice(sorted({what for what, _ in moves}))
            what, which = self.chance.choice([m for m in moves if m[0] == kind])
            if what == "deliver":
                self.deliver(*which)
            elif what == "fence":
                self.fence_step(which[0])
            else:
                getattr(self.devices[which[0]], what)()

    def moves(self) -> list[tuple[str, tuple[bytes, ...]]]:
        """Return all that could happen next."""
        found: list[tuple[str, tuple[bytes, ...]]] = []
        for name, device in self.devices.items():
            if device.frozen:
                continue
            if device.later:
                found.append(("slice", (name,)))
            whole = device.word is not None and not numbers(device.word.done, BATCH, unset=True)
            if device.complete and (device.iteration < LAST or not whole):
                found.append(("next", (name,)))
            elif not device.contributed:
                found.append(("contribute", (name,)))
        found += [("deliver", ends) for ends, s in self.streams.items() if s.frames]
        return found + [("fence", (name,)) for name in self.waiting or ()]

    def deliver(self, sender: bytes, to: bytes) -> None:
        stream, reducer = self.streams[sender, to], self.devices[to].reducer
        header, payload = stream.frames[0]
        if not stream.begun:
            stream.begun, stream.target = True, reducer.arriving(sender, header)
            if stream.target is not None:
                half = len(payload) // 2
                stream.target[:half] = payload[:half]
            return
        stream.frames.popleft()
        stream.begun = False
        if stream.target is not None:
            stream.target[:] = payload
            reducer.received(sender, header)

    def open_fence(self) -> None:
        """Begin a fence, most of the time because a member is gone."""
        self.fences += 1
        self.reports, self.decision = {}, None
        if len(self.devices) > 1 and self.chance.random() < 0.7:
            gone = self.chance.choice(list(self.devices))
            del self.devices[gone]
            self.streams = {e: s for e, s in self.streams.items() if gone not in e}
            for device in self.devices.values():
                device.reducer.forget(gone)
        self.waiting = list(self.devices)

    def fence_step(self, name: bytes) -> None:
        """Let one member freeze, or act on the decision, which is made when the last one
        freezes."""
        assert self.waiting is not None
        self.waiting.remove(name)
        if self.decision is None:
            self.devices[name].freeze()
        else:
            self.devices[name].commit()
        if self.waiting:
            return
        self.waiting = None
        if self.decision is None:
            base = max((r.policy for r in self.reports.values()), key=lambda p: p.key)
            forks = not is_quorum(base.view.nodes, dict.fromkeys(self.reports))
            epoch = (1, self.fences)
            self.decision = decide(
                base, self.reports, epoch, CHUNKS, BATCH, self.planner, name, forks=forks
            )
            self.applied += self.decision.applied
            self.kept += not self.decision.applied and any(self.decision.have)
            self.forks += forks
            self.waiting = list(self.devices)

    def check(self) -> None:
        for iteration in range(FIRST, LAST + 1):
            every = sum((gradient(iteration, m) for m in range(BATCH)), np.float32(0))
            wide = np.asarray(every, np.float64)
            squares = [
                float(wide[k : k + CHUNK] @ wide[k : k + CHUNK]) for k in range(0, ELEMENTS, CHUNK)
            ]
            for device in self.devices.values():
                result, done, told = device.results[iteration]
                assert result == np.asarray(every, np.float32).tobytes()
                assert done == bits(tuple(range(BATCH)))
                assert told == squares


@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize("refusals", [0, 8])
def test_each_micro_batch_counts_once_whoever_dies_whenever(
    refusals: int, sliced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reduce, "SLICE_SECONDS", -1.0)  # one chunk at a time
    counts = [0, 0, 0, 0]
    for seed in (*range(80), *AHEAD):
        world = World(seed, sliced=sliced)
        world.run(4, refusals)
        world.check()
        new = (world.discards, world.applied, world.kept, world.forks)
        counts = [a + b for a, b in zip(counts, new, strict=True)]
    assert min(counts) > 5  # everything that can happen has happened


@pytest.mark.parametrize("seed", range(5))
def test_without_a_loss_nothing_is_done_again(seed: int) -> None:
    world = World(seed)
    world.run(0, 0)
    world.check()
    assert world.discards == 0
    assert {device.attempt for device in world.devices.values()} == {0}
