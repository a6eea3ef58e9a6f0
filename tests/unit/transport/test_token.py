"""Tokens: their text form, typos, and the keys derived from them."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.errors import UsageError
from edgeagent.transport.job import first_difference, job_fingerprint
from edgeagent.transport.token import (
    derive_key,
    discovery_tag,
    job_tag,
    new_token,
    parse_token,
    token_text,
)

tokens = st.binary(min_size=16, max_size=16)
jobs = st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=4).map(tuple)


def test_new_tokens_differ_and_read_back() -> None:
    first, second = new_token(), new_token()
    assert first != second
    assert first.startswith("ea1-")
    assert len(parse_token(first)) == 16


@given(tokens, st.sampled_from([str.upper, str.lower, str.title]))
def test_case_blanks_and_dashes_do_not_matter(token: bytes, case: object) -> None:
    text = token_text(token)
    assert callable(case)
    assert parse_token(case(text)) == token
    assert parse_token("  " + text.replace("-", " ") + "\n") == token
    assert parse_token(text.replace("-", "")) == token


@given(tokens, st.integers(4, 42), st.sampled_from(string.ascii_lowercase + "234567"))
def test_every_wrong_letter_is_detected(token: bytes, place: int, letter: str) -> None:
    text = token_text(token)
    if text[place] in ("-", letter):
        return
    with pytest.raises(UsageError, match="typo"):
        parse_token(text[:place] + letter + text[place + 1 :])


@given(tokens, st.integers(4, 41))
def test_two_swapped_letters_are_detected(token: bytes, place: int) -> None:
    letters = list(token_text(token))
    if "-" in letters[place : place + 2] or letters[place] == letters[place + 1]:
        return
    letters[place], letters[place + 1] = letters[place + 1], letters[place]
    with pytest.raises(UsageError, match="typo"):
        parse_token("".join(letters))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        (" - ", "empty"),
        ("hunter2", "no token"),
        ("ea1-abcd", "4 letters"),
        ("ea1-" + "abcd" * 9, "36 letters"),
        ("ea1-" + "ab!d" * 8, "no token contains"),
        ("ea1-" + "ä" * 32, "no token contains"),
    ],
)
def test_what_is_no_token_is_named(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        parse_token(text)
    assert "\n" not in str(caught.value)


@given(tokens)
def test_errors_do_not_show_the_token(token: bytes) -> None:
    text = token_text(token)
    with pytest.raises(UsageError) as caught:
        parse_token(text + "a")
    assert text[4:8] not in str(caught.value)


def test_a_token_has_16_bytes() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        token_text(b"short")


@given(tokens, tokens)
def test_keys_differ_by_token_and_use(first: bytes, second: bytes) -> None:
    assert derive_key(first, "one") != derive_key(first, "two")
    assert (derive_key(first, "one") == derive_key(second, "one")) == (first == second)


@given(tokens, st.text(max_size=10), st.text(max_size=10))
def test_discovery_tags_are_short_hex_and_tell_clusters_apart(
    token: bytes, one: str, two: str
) -> None:
    tag = discovery_tag(token, one)
    assert len(tag) == 16
    assert set(tag) <= set(string.hexdigits)
    assert (tag == discovery_tag(token, two)) == (one == two)


@given(tokens, jobs, jobs)
def test_job_tags_are_equal_for_equal_jobs_only(
    token: bytes,
    ours: tuple[tuple[str, str], ...],
    theirs: tuple[tuple[str, str], ...],
) -> None:
    tags = [job_tag(token, job, b"joiner", b"server") for job in (ours, theirs)]
    assert (tags[0] == tags[1]) == (ours == theirs)
    assert job_tag(token, ours, b"another", b"server") != tags[0]
    assert job_tag(token, ours, b"joiner", b"another") != tags[0]
    assert (job_fingerprint(ours) == job_fingerprint(theirs)) == (ours == theirs)


def test_no_job_has_no_tag() -> None:
    assert job_tag(bytes(16), None, b"", b"") == b""


@pytest.mark.parametrize(
    ("ours", "theirs", "field", "here", "there"),
    [
        ((("a", "1"), ("b", "2")), (("a", "1"), ("b", "3")), "b", "2", "3"),
        ((("a", "1"), ("b", "2")), (("a", "1"),), "b", "2", "absent"),
        ((("a", "1"),), (("a", "1"), ("b", "2")), "b", "absent", "2"),
        ((("a", "1"), ("b", "2")), (("b", "2"), ("a", "1")), "order of fields", "a", "b"),
        ((("a", "x" * 500),), (("a", "\n"),), "a", "x" * 117 + "...", "?"),
    ],
)
def test_the_first_difference_is_named(
    ours: tuple[tuple[str, str], ...],
    theirs: tuple[tuple[str, str], ...],
    field: str,
    here: str,
    there: str,
) -> None:
    assert first_difference(ours, theirs) == (field, here, there)


def test_equal_jobs_have_no_difference() -> None:
    job = (("a", "1"), ("b", "2"))
    assert first_difference(job, job) is None
