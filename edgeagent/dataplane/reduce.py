"""Runs a round's effects on real memory: adds, sends and receives chunks.

Law: P (the contribution) is only read. Reduced chunks are received straight into R; partial sums of
children into scratch that is bounded per neighbour: beyond the bound the neighbour's bulk
connection is not read until the scratch is used up. Chunks of a round that has not begun here are
kept, those of a round that is over are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from protocols import limits
from protocols.bulk import BulkHeader, BulkKind
from protocols.control_word import ControlWord, decode_word, merge
from protocols.errors import RemoteProtocolError
from protocols.round import Add, Complete, Finish, Round, RoundEffect, RoundSpec, SendDown, SendUp

if TYPE_CHECKING:
    from collections.abc import Callable

Vector = np.ndarray[Any, np.dtype[Any]]
Key = tuple[bytes, int, int, int, int, int]
Early = tuple[Key, BulkKind, int]
_PAST_LINEAGES = 16


class Wire(Protocol):
    """What the reducer needs of the links."""

    def send_bulk(self, to: bytes, header: BulkHeader, payload: memoryview) -> None:
        """Queue a frame for neighbour `to`; dropped if there is no such link."""

    def hold_bulk(self, peer: bytes, hold: bool) -> None:
        """Stop reading bulk frames from `peer`, or read again."""

    def discard_bulk(self, peer: bytes) -> None:
        """Write no more into the buffer of the payload that `peer` is sending."""

    def accuse(self, peer: bytes, reason: str) -> None:
        """End the link to `peer`: what came from it cannot be part of the round."""


@dataclass(slots=True)
class _Frame:
    """A payload on its way in, or waiting for its round."""

    header: BulkHeader
    buffer: memoryview
    size: int  # bytes of scratch it is charged for; 0 if it goes straight into R


@dataclass(slots=True)
class _Peer:
    """What one neighbour has sent that is not used up."""

    arriving: _Frame | None = None
    early: dict[Early, _Frame] = field(default_factory=dict)
    sums: dict[int, memoryview] = field(default_factory=dict)  # chunk -> partial sum
    scratch: int = 0
    held: bool = False


@dataclass(slots=True)
class _Result:
    """What belongs to an iteration's R beside the vector."""

    square_sums: list[float] = field(default_factory=list)
    word: ControlWord | None = None


def key_of(header: BulkHeader) -> Key:
    """Return the round that a chunk belongs to."""
    tags = (header.lineage, header.view, header.policy, header.iteration, header.attempt)
    return (*tags, header.term)


class Reducer:
    """The rounds of one node, one at a time."""

    def __init__(
        self,
        contribution: Vector,
        reduced: tuple[Vector, Vector],
        chunk_elements: int,
        wire: Wire,
        done: Callable[[RoundSpec, ControlWord], None],
    ) -> None:
        """`contribution` and both `reduced`: float32 or float64, one dimension, equal lengths.
        `done` is called once a round is complete here."""
        self._contribution = contribution
        self._reduced = reduced
        self._chunk_elements = chunk_elements
        self._wire = wire
        self._done = done
        self._round: Round | None = None
        self._peers: dict[bytes, _Peer] = {}
        self._own_word: ControlWord | None = None
        self._results: dict[int, _Result] = {}  # of the last two iterations
        self._frozen = False
        self._past: list[bytes] = []  # lineages that this node has left

    @property
    def square_sums(self) -> list[float]:
        """Sums of squares of the running round's reduced data chunks."""
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
        """Forget everything: another cluster's rounds begin. What is on its way in is dropped."""
        peers, self._peers = self._peers, {}
        self._round = self._own_word = None
        self._results, self._frozen, self._past = {}, False, []
        for name, peer in peers.items():
            if peer.held:
                self._wire.hold_bulk(name, False)

    def start(self, spec: RoundSpec) -> None:
        """Run `spec` from now on; the round before is complete or given up."""
        if self._round is not None and self._round.spec.lineage != spec.lineage:
            self._past = [*self._past, self._round.spec.lineage][-_PAST_LINEAGES:]
        self.freeze()
        self._frozen = False
        self._round = Round(spec)
        self._own_word = None
        kept = self._results.get(spec.iteration, _Result())
        result = _Result([0.0] * (spec.chunks - 1))
        for spread in spec.spread:
            for chunk in spread.chunks if spread.source is None else ():
                if chunk:
                    result.square_sums[chunk - 1] = kept.square_sums[chunk - 1]
                else:
                    result.word = kept.word
        self._results = {i: r for i, r in self._results.items() if i == spec.iteration - 1}
        self._results[spec.iteration] = result
        self._drive(self._round, self._round.begin())
        for name, peer in list(self._peers.items()):
            self._free(peer, sum(len(b) for b in peer.sums.values()))
            peer.sums.clear()
            early, peer.early = peer.early, {}
            for frame in early.values():
                try:
                    self._take(name, peer, frame)
                except RemoteProtocolError:  # nobody here to blame; the frame fits no round
                    self._free(peer, frame.size)
            self._relieve(name, peer)

    def freeze(self) -> bytes:
        """Accept, send and complete nothing more; return the bitmap of the reduced chunks.

        Sums in which somebody handed micro-batches back are not worth keeping, and only the control
        word tells."""
        self._frozen = True
        for name, peer in self._peers.items():
            if peer.arriving is not None and peer.arriving.size == 0:
                self._wire.discard_bulk(name)
                peer.arriving = None
        now, word = self._round, self._word
        if now is None:
            return b""
        have = now.have
        whole = word is not None and not any(word.refusing) and bool(have) and have[0] & 1
        return have if whole else now.kept

    def serve(self, spec: RoundSpec) -> None:
        """Send chunks of a round that is over here to those who lack them."""
        for spread in spec.spread:
            for chunk in spread.chunks if spread.to else ():
                self._send_down(spec, chunk, spread.to)

    def contribute(self, word: ControlWord) -> None:
        """P and `word` are this node's part."""
        if self._round is not None:
            self._own_word = word
            self._drive(self._round, self._round.contribute())

    def forget(self, peer: bytes) -> None:
        """The link to `peer` is gone. Partial sums that came whole stay: the round counts them."""
        gone = self._peers.pop(peer, None)
        if gone is not None and gone.sums:
            size = sum(len(b) for b in gone.sums.values())
            self._peers[peer] = _Peer(sums=gone.sums, scratch=size)

    # --- frames -------------------------------------------------------------------------------

    def arriving(self, sender: bytes, header: BulkHeader) -> memoryview | None:
        """Say where a chunk goes; None if it belongs to a round that is over."""
        peer = self._peers.setdefault(sender, _Peer())
        now = self._round
        current = now is not None and key_of(header) == now.spec.key
        if current and self._frozen:
            return None
        if not current and not self._is_newer(header):
            return None
        self._check_length(header)
        scratch = size = header.length
        if current and header.kind is BulkKind.DOWN and now is not None:
            now.check_down(sender, header.index)
            scratch = size = 0 if header.index else header.length
        elif current and now is not None:
            now.check_up(sender, header.index)
        elif (key_of(header), header.kind, header.index) in peer.early:
            raise RemoteProtocolError("an early chunk came twice")
        else:
            size = scratch + limits.EARLY_FRAME_BYTES
        buffer = self._chunk(header.index) if not scratch else memoryview(bytearray(scratch))
        peer.arriving = _Frame(header, buffer, size)
        peer.scratch += size
        if peer.scratch > limits.MAX_EARLY_BYTES and not peer.held:
            peer.held = True
            self._wire.hold_bulk(sender, True)
        return buffer

    def received(self, sender: bytes, header: BulkHeader) -> None:
        """The payload lies where `arriving` said."""
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
                decode_word(frame.buffer)  # refused while it is known who sent it
            peer.sums[header.index] = frame.buffer
            self._free(peer, frame.size - len(frame.buffer))
            self._drive(now, now.up(sender, header.index))
            return
        now.check_down(sender, header.index)
        if header.index == 0:
            self._word = decode_word(frame.buffer)
        else:
            if frame.size:  # its header came before its round
                self._chunk(header.index)[:] = frame.buffer
            self.square_sums[header.index - 1] = header.square_sum
        self._free(peer, frame.size)
        self._drive(now, now.down(sender, header.index))

    def _is_newer(self, header: BulkHeader) -> bool:
        if self._round is None:
            return True
        spec = self._round.spec
        if header.lineage != spec.lineage:  # a lineage that a fence leads into, or one we left
            return header.lineage not in self._past
        return (header.iteration, header.attempt) > (spec.iteration, spec.attempt)

    def _check_length(self, header: BulkHeader) -> None:
        if header.index >= self.chunks:
            raise RemoteProtocolError("no such chunk")
        expected = len(self._chunk(header.index)) if header.index else max(1, header.length)
        if header.length != expected:
            raise RemoteProtocolError("a chunk of the wrong length")

    def _free(self, peer: _Peer, size: int) -> None:
        peer.scratch -= size

    def _relieve(self, sender: bytes, peer: _Peer) -> None:
        if peer.held and peer.scratch <= limits.MAX_EARLY_BYTES // 2:
            peer.held = False
            self._wire.hold_bulk(sender, False)

    # --- memory -------------------------------------------------------------------------------

    def _slice(self, vector: Vector, chunk: int) -> Vector:
        start = (chunk - 1) * self._chunk_elements
        return vector[start : start + self._chunk_elements]

    def _chunk(self, chunk: int) -> memoryview:
        """Return the bytes of a data chunk of R of the running round's iteration."""
        parity = self._round.spec.iteration % 2 if self._round is not None else 0
        return self._slice(self._reduced[parity], chunk).data.cast("B")

    def _drive(self, now: Round, effects: list[RoundEffect]) -> None:
        spec = now.spec
        for effect in effects:
            match effect:
                case Add(chunk, child, first):
                    try:
                        self._add(spec, chunk, child, first)
                    except RemoteProtocolError as error:
                        self._round = None  # without this child's part there is no round
                        self._wire.accuse(child, str(error))
                        return
                case SendUp(chunk, own):
                    if spec.parent is not None:
                        self._send(spec, BulkKind.UP, (spec.parent,), chunk, own, 0.0)
                case Finish(chunk, own):
                    self._finish(spec, chunk, own)
                case SendDown(chunk, to):
                    self._send_down(spec, chunk, to)
                case Complete():
                    if self._word is not None:
                        self._done(spec, self._word)

    def _add(self, spec: RoundSpec, chunk: int, child: bytes, first: bool) -> None:
        peer = self._peers[child]
        part = peer.sums.pop(chunk)
        if chunk == 0:
            base = self._own_word if first else self._word
            if base is not None:
                self._word = merge(base, decode_word(part))
        else:
            result = self._slice(self._reduced[spec.iteration % 2], chunk)
            own = self._slice(self._contribution, chunk)
            np.add(own if first else result, np.frombuffer(part, result.dtype), out=result)
        self._free(peer, len(part))
        self._relieve(child, peer)

    def _finish(self, spec: RoundSpec, chunk: int, own: bool) -> None:
        if chunk == 0:
            self._word = self._own_word if own else self._word
            return
        result = self._slice(self._reduced[spec.iteration % 2], chunk)
        if own:
            result[:] = self._slice(self._contribution, chunk)
        wide = result.astype(np.float64, copy=False)
        self.square_sums[chunk - 1] = float(np.dot(wide, wide))

    def _send_down(self, spec: RoundSpec, chunk: int, to: tuple[bytes, ...]) -> None:
        squares = self._results[spec.iteration].square_sums[chunk - 1] if chunk else 0.0
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
        """Send a chunk. Partial sums go as they lie in memory: nobody writes there before the
        parent has them. Reduced chunks are copied once: R is used again before a subscriber, or a
        child that leaves, must have taken them."""
        if chunk == 0:
            word = self._own_word if own else self._results[spec.iteration].word
            payload = memoryview(word.encode() if word is not None else b"")
        elif own:
            payload = self._slice(self._contribution, chunk).data.cast("B")
        elif kind is BulkKind.UP:
            payload = self._slice(self._reduced[spec.iteration % 2], chunk).data.cast("B")
        else:
            reduced = self._slice(self._reduced[spec.iteration % 2], chunk)
            payload = memoryview(bytes(reduced.data.cast("B")))
        header = BulkHeader(
            kind,
            spec.lineage,
            spec.view,
            spec.policy,
            spec.iteration,
            spec.attempt,
            chunk,
            len(payload),
            squares,
            term=spec.term,
        )
        for neighbour in to:
            self._wire.send_bulk(neighbour, header, payload)
