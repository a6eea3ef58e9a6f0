"""One round: how a chunk's partial sums meet on the tree and how its reduced value spreads.

    own contribution + child 1 + child 2 + ... -> parent ... root -> children, joiners

Chunks may take different trees (`cluster/ways.py`); the control word and, if the policy has no
ways, all others take the policy's tree. A node's place on the way of a chunk is a `Lane`.

After a failure, chunks that were complete before (`spread`) are not summed again: the members that
hold them send them along the tree to those that do not.

Where a chunk has holders (`cluster/stripes.py`), its sum stays at them, and what spreads is the
result that its owner, the root, makes of the sum:

    own + children -> ... owner -> copies (the sum); after the control word: owner -> all (result)

A node gives its part of the control word only when it has all sums that it is to hold. So once the
reduced word is anywhere, each sum lies at all holders of its chunk, and any of them can finish what
the others have begun (protocol.md, 4.7).

Each chunk is summed in its tree's fixed order (own first, then children ascending), because
floating-point sums depend on the order and equal policies must give equal bits. A node's own
contribution P is read and never written, so that the sum can be made again after a failure. A node
may contribute data chunks one by one while its trainer still computes others; the control word,
chunk 0, comes with the last of them, because it says what all of them contain. This machine knows
chunk numbers and no bytes; the data plane, which drives it, moves those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols import limits
from protocols.errors import LocalProtocolError, RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from protocols.rounds.word_check import Part


# A control word that is held back is summed when no more than this part of the data is missing.
LAST_PART = 0.1


@dataclass(frozen=True, slots=True)
class Spread:
    """These reduced `chunks` come from `source` (None: they are here) and are sent on to `to`."""

    chunks: tuple[int, ...]
    source: bytes | None
    to: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Lane:
    """This node's place on the way of some chunks.

    Partial sums come from `children` and go on to `parent`, None at the root. The reduced value
    comes from `source`, None at the root, and goes on to the nodes in `to`. If the chunks are
    `held`, the root is their owner: it passes the sums on to those in `sums_to`, which lead to the
    copies. Another node gets them from `sums_from`, None if it gets none; it is itself a copy if it
    `keeps` them.
    """

    parent: bytes | None
    children: tuple[bytes, ...]
    source: bytes | None
    to: tuple[bytes, ...]
    held: bool = False
    sums_from: bytes | None = None
    sums_to: tuple[bytes, ...] = ()
    keeps: bool = False

    @property
    def owns(self) -> bool:
        """Whether this node makes the results of these chunks."""
        return self.held and self.parent is None


@dataclass(frozen=True, slots=True)
class Feed:
    """What this node forwards to a `joiner` that follows the rounds: the control word if it is the
    `parent`, and data chunk c if `turns[(c - 1) % len(turns)]`."""

    joiner: bytes
    parent: bool = True
    turns: tuple[bool, ...] = (True,)

    def has(self, chunk: int) -> bool:
        """Return whether this node forwards `chunk`."""
        return self.turns[(chunk - 1) % len(self.turns)] if chunk else self.parent


@dataclass(frozen=True, slots=True)
class RoundSpec:
    """Which round this is, and this node's place in it.

    `parent` and `children` are those in the policy's tree; `parent` is None at the root.
    `feeds` say which reduced chunks this node forwards to joiners. `chunks` is the number of all,
    chunk 0 included. A joiner, and a member that only finishes a result after a fence, receives
    reduced chunks and sums nothing (`contributes` is False); a joiner's data chunks come from its
    `feeders` in turns, and from `parent` if there are none. If the policy has ways, `lanes` are
    this node's places on them, `turns` says which of them each chunk takes (`ways.turns`), and a
    partial sum is sent only within `window` chunks of the first one that is not reduced here.
    If the data chunks have holders, the round `is_held`.
    """

    lineage: bytes
    view: int
    policy: int
    iteration: int
    attempt: int
    parent: bytes | None
    children: tuple[bytes, ...]
    feeds: tuple[Feed, ...]
    chunks: int
    contributes: bool
    spread: tuple[Spread, ...] = ()
    term: int = 0
    parts: tuple[Part, ...] = ()  # what each child's word may contain, in the order of `children`
    silent: int = 0  # bitmap of the members with another state, which must make no claim
    lanes: tuple[Lane, ...] = ()
    turns: tuple[int, ...] = ()
    window: int = limits.MAX_CHUNKS
    is_held: bool = False
    feeders: tuple[bytes, ...] = ()

    @property
    def key(self) -> tuple[bytes, int, int, int, int, int]:
        """The tags that every chunk of this round carries."""
        return (self.lineage, self.view, self.policy, self.iteration, self.attempt, self.term)

    @property
    def word_lane(self) -> Lane:
        """This node's place in the policy's tree."""
        return Lane(self.parent, self.children, self.parent, self.children)

    def number(self, chunk: int) -> int:
        """Return 0 if `chunk` takes the policy's tree, else 1 + the number of its lane."""
        return 1 + self.turns[(chunk - 1) % len(self.turns)] if chunk and self.turns else 0


@dataclass(frozen=True, slots=True)
class Add:
    """R[chunk] = (own contribution if `first` else R[chunk]) + what `child` sent."""

    chunk: int
    child: bytes
    first: bool


@dataclass(frozen=True, slots=True)
class SendUp:
    """Send the partial sum to `parent`: from P if `own`, else from R."""

    chunk: int
    own: bool
    parent: bytes


@dataclass(frozen=True, slots=True)
class Finish:
    """At the root: R[chunk] is reduced (if `own`, copy it from P first). Compute its sum of
    squares, from which the norm of the gradient follows."""

    chunk: int
    own: bool


@dataclass(frozen=True, slots=True)
class SendDown:
    """Send the reduced R[chunk] to `to`."""

    chunk: int
    to: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class KeepSum:
    """R[chunk] is the sum of a chunk that this node holds: keep a copy, as the result will take its
    place."""

    chunk: int


@dataclass(frozen=True, slots=True)
class SendSum:
    """Send the sum R[chunk] to `to`."""

    chunk: int
    to: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Decided:
    """The reduced control word is here, in a round whose chunks have holders. If it is final,
    owners make their results and call `publish`."""


@dataclass(frozen=True, slots=True)
class Complete:
    """Every chunk of R is reduced and here."""


RoundEffect = Add | SendUp | Finish | SendDown | KeepSum | SendSum | Decided | Complete


class Round:
    """The state of one round at one node."""

    def __init__(self, spec: RoundSpec) -> None:
        self.spec = spec
        self.contributed = not spec.contributes
        # Whether this node's own part of each chunk is ready.
        self._own = bytearray(bytes([not spec.contributes]) * spec.chunks)
        self._arrived = [0] * spec.chunks  # bit k: child k's sum is here
        self._added = [0] * spec.chunks  # children added so far
        self._reduced = bytearray(spec.chunks)
        self._missing = spec.chunks
        self._kept: dict[int, Spread] = {c: s for s in spec.spread for c in s.chunks}
        self._lanes = (spec.word_lane, *spec.lanes)
        # The first data chunk that is not reduced here or, where chunks have holders, not summed.
        self._first = 1
        self._holds_word = False  # the control word is not to be summed here yet
        self._summed: dict[int, SendUp] = {}  # chunks beyond the window, which wait to be sent
        self._sums = bytearray(spec.chunks)  # of held chunks: the sum has been here
        self._awaited = self._count_sums()  # sums that this node has to hold and lacks

    def _count_sums(self) -> int:
        spec = self.spec
        if not spec.is_held or not spec.contributes:
            return 0
        lanes = [self._lane(chunk) for chunk in range(1, spec.chunks)]
        return sum(lane.owns or lane.keeps for lane in lanes)

    @property
    def owned(self) -> tuple[int, ...]:
        """The held chunks whose result this node makes and has not published."""
        chunks = range(1, self.spec.chunks if self.spec.is_held else 1)
        return tuple(c for c in chunks if not self._reduced[c] and self._makes(c))

    def _makes(self, chunk: int) -> bool:
        return chunk not in self._kept and self._lane(chunk).owns

    @property
    def have(self) -> bytes:
        """Bitmap of the chunks that are reduced here."""
        return self._bitmap(range(self.spec.chunks))

    @property
    def kept(self) -> bytes:
        """Bitmap of the chunks that were reduced before this attempt, as far as they are here."""
        return self._bitmap(self._kept)

    @property
    def complete(self) -> bool:
        """Whether every chunk is reduced here."""
        return self._missing == 0

    def begin(self) -> list[RoundEffect]:
        """Pass on the chunks that were reduced before this attempt and are here."""
        effects: list[RoundEffect] = []
        for chunk, spread in sorted(self._kept.items()):
            if spread.source is None:
                effects += self._settle(chunk)
        return effects

    def contribute_chunks(self, chunks: Iterable[int]) -> list[RoundEffect]:
        """This node's own contribution is ready in these data chunks, and does not change in this
        attempt any more. `contribute` follows, with the control word and whatever is not ready yet.
        Raises `LocalProtocolError` if there is no such chunk, or if `contribute` came before."""
        if self.contributed:
            raise LocalProtocolError("contributed to a round after all of it was contributed")
        effects: list[RoundEffect] = []
        for chunk in chunks:
            if not 0 < chunk < self.spec.chunks:
                raise LocalProtocolError("contributed a chunk that there is none of")
            effects += self._contribute(chunk)
        return effects

    def contribute(self) -> list[RoundEffect]:
        """This node's own contribution is ready, in all chunks. Raises `LocalProtocolError` if it
        was before."""
        if self.contributed:
            raise LocalProtocolError("contributed twice to one round")
        self.contributed = True
        effects: list[RoundEffect] = []
        for chunk in range(self.spec.chunks):
            effects += self._contribute(chunk)
        return effects

    def _contribute(self, chunk: int) -> list[RoundEffect]:
        if self._own[chunk]:
            return []
        self._own[chunk] = 1
        if chunk in self._kept or (chunk == 0 and self._awaited):
            return []
        return self._advance(chunk)

    def hold_word(self) -> None:
        """If this node sums the control word, have it do so only when few other chunks are missing
        here, or when `release_word` is called: until then something may be added to the word. The
        others wait for it no longer than the last chunks need to get to them from here, or, in a
        round of few chunks, than the word itself does.

        Where chunks have holders, the word comes last in any case, and the results wait for it.
        """
        spec = self.spec
        sums = spec.parent is None and spec.contributes and 0 not in self._kept
        waits = self._missing > 1 + self._few and not spec.is_held
        self._holds_word = sums and waits and not self._reduced[0]

    def release_word(self) -> list[RoundEffect]:
        """Sum the control word as soon as all parts of it are here."""
        if not self._holds_word:
            return []
        self._holds_word = False
        return self._advance(0) if self._own[0] else []

    @property
    def _few(self) -> int:
        return int(LAST_PART * (self.spec.chunks - 1))

    def up(self, child: bytes, chunk: int) -> list[RoundEffect]:
        """`child`'s partial sum of `chunk` has arrived. Raises as `check_up` does."""
        self.check_up(child, chunk)
        self._arrived[chunk] |= 1 << self._lane(chunk).children.index(child)
        if not self._own[chunk] or (chunk == 0 and self._awaited):
            return []
        return self._advance(chunk)

    def check_up(self, child: bytes, chunk: int) -> None:
        """Raise `RemoteProtocolError` unless `child` may send `chunk` now."""
        children = self._lane(chunk).children if chunk < self.spec.chunks else ()
        if child not in children or chunk in self._kept:
            raise RemoteProtocolError("a partial sum from no child, or of no chunk")
        if self._arrived[chunk] >> children.index(child) & 1:
            raise RemoteProtocolError("a partial sum came twice")

    def down(self, sender: bytes, chunk: int) -> list[RoundEffect]:
        """The reduced `chunk` has arrived from `sender`, its source. Raises as `check_down`
        does."""
        self.check_down(sender, chunk)
        return self._settle(chunk)

    def check_down(self, sender: bytes, chunk: int) -> None:
        """Raise `RemoteProtocolError` unless `sender` may send the reduced `chunk` now."""
        if chunk >= self.spec.chunks or sender != self._source(chunk):
            raise RemoteProtocolError("a reduced chunk from a node that does not send it")
        if self._reduced[chunk]:
            raise RemoteProtocolError("a reduced chunk came twice")
        if self.spec.contributes and chunk not in self._kept and not self._sent_up(chunk):
            raise RemoteProtocolError("a reduced chunk came before its parts were sent")

    def sum_down(self, sender: bytes, chunk: int) -> list[RoundEffect]:
        """The sum of the held `chunk` has arrived from `sender`. Raises as `check_sum` does."""
        self.check_sum(sender, chunk)
        return self._hold(chunk)

    def check_sum(self, sender: bytes, chunk: int) -> None:
        """Raise `RemoteProtocolError` unless `sender` may send the sum of `chunk` now."""
        if not 0 < chunk < self.spec.chunks or sender != self._lane(chunk).sums_from:
            raise RemoteProtocolError("a sum from a node that does not send it")
        if self._sums[chunk]:
            raise RemoteProtocolError("a sum came twice")
        if not self.spec.contributes or not self._sent_up(chunk):
            raise RemoteProtocolError("a sum came before its parts were sent")

    def publish(self) -> list[RoundEffect]:
        """The results of the chunks that this node owns (`owned`) are in R. Raises
        `LocalProtocolError` if the control word is not reduced here."""
        if not self._reduced[0]:
            raise LocalProtocolError("published before the round was decided")
        effects: list[RoundEffect] = []
        for chunk in self.owned:
            effects += self._settle(chunk)
        return effects

    def owes(self, sender: bytes) -> bool:
        """Whether `sender` still has to send chunks of this round."""
        lanes = [lane.children for lane in self._lanes]
        bits = [1 << c.index(sender) if sender in c else 0 for c in lanes]
        for chunk in range(self.spec.chunks):
            if self._source(chunk) == sender and not self._reduced[chunk]:
                return True
            sums = self.spec.contributes and self._lane(chunk).sums_from == sender
            if sums and not self._sums[chunk]:
                return True
            bit = bits[self.spec.number(chunk)]
            if bit and chunk not in self._kept and not self._arrived[chunk] & bit:
                return True
        return False

    def _lane(self, chunk: int) -> Lane:
        return self._lanes[self.spec.number(chunk)]

    def _source(self, chunk: int) -> bytes | None:
        """Return from whom the reduced `chunk` has to come, None if from nobody."""
        kept, feeders = self._kept.get(chunk), self.spec.feeders
        if kept is not None:
            return kept.source
        if feeders and chunk:
            return feeders[(chunk - 1) % len(feeders)]
        return self._lane(chunk).source

    def _bitmap(self, chunks: Iterable[int]) -> bytes:
        value = sum(1 << chunk for chunk in chunks if self._reduced[chunk])
        return value.to_bytes((value.bit_length() + 7) // 8, "little")

    def _sent_up(self, chunk: int) -> bool:
        if chunk == 0 and self._awaited:
            return False
        whole = self._added[chunk] == len(self._lane(chunk).children)
        return bool(self._own[chunk]) and whole and chunk not in self._summed

    def _advance(self, chunk: int) -> list[RoundEffect]:
        """Add the children's sums of a chunk as far as they have come in order, and send it on when
        all are added."""
        lane = self._lane(chunk)
        children = lane.children
        effects: list[RoundEffect] = []
        while (k := self._added[chunk]) < len(children) and self._arrived[chunk] >> k & 1:
            effects.append(Add(chunk, children[k], k == 0))
            self._added[chunk] += 1
        if self._added[chunk] < len(children) or (chunk == 0 and self._holds_word):
            return effects
        if lane.parent is not None:
            send = SendUp(chunk, not children, lane.parent)
            if chunk >= self._first + self.spec.window:
                self._summed[chunk] = send
                return effects
            return [*effects, send, *self._move_window()]
        effects.append(Finish(chunk, not children))
        return effects + (self._hold(chunk) if lane.held else self._settle(chunk))

    def _hold(self, chunk: int) -> list[RoundEffect]:
        """The sum of a held chunk is in R: keep it, pass it on, and give the own part of the
        control word once no sum is missing here."""
        lane = self._lane(chunk)
        self._sums[chunk] = 1
        effects: list[RoundEffect] = []
        if lane.owns or lane.keeps:
            effects.append(KeepSum(chunk))
            self._awaited -= 1
        if lane.sums_to:
            effects.append(SendSum(chunk, lane.sums_to))
        effects += self._move_window()
        last = self._own[0] and not self._awaited and (lane.owns or lane.keeps)
        return effects + (self._advance(0) if last else [])

    def _settle(self, chunk: int) -> list[RoundEffect]:
        """Note that a chunk is reduced here, and forward it."""
        self._reduced[chunk] = 1
        self._missing -= 1
        effects: list[RoundEffect] = []
        kept = self._kept.get(chunk)
        to = kept.to if kept else self._lane(chunk).to
        if self.spec.feeds and not kept:
            to += tuple(feed.joiner for feed in self.spec.feeds if feed.has(chunk))
        if to:
            effects.append(SendDown(chunk, to))
        if chunk == 0 and self.spec.is_held:
            effects.append(Decided())
        effects += self._move_window()
        if self._holds_word and self._missing <= 1 + self._few:
            return effects + self.release_word()  # the round may be complete with it
        if self.complete:
            effects.append(Complete())
        return effects

    def _move_window(self) -> list[RoundEffect]:
        """Send the partial sums that have waited for earlier chunks to be reduced here.

        Without a window a node could send so far ahead on one way that its parent, which still
        waits for chunks of another one, has to stop reading the connection on which both come; two
        ways that cross would then wait for each other for ever. With it, what a node may have sent
        before its parent can use it is less than its parent takes (`limits.MAX_EARLY_BYTES`).

        Where chunks have holders, no chunk is reduced before the control word is, which comes last.
        There the window begins at the first chunk that this node has not sent on yet. That does,
        too: as long as a chunk is not summed at its owner, each node on its way that has not sent
        it on is no more than a window ahead of it, so its parent reads on.
        """
        found: list[RoundEffect] = []
        while self._first < self.spec.chunks and self._is_past(self._first):
            self._first += 1
            # What is sent now may be the next one that the window begins behind.
            if (now := self._summed.pop(self._first + self.spec.window - 1, None)) is not None:
                found.append(now)
        return found

    def _is_past(self, chunk: int) -> bool:
        """Whether the window need not begin at `chunk` any more."""
        if self._reduced[chunk] or not self.spec.is_held:
            return bool(self._reduced[chunk])
        return self._sent_up(chunk)


def spread_plan(
    node: bytes, parents: dict[bytes, bytes], have: dict[bytes, bytes], chunks: int
) -> tuple[Spread, ...]:
    """Return what `node` sends and receives of the chunks that some member holds.

    `parents` is the tree (the root's parent is b""), and `have` each member's bitmap of reduced
    chunks. Each node gets a chunk along the tree from its nearest holder; of several that are
    equally near, from the one that comes first. All members compute the same, so no message is
    needed. Chunks with equal holders are planned together.
    """
    near: dict[bytes, list[bytes]] = {n: [] for n in parents}
    for child, parent in parents.items():
        if parent:
            near[child].append(parent)
            near[parent].append(child)
    bits = {n: int.from_bytes(have.get(n, b""), "little") for n in parents}
    groups: dict[tuple[bytes, ...], list[int]] = {}
    for chunk in range(chunks):
        holders = tuple(n for n in sorted(parents) if bits[n] >> chunk & 1)
        if holders:
            groups.setdefault(holders, []).append(chunk)
    plan: list[Spread] = []
    for holders, members in groups.items():
        # A breadth-first search from all holders at once: node -> the neighbour that sends to it.
        source: dict[bytes, bytes | None] = dict.fromkeys(holders)
        queue = list(holders)
        for at in queue:
            for other in sorted(near[at]):
                if other not in source:
                    source[other] = at
                    queue.append(other)
        to = tuple(n for n in sorted(parents) if source.get(n) == node)
        plan.append(Spread(tuple(members), source[node], to))
    return tuple(plan)
