"""One reducer between a parent, children and subscribers: hostile and odd frames."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgeagent.dataplane.reduce import Reducer, key_of
from protocols import limits
from protocols.errors import RemoteProtocolError
from protocols.rounds.claims import claim, merge_claims
from protocols.rounds.control_word import EMPTY, ControlWord, bits
from protocols.rounds.round import RoundSpec, Spread
from protocols.rounds.word_check import Part, WordShape
from protocols.wire.bulk import BulkHeader, BulkKind, checksum

from .cluster import CHUNK, CHUNKS, ELEMENTS, LINEAGE, Tag, chunk_header

ABOVE, CHILD, OTHER = b"A" * 32, b"C" * 32, b"O" * 32
UP, DOWN = BulkKind.UP, BulkKind.DOWN
OWN = replace(EMPTY, done=bits((0,)))  # what this node contributes
WORD = ControlWord(1, 1, bits((1,)), b"", 0.5, b"", b"", True).encode()


class Bench:
    """One reducer between a parent, children and subscribers that the test plays."""

    def __init__(self, shape: WordShape | None = None) -> None:
        self.own = np.arange(ELEMENTS, dtype=np.float32)
        self.reduced = (np.zeros(ELEMENTS, np.float32), np.zeros(ELEMENTS, np.float32))
        self.sent: list[tuple[bytes, BulkHeader, bytes]] = []
        self.holds: list[tuple[bytes, bool]] = []
        self.discards: list[bytes] = []
        self.accused: list[tuple[bytes, str]] = []
        self.words: list[ControlWord] = []
        self.reducer = Reducer(self.own, self.reduced, CHUNK, self, self.done, shape)

    def send_bulk(self, to: bytes, header: BulkHeader, payload: memoryview) -> None:
        self.sent.append((to, header, bytes(payload)))

    def hold_bulk(self, peer: bytes, hold: bool) -> None:
        self.holds.append((peer, hold))

    def discard_bulk(self, peer: bytes) -> None:
        self.discards.append(peer)

    def accuse(self, peer: bytes, reason: str) -> None:
        self.accused.append((peer, reason))

    def done(self, spec: RoundSpec, word: ControlWord) -> None:
        self.words.append(word)

    def start(
        self,
        tag: Tag = (3, 0),
        parent: bytes | None = None,
        children: tuple[bytes, ...] = (),
        *,
        contributes: bool = True,
        lineage: bytes = LINEAGE,
        spread: tuple[Spread, ...] = (),
    ) -> None:
        self.reducer.start(
            RoundSpec(lineage, 1, 1, *tag, parent, children, (), CHUNKS, contributes, spread)
        )

    def frame(self, sender: bytes, header: BulkHeader, value: bytes = b"") -> bool:
        """Let a whole frame arrive; return whether it was wanted."""
        value = value or bytes(header.length)
        if header.kind is DOWN:
            header = replace(header, check=checksum(value, header.square_sum))
        target = self.reducer.arriving(sender, header)
        if target is None:
            return False
        target[:] = value
        self.reducer.received(sender, header)
        return True

    def chunk(self, sender: bytes, kind: BulkKind, index: int, tag: Tag = (3, 0)) -> bool:
        """Let a well-formed chunk arrive, all ones; chunk 0 is a control word."""
        if index == 0:
            return self.frame(sender, chunk_header(kind, tag, 0, len(WORD)), WORD)
        header = chunk_header(kind, tag, index)
        return self.frame(sender, header, np.ones(header.length // 4, np.float32).tobytes())


def test_the_number_of_chunks_counts_the_control_word_and_the_short_chunk() -> None:
    assert Bench().reducer.chunks == CHUNKS
    for elements, chunks in ((0, 1), (1, 2), (CHUNK, 2), (CHUNK + 1, 3)):
        vector = np.zeros(elements, np.float32)
        bench = Bench()
        reducer = Reducer(vector, (vector, vector), CHUNK, bench, bench.done)
        assert reducer.chunks == chunks


def test_the_contribution_is_only_read() -> None:
    bench = Bench()
    bench.start(children=(CHILD,))
    before = bench.own.tobytes()
    for index in range(CHUNKS):
        bench.chunk(CHILD, UP, index)
    bench.reducer.contribute(OWN)
    assert bench.own.tobytes() == before
    assert bench.reduced[1].tolist() == (bench.own + 1).tolist()
    assert not bench.reduced[0].any()
    assert len(bench.words) == 1
    assert bench.words[0].weight == 2


def test_nothing_is_contributed_to_no_round() -> None:
    bench = Bench()
    bench.reducer.contribute(OWN)
    assert not bench.sent
    bench.start()
    bench.reducer.contribute(OWN)
    assert bench.words == [OWN]


def test_headers_carry_the_round_the_chunk_and_its_squares() -> None:
    bench = Bench()
    bench.start(children=(CHILD,))
    bench.reducer.contribute(OWN)
    bench.chunk(CHILD, UP, 1)
    [(to, header, payload)] = bench.sent
    total = bench.own[:CHUNK] + 1
    squares = float((total.astype(np.float64) ** 2).sum())
    assert (to, payload) == (CHILD, total.tobytes())
    assert header == replace(
        chunk_header(DOWN, (3, 0), 1), square_sum=squares, check=checksum(payload, squares)
    )
    assert key_of(header) == (LINEAGE, 1, 1, 3, 0, 0)
    assert bench.reducer.square_sums[0] == header.square_sum


@pytest.mark.parametrize("tag", [(2, 0), (2, 9), (4, 0)])
def test_chunks_of_a_round_that_is_over_are_dropped(tag: Tag) -> None:
    bench = Bench()
    bench.start((4, 1), ABOVE, (CHILD,))
    for kind, sender in ((UP, CHILD), (DOWN, ABOVE)):
        assert not bench.chunk(sender, kind, 1, tag)


def test_a_round_that_starts_between_header_and_payload_gets_the_chunk() -> None:
    bench = Bench()
    bench.start((2, 0), ABOVE, contributes=False)
    for index in range(CHUNKS):
        bench.chunk(ABOVE, DOWN, index, (2, 0))
    ones = np.ones(CHUNK, np.float32).tobytes()
    header = replace(chunk_header(DOWN, (3, 0), 1), check=checksum(ones, 0.0))
    target = bench.reducer.arriving(ABOVE, header)
    bench.start((3, 0), ABOVE, contributes=False)
    assert target is not None
    target[:] = ones
    bench.reducer.received(ABOVE, header)
    for index in (0, 2, 3):
        bench.chunk(ABOVE, DOWN, index)
    assert len(bench.words) == 2
    assert bench.reduced[1].tolist() == [1.0] * ELEMENTS


def test_a_round_that_ends_between_header_and_payload_drops_the_chunk() -> None:
    bench = Bench()
    bench.start((3, 0), children=(CHILD,))
    header = chunk_header(UP, (3, 0), 1)
    bench.reducer.arriving(CHILD, header)
    bench.start((3, 1), children=(CHILD,))
    bench.reducer.received(CHILD, header)
    bench.reducer.contribute(OWN)
    assert not bench.sent
    assert not bench.reduced[1].any()


def test_chunks_wait_for_their_round_over_several_others() -> None:
    bench = Bench()
    for index in range(CHUNKS):
        assert bench.chunk(CHILD, UP, index, (5, 0))  # before any round
    for tag in ((3, 0), (4, 0)):
        bench.start(tag)
        bench.reducer.contribute(OWN)
    bench.start((5, 0), children=(CHILD,))
    bench.reducer.contribute(OWN)
    assert bench.reduced[1].tolist() == (bench.own + 1).tolist()


# --- bounds ---------------------------------------------------------------------------------------


def test_a_neighbour_is_held_beyond_the_bound_and_read_again_below_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_EARLY_BYTES", CHUNK * 4)
    bench = Bench()
    bench.start(children=(CHILD, OTHER))
    bench.chunk(CHILD, UP, 1)
    assert bench.holds == []
    bench.chunk(CHILD, UP, 2)
    bench.chunk(CHILD, UP, 3)
    assert bench.holds == [(CHILD, True)]
    bench.reducer.contribute(OWN)
    assert bench.holds == [(CHILD, True), (CHILD, False)]


def test_a_held_neighbour_is_not_read_again_before_half_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_EARLY_BYTES", CHUNK * 8)
    bench = Bench()
    bench.start(children=(CHILD, OTHER))
    bench.reducer.contribute(OWN)
    for index in (1, 2, 3):
        bench.chunk(OTHER, UP, index)  # it waits for the other child's
    bench.chunk(CHILD, UP, 3)
    assert bench.holds == [(OTHER, True)]
    bench.chunk(CHILD, UP, 1)
    assert bench.holds == [(OTHER, True), (OTHER, False)]


def test_what_was_never_used_is_given_free_with_its_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_EARLY_BYTES", CHUNK * 4)
    bench = Bench()
    bench.start(children=(CHILD,))
    for index in (1, 2):
        bench.chunk(CHILD, UP, index)
    for index in (1, 2):  # of a fence that is under way
        bench.frame(CHILD, replace(chunk_header(UP, (3, 1), index), policy=2))
    assert bench.holds == [(CHILD, True)]
    bench.start((4, 0), children=(CHILD,))
    assert bench.holds == [(CHILD, True), (CHILD, False)]
    bench.reducer.contribute(OWN)
    assert not bench.sent  # nothing of the old rounds was added
    bench.reducer.forget(CHILD)
    bench.start((5, 0), children=(CHILD,))
    bench.chunk(CHILD, UP, 1, (5, 0))
    bench.chunk(CHILD, UP, 2, (5, 0))
    assert bench.holds[2:] == [(CHILD, True)]  # given free once, not twice


def test_a_neighbour_that_is_gone_takes_its_early_chunks_along() -> None:
    bench = Bench()
    bench.start((2, 0))
    for index in range(CHUNKS):
        bench.chunk(CHILD, UP, index)
    bench.reducer.forget(CHILD)
    bench.reducer.forget(OTHER)
    bench.start((3, 0), children=(CHILD,))
    bench.reducer.contribute(OWN)
    assert bench.words == []
    for index in range(CHUNKS):
        bench.chunk(CHILD, UP, index)
    assert len(bench.words) == 1


def test_a_partial_sum_that_came_whole_counts_though_its_sender_is_gone() -> None:
    bench = Bench()
    bench.start(children=(CHILD, OTHER))
    bench.chunk(CHILD, UP, 1)
    half = chunk_header(UP, (3, 0), 2)
    assert bench.reducer.arriving(CHILD, half) is not None
    bench.reducer.forget(CHILD)
    bench.reducer.contribute(OWN)
    assert not bench.sent
    bench.chunk(OTHER, UP, 1)
    bench.chunk(OTHER, UP, 2)
    assert [header.index for _, header, _ in bench.sent] == [1, 1]  # to both children
    assert bench.reduced[1][:CHUNK].tolist() == (bench.own[:CHUNK] + 2).tolist()


# --- rounds that are given up ---------------------------------------------------------------------


def test_a_frozen_round_takes_sends_and_completes_nothing() -> None:
    bench = Bench()
    assert bench.reducer.freeze() == b""  # there is none
    bench.start(parent=ABOVE, children=(CHILD,))
    bench.reducer.contribute(OWN)
    bench.chunk(CHILD, UP, 0)
    bench.chunk(CHILD, UP, 1)
    bench.chunk(ABOVE, DOWN, 0)
    bench.chunk(ABOVE, DOWN, 1)
    sent, reduced = list(bench.sent), bench.reduced[1].tobytes()
    header = chunk_header(UP, (3, 0), 2)
    target = bench.reducer.arriving(CHILD, header)
    assert target is not None
    assert bench.reducer.freeze() == b"\x03"
    bench.reducer.received(CHILD, header)  # it was on its way to scratch
    assert not bench.chunk(CHILD, UP, 3)
    assert not bench.chunk(ABOVE, DOWN, 2)
    assert (bench.sent, bench.discards, bench.words) == (sent, [], [])
    assert bench.reduced[1].tobytes() == reduced
    assert bench.chunk(CHILD, UP, 1, (3, 1))  # the next attempt may have begun elsewhere


def test_a_payload_on_its_way_into_r_is_never_written_once_its_attempt_is_given_up() -> None:
    for give_up in (Bench.start, lambda bench, tag: bench.reducer.freeze()):
        bench = Bench()
        bench.start(parent=ABOVE)
        bench.reducer.contribute(OWN)
        header = chunk_header(DOWN, (3, 0), 2)
        assert bench.reducer.arriving(ABOVE, header) is not None
        give_up(bench, (3, 1))
        assert bench.discards == [ABOVE]
        bench.reducer.received(ABOVE, header)
        assert bench.reducer.freeze() == b""
        assert bench.discards == [ABOVE]  # once


def test_kept_chunks_are_sent_as_they_are_and_the_rest_is_summed_anew() -> None:
    bench = Bench()
    bench.start(children=(CHILD,))
    bench.reducer.contribute(OWN)
    for index in (0, 1):
        bench.chunk(CHILD, UP, index)
    bench.chunk(CHILD, UP, 3)
    assert bench.reducer.freeze() == b"\x0b"
    squares = bench.reducer.square_sums[0]
    bench.sent.clear()
    bench.own += 5
    bench.start((3, 1), children=(CHILD,), spread=(Spread((1,), None, (CHILD,)),))
    [(to, header, payload)] = bench.sent
    assert (to, header.index, header.attempt, header.square_sum) == (CHILD, 1, 1, squares)
    kept = np.arange(CHUNK, dtype=np.float32) + 1
    assert payload == kept.tobytes()
    assert bench.reducer.freeze() == b"\x02"  # kept chunks stay worth keeping
    bench.start((3, 2), children=(CHILD,), spread=(Spread((1,), None, (CHILD,)),))
    bench.reducer.contribute(OWN)
    for index in (0, 2, 3):
        bench.chunk(CHILD, UP, index, (3, 2))
    assert len(bench.words) == 1
    assert bench.reduced[1].tolist() == [*kept, *(bench.own[CHUNK:] + 1)]
    assert bench.reducer.square_sums[0] == squares


def test_a_sum_that_lacks_work_is_not_kept() -> None:
    """Whoever refuses work or is late takes nothing from a sum that has all of it."""
    whole = replace(OWN, done=bits((0, 1, 2, 3)), refusing=bits((3,)), late=bits((2,)))
    lacks = replace(whole, done=bits((0, 1, 3)))
    for word, have in ((whole, b"\x0f"), (lacks, b"")):
        bench = Bench(WordShape(4, 8, {}))
        bench.start()
        bench.reducer.contribute(word)
        assert bench.reducer.freeze() == have


def test_a_result_that_is_whole_here_is_served_to_who_lacks_it() -> None:
    bench = Bench()
    bench.start(children=(CHILD,))
    word = replace(OWN, loss_sum=2.5)
    bench.reducer.contribute(word)
    for index in range(CHUNKS):
        bench.chunk(CHILD, UP, index)
    result = bench.reduced[1].tobytes()
    bench.start((4, 0), children=(CHILD,))
    bench.sent.clear()
    spread = (Spread((0, 1), None, (CHILD, OTHER)), Spread((2,), None, ()), Spread((3,), OTHER, ()))
    bench.reducer.serve(RoundSpec(LINEAGE, 2, 2, 3, 7, None, (), (), CHUNKS, False, spread))
    assert [(to, h.index) for to, h, _ in bench.sent] == [
        (CHILD, 0), (OTHER, 0), (CHILD, 1), (OTHER, 1)
    ]  # fmt: skip
    assert {(h.iteration, h.attempt, h.view) for _, h, _ in bench.sent} == {(3, 7, 2)}
    assert bench.sent[0][2] == bench.words[0].encode()
    assert bench.sent[2][2] == result[: CHUNK * 4]


def test_chunks_of_a_lineage_to_come_wait_and_those_of_one_that_was_left_are_dropped() -> None:
    bench = Bench()
    bench.start((5, 2), children=(CHILD,))
    for index in range(CHUNKS):
        header = replace(chunk_header(UP, (4, 0), index, len(WORD) if not index else -1))
        value = np.ones(header.length // 4, np.float32).tobytes() if index else WORD
        assert bench.frame(CHILD, replace(header, lineage=b"F" * 16), value)
    bench.start((4, 0), children=(CHILD,), lineage=b"F" * 16)
    bench.reducer.contribute(OWN)
    assert len(bench.words) == 1
    assert not bench.chunk(CHILD, UP, 1, (9, 9))  # of the lineage before


# --- frames that no honest node sends -------------------------------------------------------------


@pytest.mark.parametrize("kind", [UP, DOWN])
@pytest.mark.parametrize("tag", [(3, 0), (4, 0)])
@pytest.mark.parametrize(
    ("index", "length"),
    [(CHUNKS, 4), (1 << 31, 4), (1, 0), (1, 60), (1, 68), (3, 64), (0, 0)],
)
def test_chunks_of_another_size_or_number_are_refused(
    kind: BulkKind, tag: Tag, index: int, length: int
) -> None:
    for started in (True, False):
        bench = Bench()
        if started:
            bench.start(parent=ABOVE, children=(CHILD,))
        with pytest.raises(RemoteProtocolError):
            bench.reducer.arriving(CHILD, chunk_header(kind, tag, index, length))


def test_chunks_from_the_wrong_side_are_refused() -> None:
    bench = Bench()
    bench.start(parent=ABOVE, children=(CHILD,))
    bench.reducer.contribute(OWN)
    bench.chunk(CHILD, UP, 1)
    for sender, kind, index in (
        (ABOVE, UP, 1),
        (OTHER, UP, 1),
        (CHILD, DOWN, 1),
        (OTHER, DOWN, 1),
        (ABOVE, DOWN, 2),  # before its parts were sent
        (CHILD, UP, 1),  # twice
    ):
        with pytest.raises(RemoteProtocolError):
            bench.chunk(sender, kind, index)
    bench.chunk(ABOVE, DOWN, 1)
    with pytest.raises(RemoteProtocolError, match="twice"):
        bench.chunk(ABOVE, DOWN, 1)


def test_a_control_word_that_is_none_is_refused_when_it_comes() -> None:
    bench = Bench()
    bench.start(parent=ABOVE, children=(CHILD,))
    with pytest.raises(RemoteProtocolError, match="control word"):
        bench.frame(CHILD, chunk_header(UP, (3, 0), 0, 5), b"\xc1rest")
    bench.reducer.contribute(OWN)
    bench.chunk(CHILD, UP, 0)
    with pytest.raises(RemoteProtocolError, match="control word"):
        bench.frame(ABOVE, chunk_header(DOWN, (3, 0), 0, 5), b"\xc1rest")


def test_a_child_that_spreads_a_reduced_word_speaks_for_all_members() -> None:
    bench = Bench()
    everybody = claim(b"digestXY", 0), claim(b"digestXY", 1)
    word = replace(EMPTY, done=bits((0, 1)), claims=merge_claims(*everybody)).encode()
    part = Part(CHILD, members=0b10, due=None)
    spec = RoundSpec(LINEAGE, 1, 1, 3, 1, None, (CHILD,), (), CHUNKS, contributes=False)
    spread = Spread(tuple(range(CHUNKS)), CHILD, ())
    bench.reducer.start(replace(spec, spread=(spread,), parts=(part,)))
    assert bench.frame(CHILD, chunk_header(DOWN, (3, 1), 0, len(word)), word)
    bench = Bench()
    bench.reducer.start(replace(spec, contributes=True, parts=(part,)))
    with pytest.raises(RemoteProtocolError, match="elsewhere in the tree"):
        bench.frame(CHILD, chunk_header(UP, (3, 1), 0, len(word)), word)


def test_who_was_found_to_have_another_state_claims_none() -> None:
    bench = Bench()
    word = replace(EMPTY, claims=claim(b"digestXY", 1)).encode()
    spec = RoundSpec(LINEAGE, 1, 1, 3, 1, None, (CHILD,), (), CHUNKS, contributes=True)
    bench.reducer.start(replace(spec, silent=0b10))
    with pytest.raises(RemoteProtocolError, match="found to differ"):
        bench.frame(CHILD, chunk_header(UP, (3, 1), 0, len(word)), word)


def test_a_micro_batch_that_two_contribute_is_refused() -> None:
    bench = Bench()
    bench.start(children=(CHILD, OTHER))
    bench.reducer.contribute(OWN)
    bench.chunk(CHILD, UP, 0)
    bench.chunk(OTHER, UP, 0)
    assert bench.accused == [(OTHER, "a micro-batch was contributed twice")]
    assert not bench.sent
    assert not bench.words


def test_who_contributed_twice_is_known_when_it_shows_late() -> None:
    """The error comes up in the node's own contribution, and in no callback of the child's link."""
    bench = Bench()
    bench.start(parent=ABOVE, children=(CHILD,))
    bench.chunk(CHILD, UP, 0)
    bench.reducer.contribute(ControlWord(1, 1, bits((1, 2)), b"", 0.5, b"", b"", True))
    assert bench.accused == [(CHILD, "a micro-batch was contributed twice")]
    assert not bench.sent


def test_an_early_chunk_that_comes_twice_is_refused() -> None:
    bench = Bench()
    assert bench.chunk(CHILD, UP, 1)
    with pytest.raises(RemoteProtocolError, match="twice"):
        bench.chunk(CHILD, UP, 1)
    assert bench.chunk(CHILD, DOWN, 1)
    assert bench.chunk(CHILD, UP, 1, (3, 1))


def test_many_small_early_frames_are_charged_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_EARLY_BYTES", 10 * limits.EARLY_FRAME_BYTES)
    bench = Bench()
    for attempt in range(10):
        bench.frame(CHILD, chunk_header(UP, (9, attempt), 0, 1), b"x")
    assert bench.holds == [(CHILD, True)]
    bench.start((10, 0))
    assert bench.holds == [(CHILD, True), (CHILD, False)]


def test_another_clusters_rounds_begin_at_any_iteration() -> None:
    bench = Bench()
    bench.start((7, 0), children=(CHILD,))
    header = replace(chunk_header(UP, (9, 0), 1), lineage=b"Y" * 16)
    bench.reducer.arriving(CHILD, header)
    bench.reducer.reset()
    bench.reducer.received(CHILD, header)
    other = replace(chunk_header(UP, (3, 0), 1), lineage=b"X" * 16)
    assert bench.frame(CHILD, other)
    bench.start((3, 0), children=(CHILD,), lineage=b"X" * 16)
    bench.reducer.contribute(OWN)
    assert [sent[1].index for sent in bench.sent] == [1]


def test_who_was_held_is_read_again_after_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_EARLY_BYTES", 100)
    bench = Bench()
    bench.chunk(CHILD, UP, 1)
    bench.reducer.reset()
    assert bench.holds == [(CHILD, True), (CHILD, False)]


def test_early_chunks_that_fit_no_round_are_dropped_and_their_senders_accused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_EARLY_BYTES", CHUNK * 8)
    bench = Bench()
    for index in (1, 2, 3):
        bench.chunk(OTHER, UP, index)  # no child of ours
        bench.chunk(CHILD, DOWN, index)  # no parent of ours
    bench.chunk(CHILD, UP, 1)
    bench.frame(CHILD, chunk_header(UP, (3, 0), 0, 5), b"\xc1rest")
    assert bench.holds == [(OTHER, True), (CHILD, True)]
    bench.start(children=(CHILD,))
    assert bench.holds[2:] == [(OTHER, False), (CHILD, False)]
    assert [name for name, _ in bench.accused] == [OTHER, CHILD]
    bench.reducer.contribute(OWN)
    for index in (0, 2, 3):
        bench.chunk(CHILD, UP, index)
    assert len(bench.words) == 1
    assert bench.reduced[1].tolist() == (bench.own + 1).tolist()


def test_a_frame_that_was_not_announced_is_ignored() -> None:
    bench = Bench()
    bench.start(children=(CHILD,))
    bench.reducer.contribute(OWN)
    header = chunk_header(UP, (3, 0), 1)
    target = bench.reducer.arriving(CHILD, header)
    assert target is not None
    bench.reducer.received(CHILD, replace(header))
    assert not bench.sent
