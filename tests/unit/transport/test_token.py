"""Tokens: their text form, typos, and the keys derived from them."""

from __future__ import annotations

import hashlib
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.errors import UsageError
from edgeagent.transport.job import (
    JOB_NAME,
    Difference,
    Script,
    batch_there,
    difference_text,
    first_difference,
    job_fingerprint,
    names_text,
    script_difference,
    script_digests,
)
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


# The number of chunks may follow from the batch, the kind of a module does not.
NET = (("global batch", "128"), ("gradient sums", "1"), ("module 1", "Tanh()"))
SAME_NET = (("global batch", "256"), ("gradient sums", "2"), ("module 1", "Tanh()"))
OTHER_NET = (("global batch", "256"), ("gradient sums", "2"), ("module 1", "ReLU()"))


@pytest.mark.parametrize(
    ("ours", "theirs", "field", "here", "there"),
    [
        ((("a", "1"), ("b", "2")), (("a", "1"), ("b", "3")), "b", "2", "3"),
        ((("a", "1"), ("b", "2")), (("a", "1"),), "b", "2", "absent"),
        ((("a", "1"),), (("a", "1"), ("b", "2")), "b", "absent", "2"),
        ((("a", "1"), ("b", "2")), (("b", "2"), ("a", "1")), "order of fields", "a", "b"),
        (NET, SAME_NET, "global batch", "128", "256"),
        (NET, OTHER_NET, "module 1", "Tanh()", "ReLU()"),
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


def test_the_names_of_two_jobs_are_told_if_they_differ() -> None:
    digits, text = ((JOB_NAME, "digits"), ("a", "1")), ((JOB_NAME, "text\n"), ("a", "2"))
    assert names_text(digits, text) == "job is text? there and digits here"
    assert names_text(digits, digits) == names_text(digits, text[1:]) == ""
    assert first_difference(digits, ((JOB_NAME, "copy"), ("a", "1"))) is None


ADAM = "amsgrad=False, betas=(0.9, 0.999), eps=1e-08, lr={}, weight_decay=0.01"
HASH, OTHER = "ab" * 32, "cd" * 32


@pytest.mark.parametrize(
    ("field", "ours", "theirs", "text"),
    [
        ("lr", "0.5", "0.1", "lr is 0.1 there and 0.5 here"),
        ("optimizer group 0", ADAM.format(0.01), ADAM.format(0.001), "lr is 0.001 there and"),
        ("optimizer group 1", ADAM.format(1), ADAM.format(2), "optimizer group 1: lr is 2 there"),
        ("optimizer group 0", "lr=1", "lr=1, nesterov=True", "nesterov is True there and absent"),
        ("optimizer group 0", "lr=1, betas=(0.9, 0.99)", "lr=1", "betas is absent there and (0.9"),
        ("module 1", "Tanh()", "ReLU()", "module 1 is ReLU there and Tanh here"),
        ("module 1", "Dropout(p=0.1)", "Dropout(p=0.5)", "module 1: p is 0.5 there and 0.1 here"),
        ("module 1", "Odd(1, 2)", "Odd(1, 3)", "module 1 is Odd(1, 3) there and Odd(1, 2) here"),
        ("module 1", "Tanh()", "absent", "module 1 is absent there and Tanh() here"),
        ("parameter a", "[64, 2] f32 x", "[32, 2] f32 x", "parameter a is [32, 2] there and [64"),
        ("a", "b  c", "b c", "a is b c there and b  c here"),
        ("sample digest", HASH, OTHER, "the data set is another one: the samples that were"),
        ("update", HASH, OTHER, "update differs"),
        ("update", HASH, "absent", "update differs"),
        ("a", HASH, "1", f"a is 1 there and {HASH[:60]} here"),
        ("a", "x" * 500, "\n", "a is ? there and " + "x" * 60 + " here"),
        ("a", "x" * 99 + "y", "x" * 99, "a is ..." + "x" * 16 + " there and ..." + "x" * 16 + "y"),
        ("a" * 500, "1", "2", "a" * 117 + "... is 2 there and 1 here"),
        ("optimizer group 0", "lr=1", "lr=\x1b[31m" + "9" * 4000, "lr is ?[31m9999"),
        ("optimizer group 0", "lr=1", "lr=1" + "," * 4000, "optimizer group 0 is lr=1,,,"),
        ("a", "1", "((((" * 1000, "a is (((("),
    ],
)
def test_a_difference_shows_only_what_differs(
    field: str, ours: str, theirs: str, text: str
) -> None:
    shown = difference_text(Difference(field, ours, theirs))
    assert shown.startswith(text)
    assert len(shown) < 400
    assert shown.isprintable()


@given(st.text(max_size=80), st.text(max_size=80), st.text(max_size=80))
def test_any_two_values_have_a_bounded_printable_difference(a: str, b: str, c: str) -> None:
    for pair in ((a, b), (f"lr={a}", f"lr={b}"), (f"M({a})", f"M({b})"), (a + c, a + b + c)):
        shown = difference_text(Difference(c, *pair))
        assert shown.isprintable()
        assert len(shown) <= 400


def script(*statements: str) -> Script:
    return tuple((hashlib.sha256(s.encode()).digest()[:4], s) for s in statements)


def test_scripts_are_compared_statement_by_statement() -> None:
    ours = script("a", "b", "c")
    assert script_difference(ours, script_digests(ours)) is None
    assert script_difference(ours, script_digests(script("a", "x", "c"))) == "at b"
    assert script_difference(ours, script_digests(script("a", "b"))) == "after b"
    assert script_difference(ours, script_digests(script("a", "b", "c", "d"))) == "after c"
    assert script_difference((), script_digests(ours)) is None
    assert script_difference(ours, b"") is None
    assert script_difference(script("\x1b" * 500), b"1234") == "at " + "?" * 117 + "..."


JOB = (("optimizer", "SGD"), ("global batch", "128"), ("micro batch", "8"), ("about me", "x"))


@pytest.mark.parametrize(
    ("changed", "batch"),
    [
        ({"global batch": "256"}, (256, 8)),
        ({"global batch": "256", "micro batch": "16", "about me": "y"}, (256, 16)),
        ({}, (128, 8)),
        ({"optimizer": "Adam", "global batch": "256"}, None),
        ({"global batch": "250"}, None),
        ({"global batch": "0"}, None),
        ({"micro batch": "0"}, None),
        ({"global batch": "-256"}, None),
        ({"global batch": "2**9"}, None),
        ({"global batch": "1" * 10}, None),
        ({"global batch": "\u0661\u0662\u0668"}, None),
    ],
)
def test_jobs_that_differ_in_the_batch_alone(
    changed: dict[str, str], batch: tuple[int, int] | None
) -> None:
    theirs = tuple((field, changed.get(field, value)) for field, value in JOB)
    assert batch_there(JOB, theirs) == batch
    assert batch_there(JOB, theirs[:1]) is None
    assert batch_there(JOB, (*theirs, ("more", "1"))) is None


def test_with_subnets_jobs_have_no_micro_batch() -> None:
    ours, theirs = (("global batch", "128"), ("seed", "0")), (("global batch", "48"), ("seed", "0"))
    assert batch_there(ours, theirs) == (48, None)
    assert batch_there(ours, (*theirs, ("micro batch", "8"))) == (48, 8)


def test_equal_jobs_have_no_difference() -> None:
    job = (("a", "1"), ("b", "2"))
    assert first_difference(job, job) is None
