"""A joiner copies the training state from several members at once.

- No shard counts as pulled before its SHA-256 matches the manifest. Two sources are asked for one,
  so a broken memory or disk of one of them is noticed. Where their manifests differ, that of a
  third source decides, and who was wrong is asked for nothing more. With only two sources nobody
  can tell, and the first manifest is believed. While the members hold their update for the joiner,
  the second one is asked for only if a shard does not match, since they would wait for it.
- A shard that does not match is asked for again at another source. If two manifests name its
  digest, the source that has sent it was wrong, and is asked for nothing more either.
- If a source is lost, the others are asked for its part.
- A source answers only after it has said that it holds the state (`began`), so that every byte
  belongs to the same iteration.
- Shards of the constant part of the state need not be pulled by a joiner that has them. If its
  digest of that part is the source's, it asks neither for these shards nor for their digests, so
  that nobody has to hash a large frozen base while the others wait. Otherwise some of them may be
  right: they are asked of nobody before the joiner's digests of them and the manifest are here, and
  then only those that differ.
- A source is asked for a little at a time, and what is left is divided anew each time by the rates
  known then, so that all sources finish together although links change. Once all is asked for, a
  source that is done is also asked for what another would send much later, because its link has
  become slow meanwhile. What comes first counts.
- Other joiners that copy the same state (fellows) are asked for what they have already. So that
  they soon have something to exchange, each of them asks the sources for another part of the state
  first (`part`), and then for what no fellow has. What a fellow sends counts only if it matches the
  manifest, which comes from a source; a fellow whose shard does not match is asked for no more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from protocols.errors import RemoteProtocolError
from protocols.table import Row, StateTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from protocols.scheduler.planning import Offer

NOWHERE = "matches its digest from no source"
MANIFESTS = 2  # from so many sources, if there are so many
# A source is asked for what it can send within this time. The rest is asked of nobody yet, so that
# another source can send it if rates change.
WINDOW_SECONDS = 0.1
MOST_GROWTH = 4.0  # of what it is asked for, over what it has sent lately


class PullState(StrEnum):
    """Where a pull stands."""

    WAITING = "waiting"
    COPYING = "copying"
    DONE = "done"
    FAILED = "failed"


PULL_TABLE: StateTable[PullState] = StateTable(
    "pull",
    Row(PullState.WAITING, "began", (PullState.COPYING,)),
    Row(PullState.WAITING, "source lost", (PullState.WAITING, PullState.FAILED)),
    Row(PullState.WAITING, "own shards", (PullState.WAITING,)),
    Row(PullState.COPYING, "began", (PullState.COPYING,)),
    Row(PullState.COPYING, "manifest", (PullState.COPYING, PullState.DONE, PullState.FAILED)),
    Row(PullState.COPYING, "shard", (PullState.COPYING, PullState.DONE, PullState.FAILED)),
    Row(PullState.COPYING, "source lost", (PullState.COPYING, PullState.DONE, PullState.FAILED)),
    Row(PullState.COPYING, "own shards", (PullState.COPYING, PullState.DONE)),
)


@dataclass(frozen=True, slots=True)
class AskManifest:
    """Ask `source` for the digests of all shards from number `first` on."""

    source: bytes
    first: int = 0


@dataclass(frozen=True, slots=True)
class AskShards:
    """Ask `source` for `shards`."""

    source: bytes
    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Spared:
    """These shards match the manifest as they are here, so they are not asked for."""

    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WasWrong:
    """`source` has sent something that two manifests contradict; it is asked for nothing more."""

    source: bytes


@dataclass(frozen=True, slots=True)
class PullDone:
    """Every shard is here and verified."""


@dataclass(frozen=True, slots=True)
class PullFailed:
    """The state cannot be had; `reason` says why."""

    reason: str


PullEffect = AskManifest | AskShards | Spared | WasWrong | PullDone | PullFailed


class Pull:
    """The joiner's side of one pull of `shards` shards of `shard_bytes` bytes from `sources`.

    `offer(source, busy)` returns what is known of a source that has `busy` bytes still to send.
    `assign(shards, shard_bytes, offers)` divides shards among sources: source -> its shards.
    The first `own` shards may be right already; `own_shards` must be told their digests, unless
    `are_right`: then they are known to be. `part` is (number, count): this joiner is one of `count`
    that copy the same state, and asks the sources for every `count`-th shard first, from `number`
    on. So many `manifests` are asked for at first. `twice`: at the end shards may be asked of two.
    """

    def __init__(
        self,
        shards: int,
        shard_bytes: int,
        sources: tuple[bytes, ...],
        offer: Callable[[bytes, int], Offer],
        assign: Callable[[tuple[int, ...], int, tuple[Offer, ...]], dict[bytes, tuple[int, ...]]],
        own: int = 0,
        part: tuple[int, int] = (0, 1),
        *,
        are_right: bool = False,
        manifests: int = MANIFESTS,
        twice: bool = True,
    ) -> None:
        self.state = PULL_TABLE.initial
        self.sources = sources
        self._named = sources  # all sources that the policy names, including those lost since
        self._offer = offer
        self._assign = assign
        self._shards = shards
        self._shard_bytes = shard_bytes
        self._ready: list[bytes] = []  # sources that said they hold the state
        self._left = dict.fromkeys(range(own, shards))  # shards that are asked of nobody at present
        self._known = own if are_right else 0  # the first shard of the manifest
        self._held = tuple(range(self._known, own))  # shards that wait for their own digests
        self._same: tuple[int, ...] = ()  # those of them that match the manifest as they are here
        self._own: tuple[bytes, ...] | None = None  # these digests
        self._spared = self._known  # how many shards were right already, as far as is known
        self._asked: dict[int, bytes] = {}  # shard -> source it was asked from, not arrived
        self._also: dict[int, bytes] = {}  # the same of shards that were asked of two: the first
        self._digests: dict[int, tuple[bytes, bytes]] = {}  # shard -> (source, digest) to verify
        self._tried: dict[int, list[bytes]] = {}  # shard -> sources whose copy did not match
        self._verified: dict[int, bytes] = {}  # shard -> source it came from
        self._delivered: dict[bytes, int] = {}  # source -> how often it has answered
        # Source -> its manifest, None if it was asked for it and has not answered.
        self._manifests: dict[bytes, tuple[bytes, ...] | None] = {}
        self._wanted_manifests = manifests  # as long as nothing is in doubt
        self._may_ask_twice = twice
        self._leaves: tuple[bytes, ...] | None = None  # the digests that are believed
        self._wrong: dict[bytes, None] = {}  # sources that others have contradicted
        self._part = part
        # Fellow -> shards that it has and that were left when it said so, in that order.
        self._fellows: dict[bytes, dict[int, None]] = {}
        self._elsewhere: dict[int, None] = {}  # shards that some fellow has, or had

    @property
    def verified(self) -> dict[int, bytes]:
        """Shard -> the source it came from, for the shards that are here and match."""
        return self._verified

    @property
    def spared(self) -> int:
        """How many shards were right already, as far as is known."""
        return self._spared

    @property
    def keeps_own(self) -> bool:
        """Whether the shards that were here are kept as they are, without a look at each."""
        return self._known > 0

    def expects(self, source: bytes, shard: int) -> bool:
        """Whether `source` was asked for `shard` and has not delivered it."""
        return source in (self._asked.get(shard), self._also.get(shard))

    def owes(self, source: bytes) -> int:
        """How many shards `source` was asked for that have not come."""
        owners = (*self._asked.values(), *self._also.values())
        return sum(owner == source for owner in owners)

    @property
    def waits(self) -> bool:
        """Whether everything is asked for, and another source might send what one still owes."""
        copies = self.state is PullState.COPYING and self._may_ask_twice
        return copies and bool(self._asked) and not self._left and len(self._ready) > 1

    def look(self) -> list[PullEffect]:
        """Look again whether a source has become so slow that another one sends sooner what it
        owes, since nothing may arrive any more that would be a reason to look."""
        return self._ask_twice() if self.waits else []

    @property
    def awaited(self) -> dict[bytes, int]:
        """Source -> how often it has answered so far, for the sources that owe an answer."""
        owing = dict.fromkeys(sorted(self._asked.values()))
        # A source may have to hash a large state, so a further manifest may take its time.
        if self._leaves is None:
            owing |= dict.fromkeys(self._manifests)
        return {source: self._delivered.get(source, 0) for source in owing}

    def began(self, source: bytes) -> list[PullEffect]:
        """Ask `source`, which says that it holds the state. Raises `RemoteProtocolError` if the
        policy does not name it as a source."""
        if source not in self._named:
            raise RemoteProtocolError("a pull began at a node that is no source")
        if source not in self.sources or source in self._ready:
            return []  # the link to it was lost, or it repeats itself as it was asked for nothing
        if not PULL_TABLE.allows(self.state, "began"):
            return []
        self._ready.append(source)
        self.state = PULL_TABLE.step(self.state, "began", PullState.COPYING)
        return self._ask()

    def manifest(self, source: bytes, leaves: tuple[bytes, ...]) -> list[PullEffect]:
        """Verify what is here by the digests that `source` was asked for and has sent. Raises
        `RemoteProtocolError` if they are not one for each of these shards."""
        awaited = source in self._manifests and self._manifests[source] is None
        if not PULL_TABLE.allows(self.state, "manifest") or not awaited:
            return []
        if len(leaves) != self._shards - self._known:
            raise RemoteProtocolError("a manifest with the wrong number of shards")
        self._manifests[source] = leaves
        self._answered(source)
        return [*self._judge_manifests(), *self._check("manifest")]

    @property
    def _told(self) -> dict[bytes, tuple[bytes, ...]]:
        """Source -> its manifest, for those that are here."""
        return {s: leaves for s, leaves in self._manifests.items() if leaves is not None}

    @property
    def _most_manifests(self) -> int:
        """How many manifests are needed: two if a shard did not match, three if two differ."""
        if len(dict.fromkeys(self._told.values())) > 1:
            return MANIFESTS + 1
        return MANIFESTS if self._tried else self._wanted_manifests

    @property
    def _is_judged(self) -> bool:
        """Whether no manifest is to come that might say something else."""
        asked = [s for s in self._ready if s in self._manifests]
        unasked = len(self._ready) > len(asked) and len(self._manifests) < self._most_manifests
        return None not in self._manifests.values() and not unasked

    def _judge_manifests(self) -> list[PullEffect]:
        """Believe the first manifest, and the majority once there are three; look again at the
        shards of which another digest is believed then."""
        told = self._told
        first = next(iter(told.values()))
        believed = first
        if len(told) > MANIFESTS:
            believed = tuple(_majority(digests) for digests in zip(*told.values(), strict=True))
        before, self._leaves = self._leaves or believed, believed
        changed = [k + self._known for k, leaf in enumerate(believed) if before[k] != leaf]
        for shard in changed:
            self._tried.pop(shard, None)
            if (source := self._verified.pop(shard, None)) is not None:
                self._digests[shard] = (source, before[shard - self._known])
        self._held += tuple(k for k in self._same if k in changed)
        self._same = tuple(k for k in self._same if k not in changed)
        self._spared = self._known + len(self._same)
        if len(told) <= MANIFESTS:
            return []
        wrong = [s for s, leaves in told.items() if self._contradicts(leaves)]
        return [effect for source in wrong for effect in self._was_wrong(source)]

    def _contradicts(self, leaves: tuple[bytes, ...]) -> bool:
        """Whether a manifest has another digest of some shard than two others have."""
        believed = self._leaves or ()
        differ = (k for k, leaf in enumerate(leaves) if leaf != believed[k])
        return any(self._is_agreed(k + self._known) for k in differ)

    def _is_agreed(self, shard: int) -> bool:
        """Whether two manifests name the digest of `shard` that is believed."""
        assert self._leaves is not None
        at = shard - self._known
        return sum(leaves[at] == self._leaves[at] for leaves in self._told.values()) > 1

    def _was_wrong(self, source: bytes) -> list[PullEffect]:
        """Ask `source` for nothing any more, unless nobody else has it."""
        if source in self._wrong:
            return []
        self._wrong[source] = None
        self._take_back(source)
        return [WasWrong(source)]

    def own_shards(self, digests: tuple[bytes, ...]) -> list[PullEffect]:
        """Take the SHA-256 of each of the shards that may be right already."""
        if not PULL_TABLE.allows(self.state, "own shards") or self._own is not None:
            return []
        self._own = digests
        return self._check("own shards")

    def shard(self, source: bytes, shard: int, digest: bytes) -> list[PullEffect]:
        """`shard` has arrived whole from `source`; `digest` is the SHA-256 of what arrived. Raises
        `RemoteProtocolError` if it was not asked for."""
        if not self.expects(source, shard):
            raise RemoteProtocolError("a shard that was not asked for")
        del self._asked[shard]
        self._also.pop(shard, None)
        self._digests[shard] = (source, digest)
        self._answered(source)
        return self._check("shard")

    def _answered(self, source: bytes) -> None:
        self._delivered[source] = self._delivered.get(source, 0) + 1

    def has(self, fellow: bytes, shards: tuple[int, ...]) -> list[PullEffect]:
        """Ask `fellow`, another joiner, which says that it has `shards`, for those that are left.
        Raises `RemoteProtocolError` if there are no such shards."""
        if any(shard >= self._shards for shard in shards):
            raise RemoteProtocolError("another joiner has shards that do not exist")
        if self.state is not PullState.COPYING or fellow in self.sources:
            return []
        known = self._fellows.setdefault(fellow, {})
        for shard in shards:
            self._elsewhere[shard] = None
            if shard not in self._verified:
                known[shard] = None
        return self._ask_fellows()

    def lost(self, source: bytes) -> list[PullEffect]:
        """Divide what `source` owed among the other sources, because the link to it is gone."""
        if self._fellows.pop(source, None) is not None:
            self._take_back(source)
            return self._ask() if self.state is PullState.COPYING else []
        if source not in self.sources or not PULL_TABLE.allows(self.state, "source lost"):
            return []
        self.sources = tuple(s for s in self.sources if s != source)
        self._ready = [s for s in self._ready if s != source]
        if not self.sources:
            return self._fail("source lost", "every source of the training state was lost")
        if self._manifests.get(source, ()) is None:
            del self._manifests[source]
        self._take_back(source)
        return self._check("source lost")

    def _take_back(self, source: bytes) -> None:
        """Count what `source` was asked for and has not sent as left."""
        self._also = {k: owner for k, owner in self._also.items() if owner != source}
        for shard in [k for k, owner in self._asked.items() if owner == source]:
            if shard in self._also:
                self._asked[shard] = self._also.pop(shard)
            else:
                del self._asked[shard]
                self._left[shard] = None

    def _ask(self) -> list[PullEffect]:
        """Ask every ready source for as much as keeps it busy, out of what the plan gives it."""
        effects = self._ask_fellows()
        unasked = [s for s in self._ready if s not in self._manifests]
        for source in unasked[: max(0, self._most_manifests - len(self._manifests))]:
            self._manifests[source] = None
            effects.append(AskManifest(source, self._known))
        # Sources that have not begun yet most likely will soon, so a part is left for them. But if
        # nothing is asked of anybody then, the ready ones are asked for all.
        asked = self._ask_of(tuple(s for s in self.sources if s not in self._wrong))
        if self._left and not self._asked:
            asked = self._ask_of(tuple(self._ready))
        return effects + (asked or self._ask_twice())

    def _ask_of(self, sources: tuple[bytes, ...]) -> list[PullEffect]:
        """Divide what is left among `sources`, and ask the ready ones for the next of their shards.
        A source is asked when half of what it may owe has arrived, so that requests are few and it
        never runs dry. Shards that did not match once go to sources that were not tried."""
        busy = self._busy(sources)
        offers = {s: self._offer(s, busy[s] * self._shard_bytes) for s in sources}
        room = {s: self._most(offers[s]) - busy[s] for s in sources}
        idle = [s for s in self._ready if s in room and room[s] >= busy[s]]
        if not self._left or not idle:
            return []
        doubted = [k for k in self._left if k in self._tried]
        fresh = self._first(k for k in sorted(self._left) if k not in self._tried)
        plan = self._assign(fresh, self._shard_bytes, tuple(offers.values())) if fresh else {}
        effects: list[PullEffect] = []
        for source in idle:
            again = [k for k in doubted if k in self._left and source not in self._tried[k]]
            wanted = (*again, *plan.get(source, ()))[: room[source]]
            for shard in wanted:
                self._asked[shard] = source
                del self._left[shard]
            if wanted:
                effects.append(AskShards(source, wanted))
        return effects

    def _ask_twice(self) -> list[PullEffect]:
        """Once nothing is left, ask each source that is done for the last shards of whoever would
        be done last, as long as it sends them sooner by `WINDOW_SECONDS` or more."""
        if self._left or not self._asked or not self._may_ask_twice:
            return []
        effects: list[PullEffect] = []
        busy = self._busy(dict.fromkeys(self._asked.values()))
        for source in [s for s in self._ready if s not in busy and s not in self._wrong]:
            offer, wanted = self._offer(source, 0), list[int]()
            while offer.rate and len(wanted) < self._most(offer):
                slow = max(busy, key=lambda owner: self._seconds_left(owner, busy[owner]))
                here_s = (len(wanted) + 1) * self._shard_bytes / offer.rate + 2 * offer.delay_s
                if self._seconds_left(slow, busy[slow]) <= here_s + WINDOW_SECONDS:
                    break
                shard = next((k for k in self._asked_last(slow) if self._may_send(source, k)), None)
                if shard is None:
                    break
                self._asked[shard], self._also[shard] = source, slow
                busy[slow] -= 1
                wanted.append(shard)
            if wanted:
                effects.append(AskShards(source, tuple(wanted)))
        return effects

    def _seconds_left(self, owner: bytes, shards: int) -> float:
        """Return after how many seconds `owner` has sent so many shards; 0 if that is not known."""
        rate = self._offer(owner, shards * self._shard_bytes).rate
        return shards * self._shard_bytes / rate if rate else 0.0

    def _asked_last(self, owner: bytes) -> list[int]:
        """Return the shards that only `owner` was asked for and owes, the last ones first."""
        return [k for k in reversed(self._asked) if self._asked[k] == owner and k not in self._also]

    def _may_send(self, source: bytes, shard: int) -> bool:
        """Whether `source` has sent no copy of `shard` that did not match."""
        return source not in self._tried.get(shard, ())

    def _first(self, shards: Iterable[int]) -> tuple[int, ...]:
        """Return those of `shards` for which the sources are asked first: this joiner's part, then
        what no fellow has, then the rest. Each joiner begins elsewhere in what is left, because
        those that ask for the same have nothing to exchange."""
        number, count = self._part
        fresh = tuple(shards)
        if count == 1:
            return fresh
        if own := tuple(k for k in fresh if k % count == number):
            return own
        rest = tuple(k for k in fresh if k not in self._elsewhere) or fresh
        at = len(rest) * number // count
        return rest[at:] + rest[:at]

    def _ask_fellows(self) -> list[PullEffect]:
        """Ask each fellow that is idle for the next shards that it has."""
        effects: list[PullEffect] = []
        busy = self._busy(self._fellows) if self._fellows else {}
        for fellow, known in self._fellows.items():
            room = self._most(self._offer(fellow, busy[fellow] * self._shard_bytes)) - busy[fellow]
            if room < busy[fellow]:
                continue
            wanted: list[int] = []
            while known and len(wanted) < room:
                shard = next(iter(known))
                del known[shard]
                if shard in self._left:
                    del self._left[shard]
                    self._asked[shard] = fellow
                    wanted.append(shard)
            if wanted:
                effects.append(AskShards(fellow, tuple(wanted)))
        return effects

    def _busy(self, sources: Iterable[bytes]) -> dict[bytes, int]:
        """Return for how many shards each of `sources` was asked that have not come."""
        busy = dict.fromkeys(sources, 0)
        for owner in self._asked.values():
            if owner in busy:
                busy[owner] += 1
        return busy

    def _most(self, offer: Offer) -> int:
        """Return how many shards a source may owe at once: what it sends in `WINDOW_SECONDS` and
        while a request is on its way, but never less than two, so that it need not wait. It may owe
        more than its rate explains if its link can carry that: otherwise a source that had to wait
        for requests, and so has sent little, would be asked for less and less."""
        seconds, rate = WINDOW_SECONDS + 2 * offer.delay_s, offer.rate or 0.0
        rate = max(rate, min(offer.link_rate or 0.0, MOST_GROWTH * rate))
        return max(2, math.ceil(rate * seconds / self._shard_bytes))

    def _check(self, event: str) -> list[PullEffect]:
        """Verify the shards that have arrived, if the manifest is here; ask other sources for those
        that do not match, and fail if no source is left for one."""
        effects = self._compare()
        if self._leaves is not None:
            for shard, (source, digest) in sorted(self._digests.items()):
                if digest == self._leaves[shard - self._known]:
                    self._verified[shard] = source
                    continue
                if source not in self._named:  # a fellow
                    self._left[shard] = None
                    if self._fellows.pop(source, None) is not None:
                        self._take_back(source)
                    continue
                tried = self._tried.setdefault(shard, [])
                tried.append(source)
                self._left[shard] = None
            self._digests.clear()
            wrong = [s for k, tried in self._tried.items() if self._is_agreed(k) for s in tried]
            effects += [effect for source in wrong for effect in self._was_wrong(source)]
        asked = self._ask()
        nowhere = [k for k, tried in self._tried.items() if self._is_nowhere(k, tried)]
        if nowhere and self._is_judged:
            return effects + self._fail(event, f"shard {nowhere[0]} {NOWHERE}")
        done = len(self._verified) + self._spared == self._shards
        done = done and self._leaves is not None and None not in self._manifests.values()
        self.state = PULL_TABLE.step(self.state, event, PullState.DONE if done else self.state)
        return [*effects, *([PullDone()] if done else asked)]

    def _is_nowhere(self, shard: int, tried: list[bytes]) -> bool:
        """Whether `shard` is missing, and no source is left that has not sent it."""
        return shard in self._left and all(s in tried for s in self.sources)

    def _compare(self) -> list[PullEffect]:
        """Compare the shards that are held back with the manifest, once both sides are known; have
        those asked for that differ."""
        if self._own is None or self._leaves is None or not self._held:
            return []
        same = tuple(k for k in self._held if self._own[k] == self._leaves[k])
        self._left |= dict.fromkeys(k for k in self._held if k not in same)
        self._held, self._same = (), (*self._same, *same)
        self._spared = len(self._same)
        return [Spared(same)] if same else []

    def _fail(self, event: str, reason: str) -> list[PullEffect]:
        self.state = PULL_TABLE.step(self.state, event, PullState.FAILED)
        self._asked.clear()
        self._also.clear()
        self._left.clear()
        return [PullFailed(reason)]


def _majority(digests: tuple[bytes, ...]) -> bytes:
    """Return what most say; if no two agree, what the first one says."""
    return max(digests, key=digests.count)
