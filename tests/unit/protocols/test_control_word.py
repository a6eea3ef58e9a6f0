"""Control words: how parts are merged, compared with sets of numbers."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import reduce

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols import limits
from protocols.errors import RemoteProtocolError
from protocols.rounds.control_word import (
    EMPTY,
    ControlWord,
    bits,
    decode_word,
    merge,
    numbers,
    pack_squares,
    read_squares,
)

SOME = st.sets(st.integers(0, 90), max_size=6)


@st.composite
def word_lists(draw: st.DrawFn) -> list[ControlWord]:
    """Words of one round: no micro-batch is in two of them."""
    owners = draw(st.lists(st.integers(0, 4), max_size=40))
    words = []
    for k in range(draw(st.integers(1, 5))):
        mine = tuple(m for m, owner in enumerate(owners) if owner == k)
        words.append(
            ControlWord(
                draw(st.integers(0, 3)),
                draw(st.integers(0, 3)),
                bits(mine),
                bits((k,) if draw(st.booleans()) else ()),
                float(draw(st.integers(-99, 99))),
                bits(tuple(draw(SOME))),
                draw(st.sampled_from([b"", b"one", b"one", b"two"])),
                draw(st.sampled_from([True, True, True, False])),
                bits((k,) if draw(st.booleans()) else ()),
                *draw(st.sampled_from([(b"", b""), (b"lr", b""), (b"lr", b"mu"), (b"a", b"")])),
                stop=draw(st.booleans()),
            )
        )
    return words


WORDS = word_lists().map(lambda words: words[0])


def word_fields(**changes: object) -> list[object]:
    """Return the fields of the empty word as they are sent, with `changes`."""
    plain = {f.name: getattr(EMPTY, f.name) for f in fields(EMPTY)}
    return list({**plain, **changes}.values())


def members_of(bitmap: bytes) -> set[int]:
    """Return the numbers in a bitmap, bit by bit."""
    return {8 * k + bit for k, byte in enumerate(bitmap) for bit in range(8) if byte >> bit & 1}


@given(word_lists())
def test_a_reduced_word_holds_what_its_parts_hold(words: list[ControlWord]) -> None:
    whole = reduce(merge, words)
    assert (whole.term, whole.policy) == max((w.term, w.policy) for w in words)
    for name in ("done", "refusing", "gradient_bitmap", "late"):
        expected = set().union(*(members_of(getattr(w, name)) for w in words))
        assert members_of(getattr(whole, name)) == expected
        assert len(getattr(whole, name)) == max(len(getattr(w, name)) for w in words)
    assert whole.weight == sum(len(members_of(w.done)) for w in words)
    assert whole.loss_sum == sum(w.loss_sum for w in words)  # integers: exact in any order
    buffers = {w.integer_buffers for w in words if w.integer_buffers}
    assert whole.agree == (all(w.agree for w in words) and len(buffers) < 2)
    assert whole.integer_buffers in (buffers or {b""})
    wanted = sorted({s for w in words for s in (w.settings, w.other_settings)} - {b""})
    assert whole.settings == (wanted[0] if wanted else b"")
    assert whole.other_settings == (wanted[-1] if len(wanted) > 1 else b"")
    assert whole.stop == any(w.stop for w in words)


@given(word_lists(), st.data())
def test_order_and_grouping_do_not_matter(words: list[ControlWord], data: st.DataObject) -> None:
    whole = reduce(merge, words)
    shuffled = data.draw(st.permutations(words))
    assert reduce(merge, shuffled) == whole
    cut = data.draw(st.integers(0, len(words)))
    left, right = reduce(merge, words[:cut], EMPTY), reduce(merge, words[cut:], EMPTY)
    assert merge(left, right) == whole


@given(WORDS)
def test_the_empty_word_is_neutral(word: ControlWord) -> None:
    assert merge(EMPTY, word) == merge(word, EMPTY) == word
    assert EMPTY.weight == 0


@given(WORDS.filter(lambda word: word.weight > 0))
def test_no_micro_batch_counts_twice(word: ControlWord) -> None:
    with pytest.raises(RemoteProtocolError, match="twice"):
        merge(word, replace(EMPTY, done=word.done + b"\0"))


@given(WORDS)
def test_words_read_back(word: ControlWord) -> None:
    for form in (word.encode(), bytearray(word.encode()), memoryview(word.encode())):
        assert decode_word(form) == word


def test_a_loss_that_is_no_number_travels() -> None:
    word = decode_word(replace(EMPTY, loss_sum=float("nan")).encode())
    assert word.loss_sum != word.loss_sum
    assert decode_word(replace(EMPTY, loss_sum=-float("inf")).encode()).loss_sum == -float("inf")


def test_every_change_of_a_word_is_read_or_refused() -> None:
    data = ControlWord(1, 2, b"\x0f", b"\x01", 0.5, b"\x03", b"ab", True).encode()
    refused = 0
    for place in range(len(data)):
        for value in (0, data[place] ^ 1, 0x7F, 0x92, 0xC0, 0xC1, 0xDD, 0xDF, 0xFF):
            changed = data[:place] + bytes([value]) + data[place + 1 :]
            try:
                word = decode_word(changed)
            except RemoteProtocolError:
                refused += 1
            else:
                assert repr(decode_word(word.encode())) == repr(word)  # the loss may be NaN
    assert refused > len(data)
    for length in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            decode_word(data[:length])


@given(st.binary(max_size=60))
def test_random_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        decode_word(data)
    except RemoteProtocolError:
        return
    assert len(data) > 8


@pytest.mark.parametrize(
    "data",
    [
        bytes(limits.MAX_CONTROL_WORD_BYTES + 1),
        msgpack.packb([0] * 17),
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 5000,
        msgpack.packb(word_fields(done=bytes(limits.MAX_MICRO_BATCHES // 8 + 1))),
        msgpack.packb(word_fields(settings=bytes(limits.MAX_SETTINGS_BYTES + 1))),
    ],
)
def test_words_over_a_limit_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_word(data)


@pytest.mark.parametrize("settings", [(b"", b"a"), (b"b", b"a"), (b"a", b"a")])
def test_settings_that_no_merge_can_leave_are_refused(settings: tuple[bytes, bytes]) -> None:
    data = msgpack.packb(word_fields(settings=settings[0], other_settings=settings[1]))
    with pytest.raises(RemoteProtocolError, match="in order"):
        decode_word(data)


@given(SOME)
def test_bitmaps_hold_what_was_put_in_and_no_byte_more(some: set[int]) -> None:
    bitmap = bits(tuple(some) * 2)
    assert members_of(bitmap) == some
    assert len(bitmap) == (max(some) // 8 + 1 if some else 0)


@given(SOME, st.integers(0, 100))
def test_numbers_lists_what_is_set_or_what_is_not(some: set[int], below: int) -> None:
    bitmap = bits(tuple(some))
    assert numbers(bitmap, below) == tuple(n for n in range(below) if n in some)
    assert numbers(bitmap, below, unset=True) == tuple(n for n in range(below) if n not in some)


def test_sums_of_squares_are_put_together() -> None:
    one = replace(EMPTY, squares=pack_squares([0.1, 0.0, 0.0]))
    two = replace(EMPTY, squares=pack_squares([0.0, 0.0, 0.3]))
    assert read_squares(merge(one, two).squares) == (0.1, 0.0, 0.3)
    assert merge(one, EMPTY).squares == merge(EMPTY, one).squares == one.squares
    with pytest.raises(RemoteProtocolError, match="another number of chunks"):
        merge(one, replace(EMPTY, squares=pack_squares([1.0])))
    with pytest.raises(ValueError, match="torn"):
        replace(EMPTY, squares=b"1234567")
