"""Performs a round's effects on real memory: adds, sends and receives chunks.

Chunks are checked where they arrive, because only there it is known which neighbour has sent them;
a neighbour that sends what cannot be part of the round is accused.

P (the contribution) is only read. Reduced chunks are received straight into R. Partial sums of
children are received into scratch memory that is bounded for each neighbour: beyond the bound the
neighbour's bulk connection is not read until scratch is free again. Chunks of a round that has not
begun here yet are kept, chunks of a round that is over are dropped.

A large vector is worked on in slices of time, so that heartbeats never wait for all of it.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeagent.dataplane.reduced_memory import ReducedMemory
from edgeagent.dataplane.wire_format import Formats
from edgeagent.dataplane.words import Words
from protocols import limits
from protocols.errors import RemoteProtocolError
from protocols.rounds.control_word import ControlWord, decode_word, read_squares
from protocols.rounds.divergence import is_final
from protocols.rounds.frame_order import FrameOrder, check_place
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
from protocols.wire.bulk import BulkHeader, BulkKind, checksum

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from edgeagent.dataplane.held_chunks import HeldChunks
    from edgeagent.dataplane.weight_chunks import WeightChunks
    from edgeagent.dataplane.wire import Wire
    from protocols.cluster.policy import Policy
    from protocols.rounds.word_check import WordShape

Vector = np.ndarray[Any, np.dtype[Any]]
Key = tuple[bytes, int, int, int, int, int]
Early = tuple[Key, BulkKind, int]
# Late chunks of this many lineages that the node has left are recognised and dropped; chunks of
# older lineages are no longer on their way.
_PAST_LINEAGES = 16
_UNKNOWN = -1  # a checksum that has not been computed yet
SLICE_SECONDS = 0.01  # work on a round for this long, then let other events be handled


@dataclass(slots=True)
class _Frame:
    """A payload that is being received, or that waits for its round to begin."""

    header: BulkHeader
    buffer: memoryview
    size: int  # bytes of scratch charged for it; 0 if it is received straight into R


@dataclass(frozen=True, slots=True)
class _TakeResult:
    chunk: int  # put its result, which is in P, into R


@dataclass(slots=True)
class _Peer:
    """What one neighbour has sent and this node has not used yet."""

    arriving: _Frame | None = None
    early: dict[Early, _Frame] = field(default_factory=dict)  # of rounds not begun here
    sums: dict[int, memoryview] = field(default_factory=dict)  # chunk -> partial sum
    scratch: int = 0  # bytes that the frames above are charged for
    held: bool = False  # its bulk connection is not read at present
    order: FrameOrder = field(default_factory=FrameOrder)


@dataclass(slots=True)
class _Result:
    """What belongs to the R of an iteration in addition to the vector."""

    square_sums: list[float] = field(default_factory=list)
    # The checksum of each chunk, _UNKNOWN until the chunk is sent: who sends none needs none.
    checks: list[int] = field(default_factory=list)
    word: ControlWord | None = None


def key_of(header: BulkHeader) -> Key:
    """Return the round that a chunk belongs to."""
    tags = (header.lineage, header.view, header.policy, header.iteration, header.attempt)
    return (*tags, header.term)


class Reducer:
    """Performs the rounds of one node, one at a time."""

    def __init__(
        self,
        contribution: Vector,
        reduced: tuple[Vector, Vector],
        chunk_elements: int,
        wire: Wire,
        done: Callable[[RoundSpec, ControlWord], None],
        shape: WordShape | None = None,
        policies: Callable[[], Mapping[tuple[int, int], Policy]] | None = None,
        later: Callable[[Callable[[], None]], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        formats: Formats | None = None,
        held: HeldChunks | None = None,
        decided: Callable[[RoundSpec, ControlWord], None] | None = None,
        weights: WeightChunks | None = None,
    ) -> None:
        """`contribution` and both `reduced`: float32 or float64, one dimension, equal lengths.

        `done` is called when a round is complete here. `shape` is what control words of this job
        look like; without it they are not checked. `policies` returns the policies whose bodies are
        stored here. `later` schedules a call after the events that are already waiting; without it
        all work is done at once. `clock` returns seconds. `formats`: how chunks travel (default: as
        they are). If chunks have holders, `held` has what this node holds, `decided` is called when
        the reduced control word of a round is here, and `weights` are those in the state.
        """
        self._contribution = contribution
        self.memory = ReducedMemory(reduced, chunk_elements, weights)
        self._zeros = np.zeros(min(chunk_elements, len(contribution)), contribution.dtype)
        self._chunk_elements = chunk_elements
        self._wire = wire
        self._done = done
        self._words = Words(shape, policies, held)
        self._later = later
        self._clock = clock
        self._formats = formats or Formats()
        self._held = held
        self._decided = decided
        self._todo: deque[RoundEffect | _TakeResult] = deque()  # of the running round, in order
        self._sliced = False  # whether `later` will call `_work_off` again
        self._over: Key | None = None  # the round that was completed here last
        self._round: Round | None = None
        self._peers: dict[bytes, _Peer] = {}
        self._most_early = limits.MAX_EARLY_BYTES  # of a neighbour; a joiner's feeders share it
        self._results: dict[int, _Result] = {}  # of the last two iterations
        self._frozen = False  # a fence has stopped the round: nothing more is accepted or sent
        self._past: list[bytes] = []  # lineages that this node has left

    @property
    def square_sums(self) -> list[float]:
        """Sum of squares of each reduced data chunk of the running round."""
        return self._result.square_sums

    @property
    def _result(self) -> _Result:
        at = self._round.spec.iteration if self._round is not None else 0
        return self._results.setdefault(at, _Result())

    @property
    def _word(self) -> ControlWord | None:
        return self._result.word

    @_word.setter
    def _word(self, word: ControlWord | None) -> None:
        self._result.word = word

    @property
    def chunks(self) -> int:
        """Number of chunks of a round, chunk 0 included."""
        return 1 - (-len(self._contribution) // self._chunk_elements)

    # --- the round ----------------------------------------------------------------------------

    def reset(self) -> None:
        """Forget everything because another cluster's rounds begin; drop what is being received."""
        peers, self._peers = self._peers, {}
        self._todo.clear()
        self._round = None
        self._words.begin()
        self._results, self._frozen, self._past = {}, False, []
        self.memory.forget()
        for name, peer in peers.items():
            if peer.held:
                self._wire.hold_bulk(name, False)

    def start(self, spec: RoundSpec) -> None:
        """Run `spec` from now on; the round before it is complete or given up."""
        if self._round is not None and self._round.spec.lineage != spec.lineage:
            self._past = [*self._past, self._round.spec.lineage][-_PAST_LINEAGES:]
        self.freeze()
        self._frozen = False
        self._most_early = limits.MAX_EARLY_BYTES // max(1, len(dict.fromkeys(spec.feeders)))
        self.memory.make_room(spec.iteration)
        self._round = Round(spec)
        self._words.begin()
        if self._held is not None and spec.contributes:
            self._held.begin()
        kept = self._results.get(spec.iteration, _Result())
        result = _Result([0.0] * (spec.chunks - 1), [0] * spec.chunks)
        for spread in spec.spread:
            for chunk in spread.chunks if spread.source is None else ():
                result.checks[chunk] = kept.checks[chunk]
                if chunk:
                    result.square_sums[chunk - 1] = kept.square_sums[chunk - 1]
                else:
                    result.word = kept.word
        self._results = {i: r for i, r in self._results.items() if i == spec.iteration - 1}
        self._results[spec.iteration] = result
        self._drive(self._round.begin())
        for name, peer in list(self._peers.items()):
            self._free(peer, sum(len(b) for b in peer.sums.values()))
            peer.sums.clear()
            early, peer.early, wrong = peer.early, {}, ""
            for frame in early.values():
                try:
                    self._take(name, peer, frame)
                except RemoteProtocolError as error:
                    self._free(peer, frame.size)
                    wrong = wrong or str(error)
            self._relieve(name, peer)
            if wrong:
                self._wire.accuse(name, wrong)

    def freeze(self) -> bytes:
        """Accept, send and complete nothing more; return the bitmap of the reduced chunks. Fully
        reduced chunks count only if the reduced control word is final: without it nobody can tell
        whether the sums have each micro-batch exactly once."""
        self._todo = deque(e for e in self._todo if not isinstance(e, SendUp))  # of no use now
        self._work_off(whole=True)  # chunks that the round counts as reduced must lie in memory
        self._frozen = True
        for name, peer in self._peers.items():
            if peer.arriving is not None and peer.arriving.size == 0:
                self._wire.discard_bulk(name)
                peer.arriving = None
        now, word = self._round, self._word
        if now is None:
            return b""
        have = now.have
        # A farewell has no work.
        total = self._words.micro_batches if now.spec.chunks == self.chunks else 0
        whole = word is not None and is_final(word, total) and bool(have) and have[0] & 1
        return have if whole else now.kept

    def serve(self, spec: RoundSpec) -> None:
        """Send chunks of a round that is complete here to the members that lack them."""
        for spread in spec.spread:
            for chunk in spread.chunks if spread.to else ():
                self._send_down(spec, chunk, spread.to)

    def contribute_chunks(self, chunks: tuple[int, ...]) -> None:
        """Take P as it is now in these data chunks; `contribute` follows."""
        if self._round is not None:
            self._drive(self._round.contribute_chunks(chunks))

    def contribute(self, word: ControlWord) -> None:
        """Take P as it is now and `word` as this node's part of the round."""
        if self._round is not None:
            self._words.contribute(word)
            self._drive(self._round.contribute())

    def hold_word(self) -> None:
        """Sum the control word late (`Round.hold_word`)."""
        if self._round is not None:
            self._round.hold_word()

    def name_policy(self, key: tuple[int, int]) -> None:
        """Have the round's control word name the policy with this key, if this node sums the word
        and has not done so yet. The policy comes into force with the next iteration then."""
        self._words.name(key)
        if self._round is not None:
            self._drive(self._round.release_word())

    def publish(self) -> None:
        """Send the results that the trainer has put into P to everyone.

        They are copied before the round is complete or frozen, since that comes later in the same
        queue or works it off, and only after that may the trainer write to P.
        """
        if (now := self._round) is not None:
            taken = [_TakeResult(chunk) for chunk in now.owned]
            self._drive([*taken, *now.publish()])

    def forget(self, peer: bytes) -> None:
        """Drop the state of `peer`, the link to which has ended.

        Partial sums that have arrived whole stay, because the round counts them already.
        """
        gone = self._peers.pop(peer, None)
        if gone is not None and gone.sums:
            size = sum(len(b) for b in gone.sums.values())
            self._peers[peer] = _Peer(sums=gone.sums, scratch=size)

    # --- frames -------------------------------------------------------------------------------

    def arriving(self, sender: bytes, header: BulkHeader) -> memoryview | None:
        """Return the buffer into which a chunk is received, None if its round is over.

        Raises `RemoteProtocolError` if `sender` cannot have such a chunk to send.
        """
        peer = self._peers.setdefault(sender, _Peer())
        now = self._round
        current = now is not None and key_of(header) == now.spec.key
        peer.order.follows(header)
        if current and self._frozen:
            return None
        if now is not None and not current and not self._frozen:
            self._check_place(header, sender, now)
        if not current and not self._is_newer(header):
            return None
        self._check_length(header)
        scratch = size = header.length
        if current and header.kind is BulkKind.DOWN and now is not None:
            now.check_down(sender, header.index)
            straight = header.index and self._formats.of(header.index).in_place
            scratch = size = 0 if straight else header.length
        elif current and header.kind is BulkKind.SUM and now is not None:
            now.check_sum(sender, header.index)
            scratch = size = 0
        elif current and now is not None:
            now.check_up(sender, header.index)
        elif (key_of(header), header.kind, header.index) in peer.early:
            raise RemoteProtocolError("an early chunk came twice")
        else:
            size = scratch + limits.EARLY_FRAME_BYTES
        if now is None or scratch:
            buffer = memoryview(bytearray(scratch))
        else:
            buffer = self.memory.part(now.spec.iteration, header.index).data.cast("B")
        peer.arriving = _Frame(header, buffer, size)
        peer.scratch += size
        if peer.scratch > self._most_early and not peer.held:
            peer.held = True
            self._wire.hold_bulk(sender, True)
        return buffer

    def received(self, sender: bytes, header: BulkHeader) -> None:
        """Use the payload, which now lies in the buffer that `arriving` returned."""
        peer = self._peers.setdefault(sender, _Peer())
        frame, peer.arriving = peer.arriving, None
        if frame is None or frame.header is not header:
            return
        self._take(sender, peer, frame)
        self._relieve(sender, peer)

    def _take(self, sender: bytes, peer: _Peer, frame: _Frame) -> None:
        now, header = self._round, frame.header
        if now is None or key_of(header) != now.spec.key:
            if self._is_newer(header):
                peer.early[key_of(header), header.kind, header.index] = frame
            else:
                self._free(peer, frame.size)
            return
        if self._frozen:
            self._free(peer, frame.size)
            return
        if header.kind is BulkKind.UP:
            now.check_up(sender, header.index)
            if header.index == 0:
                self._read_word(now.spec, sender, frame)
            peer.sums[header.index] = frame.buffer
            self._free(peer, frame.size - len(frame.buffer))
            self._drive(now.up(sender, header.index))
            return
        is_sum = header.kind is BulkKind.SUM
        (now.check_sum if is_sum else now.check_down)(sender, header.index)
        if checksum(frame.buffer, header.square_sum) != header.check:
            raise RemoteProtocolError("a reduced chunk that was altered on its way")
        self._result.checks[header.index] = header.check
        if header.index == 0:
            self._word = self._read_word(now.spec, sender, frame)
        else:
            if frame.size:  # it is rounded, or its header came before the round began
                result = self.memory.part(now.spec.iteration, header.index)
                self._formats.of(header.index).read(frame.buffer, result)
            if not now.spec.is_held:
                self.square_sums[header.index - 1] = header.square_sum
        self._free(peer, frame.size)
        self._drive((now.sum_down if is_sum else now.down)(sender, header.index))

    def _read_word(self, spec: RoundSpec, sender: bytes, frame: _Frame) -> ControlWord:
        is_part, farewell = frame.header.kind is BulkKind.UP, spec.chunks < self.chunks
        return self._words.read(spec, sender, frame.buffer, is_part=is_part, farewell=farewell)

    def _check_place(self, header: BulkHeader, sender: bytes, now: Round) -> None:
        known = self._words.lineages or [header.lineage]
        check_place(header, sender, now, (*known, *self._past), self._over)

    def _is_newer(self, header: BulkHeader) -> bool:
        if self._round is None:
            return True
        spec = self._round.spec
        if header.lineage != spec.lineage:  # one that a fence leads into, unless we have left it
            return header.lineage not in self._past
        if (header.term, header.policy) < (spec.term, spec.policy):
            return False  # sent before a fence, by a member that was an iteration ahead
        return (header.iteration, header.attempt) > (spec.iteration, spec.attempt)

    def _check_length(self, header: BulkHeader) -> None:
        if header.index >= self.chunks:
            raise RemoteProtocolError("no such chunk")
        if header.index == 0:
            fits = header.length > 0
        else:
            like, up = self._slice(self._contribution, header.index), header.kind is BulkKind.UP
            fits = self._formats.of(header.index).takes(header.length, like, up=up)
        if not fits:
            raise RemoteProtocolError("a chunk of the wrong length")

    def _free(self, peer: _Peer, size: int) -> None:
        peer.scratch -= size

    def _relieve(self, sender: bytes, peer: _Peer) -> None:
        if peer.held and peer.scratch <= self._most_early // 2:
            peer.held = False
            self._wire.hold_bulk(sender, False)

    # --- memory -------------------------------------------------------------------------------

    def kept(self, iteration: int) -> tuple[Vector, tuple[float, ...]]:
        """Return R of `iteration`, which is written to no more, and its `squares`."""
        return self.memory.kept(iteration), self.squares(iteration)

    def squares(self, iteration: int) -> tuple[float, ...]:
        """Return the sum of squares of each data chunk of R of `iteration`."""
        return tuple(self._results[iteration].square_sums)

    def _own(self, chunk: int) -> Vector:
        """Return this node's own part of a data chunk; zeros if it computed no micro-batch."""
        own = self._slice(self._contribution, chunk)
        return self._zeros[: len(own)] if self._words.is_idle else own

    def _slice(self, vector: Vector, chunk: int) -> Vector:
        start = (chunk - 1) * self._chunk_elements
        return vector[start : start + self._chunk_elements]

    def _drive(self, effects: Sequence[RoundEffect | _TakeResult]) -> None:
        self._todo.extend(effects)
        if not self._sliced:
            self._work_off()

    def _work_off(self, *, whole: bool = False) -> None:
        """Perform effects of the running round: all of them if `whole`, else for one time slice."""
        self._sliced = False
        until = self._clock() + SLICE_SECONDS
        while self._todo and (now := self._round) is not None:
            self._perform(now.spec, self._todo.popleft())
            if self._todo and self._later is not None and not whole and self._clock() >= until:
                self._sliced = True
                self._later(self._work_off)
                return

    def _perform(self, spec: RoundSpec, effect: RoundEffect | _TakeResult) -> None:
        match effect:
            case _TakeResult(chunk):
                self.memory.part(spec.iteration, chunk)[:] = self._slice(self._contribution, chunk)
                self._result.checks[chunk] = _UNKNOWN  # what is known is that of the sums
            case Add(chunk, child, first):
                try:
                    self._add(spec, chunk, child, first)
                except RemoteProtocolError as error:
                    self._todo.clear()
                    self._round = None  # the round cannot be completed without this child's part
                    self._wire.accuse(child, str(error))
            case SendUp(chunk, own, parent):
                self._send(spec, BulkKind.UP, (parent,), chunk, own, 0.0)
            case Finish(chunk, own):
                self._finish(spec, chunk, own)
            case SendDown(chunk, to):
                self._send_down(spec, chunk, to)
            case SendSum(chunk, to):
                self._send(spec, BulkKind.SUM, to, chunk, False, 0.0)
            case KeepSum(chunk):
                if self._held is not None:
                    self._held.keep(chunk, self.memory.part(spec.iteration, chunk))
            case Decided():
                if self._word is not None and self._decided is not None:
                    if spec.chunks > 1:
                        self._result.square_sums = list(read_squares(self._word.squares))
                    self._decided(spec, self._word)
            case Complete():
                self._over = spec.key
                if self._word is not None:
                    self._done(spec, self._word)

    def _add(self, spec: RoundSpec, chunk: int, child: bytes, first: bool) -> None:
        peer = self._peers[child]
        part = peer.sums.pop(chunk)
        if chunk == 0:
            word = self._words.of_mine(spec) if first else self._word
            if word is not None:
                self._word = self._words.merged(spec, word, decode_word(part))
        else:
            result = self.memory.part(spec.iteration, chunk)
            base = self._own(chunk) if first else result
            self._formats.of(chunk).add(chunk, base, part, result, first=first)
        self._free(peer, len(part))
        self._relieve(child, peer)

    def _finish(self, spec: RoundSpec, chunk: int, own: bool) -> None:
        if chunk == 0:
            self._word = self._words.whole(self._words.of_mine(spec) if own else self._word)
            if self._word is not None:
                self._result.checks[0] = checksum(self._word.encode(), 0.0)
            return
        result = self.memory.part(spec.iteration, chunk)
        if own:
            result[:] = self._own(chunk)
        numbers = self._formats.of(chunk)
        numbers.settle(chunk, result, own=own)
        squares = self.square_sums[chunk - 1] = numbers.square_sum(result)
        if spec.is_held and self._held is not None:
            self._held.summed(chunk, squares)
        self._result.checks[chunk] = _UNKNOWN

    def _send_down(self, spec: RoundSpec, chunk: int, to: tuple[bytes, ...]) -> None:
        result = self._results[spec.iteration]
        # Where chunks have holders, the word tells the squares of sums, as the result has others.
        squares = result.square_sums[chunk - 1] if chunk and not spec.is_held else 0.0
        self._send(spec, BulkKind.DOWN, to, chunk, False, squares)

    def _send(
        self,
        spec: RoundSpec,
        kind: BulkKind,
        to: tuple[bytes, ...],
        chunk: int,
        own: bool,
        squares: float,
    ) -> None:
        """Send a chunk to each neighbour in `to`.

        Partial sums are sent as they lie in memory, because nobody writes there before the parent
        has them. Reduced chunks are copied, as R may be used again before a joiner that follows the
        rounds, or a child that leaves, has received them; so are own chunks that leave before the
        word, as a trainer that falls behind begins its sum anew.
        """
        if chunk == 0:
            word = self._words.of_mine(spec) if own else self._results[spec.iteration].word
            payload = memoryview(word.encode() if word is not None else b"")
        else:
            mine = self._own(chunk) if own else self.memory.part(spec.iteration, chunk)
            numbers, up = self._formats.of(chunk), kind is BulkKind.UP
            payload = numbers.ascending(chunk, mine, own=own) if up else numbers.descending(mine)
            if numbers.in_place and (not up or (own and self._words.own is None)):
                payload = memoryview(bytes(payload))
        check = 0
        if kind is not BulkKind.UP:
            checks = self._results[spec.iteration].checks
            if checks[chunk] == _UNKNOWN:
                checks[chunk] = checksum(payload, squares)
            check = checks[chunk]
        tags = (spec.lineage, spec.view, spec.policy, spec.iteration, spec.attempt)
        about = (chunk, len(payload), squares)
        header = BulkHeader(kind, *tags, *about, term=spec.term, check=check)
        for neighbour in to:
            self._wire.send_bulk(neighbour, header, payload)
