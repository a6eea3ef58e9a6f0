"""What a control word may contain, according to the job and to the members below its sender."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from protocols.errors import RemoteProtocolError
from protocols.rounds.control_word import EMPTY, ControlWord, bits, pack_squares
from protocols.rounds.word_check import (
    Part,
    WordShape,
    check_part,
    check_result,
    check_word,
    policy_parts,
)

from .records import node
from .test_policy import chain_policy


def entry(number: int, content: bytes) -> bytes:
    """One buffer as trainers write it."""
    return struct.pack("<II", number, len(content)) + content


def buffers(*entries: bytes, count: int = -1) -> bytes:
    """All buffers of a word."""
    return struct.pack("<I", len(entries) if count < 0 else count) + b"".join(entries)


SHAPE = WordShape(8, 10, {3: 8, 4: 1})
RIGHT = ControlWord(1, 1, bits((0, 7)), b"", 1.0, b"\xff\x03", b"", True)
PART = Part(node(2), 0b110, 0b1100)
OURS = replace(RIGHT, done=bits((2, 3)))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"integer_buffers": buffers()},
        {"integer_buffers": buffers(entry(3, bytes(8)), entry(4, b"x"))},
        {"loss_sum": float("nan")},
    ],
)
def test_words_of_the_job_pass(change: dict[str, object]) -> None:
    check_word(replace(RIGHT, **change), SHAPE)  # type: ignore[arg-type]  # names of its own fields
    check_word(EMPTY, SHAPE)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"done": bits((8,))}, "none of"),
        ({"gradient_bitmap": b""}, "another model"),
        ({"gradient_bitmap": b"\x01"}, "another model"),
        ({"gradient_bitmap": b"\x01\x00\x00"}, "another model"),
        ({"gradient_bitmap": b"\x00\x04"}, "no parameter"),
        ({"agree": False}, "different values"),
        ({"integer_buffers": b"\x01"}, "torn"),
        ({"integer_buffers": buffers(count=1)}, "torn"),
        ({"integer_buffers": buffers(entry(4, b"x")) + b"y"}, "torn"),
        ({"integer_buffers": buffers(entry(4, b"x"), count=2)}, "torn"),
        ({"integer_buffers": buffers(entry(4, b""))}, "buffers of another model"),
        ({"integer_buffers": buffers(entry(5, b"x"))}, "buffers of another model"),
        ({"integer_buffers": buffers(entry(3, bytes(8))[:-1])}, "torn"),
        ({"integer_buffers": buffers(count=(1 << 32) - 1)}, "torn"),
    ],
)
def test_words_that_would_end_a_trainer_are_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(RemoteProtocolError, match=said):
        check_word(replace(RIGHT, **change), SHAPE)  # type: ignore[arg-type]  # its own fields


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"done": bits((2,)), "refusing": bits((1,))},
        {"done": b"", "late": bits((2,))},
    ],
)
def test_what_the_members_below_can_say_passes(change: dict[str, object]) -> None:
    check_part(replace(OURS, **change), PART)  # type: ignore[arg-type]  # names of its own fields


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"done": bits((1, 2, 3))}, "of other members"),
        ({"done": bits((2,))}, "nobody handed back"),
        ({"refusing": bits((0,))}, "elsewhere"),
        ({"late": bits((3,))}, "elsewhere"),
    ],
)
def test_what_they_cannot_say_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(RemoteProtocolError, match=said):
        check_part(replace(OURS, **change), PART)  # type: ignore[arg-type]  # its own fields


def test_once_work_was_dealt_anew_any_of_it_may_be_anybodys() -> None:
    check_part(replace(OURS, done=bits((0,))), replace(PART, due=None))


def test_a_result_has_our_part_and_lacks_only_what_was_handed_back() -> None:
    whole = replace(RIGHT, done=b"\xff")
    check_result(whole, OURS, 8)
    check_result(replace(OURS, late=b"\x01"), OURS, 8)
    check_result(replace(OURS, refusing=b"\x01"), OURS, 8)
    with pytest.raises(RemoteProtocolError, match="without our"):
        check_result(replace(whole, done=b"\x0b"), OURS, 8)
    with pytest.raises(RemoteProtocolError, match="nobody handed back"):
        check_result(OURS, OURS, 8)


def test_a_result_has_our_wish_to_stop() -> None:
    whole, ours = replace(RIGHT, done=b"\xff"), replace(OURS, stop=True)
    check_result(replace(whole, stop=True), ours, 8)
    check_result(replace(whole, stop=True), OURS, 8)  # the wish of another member
    with pytest.raises(RemoteProtocolError, match="without our wish to stop"):
        check_result(whole, ours, 8)


def test_the_parts_of_a_policy_are_its_subtrees() -> None:
    policy = chain_policy(0, 1, 2, shares=(2, 1, 3))
    nodes, top = policy.view.nodes, policy.tree.root
    dealt = {n: policy.micro_batches(n) for n in policy.view.nodes}
    (middle,) = policy.tree.children(top)
    (low,) = policy.tree.children(middle)
    place = {n: 1 << nodes.index(n) for n in nodes}
    due = {n: int.from_bytes(bits(dealt[n]), "little") for n in nodes}
    (part,) = policy_parts(policy, top, dealt)
    assert part == Part(middle, place[middle] | place[low], due[middle] | due[low])
    (part,) = policy_parts(policy, middle, None)
    assert part == Part(low, place[low], None)
    assert policy_parts(policy, low, dealt) == ()


def test_sums_of_squares_fit_the_job() -> None:
    held = replace(SHAPE, held_chunks=2)
    check_word(replace(RIGHT, squares=pack_squares([1.0, float("inf")])), held)
    check_word(replace(RIGHT, squares=pack_squares([0.0, float("nan")])), held)
    for shape, squares in ((held, [1.0]), (SHAPE, [1.0])):
        with pytest.raises(RemoteProtocolError, match="another number of chunks"):
            check_word(replace(RIGHT, squares=pack_squares(squares)), shape)
    with pytest.raises(RemoteProtocolError, match="impossible sum of squares"):
        check_word(replace(RIGHT, squares=pack_squares([1.0, -1.0])), held)
