"""Devices whose updates round differently are told what differs, in words and within bounds."""

from __future__ import annotations

import pytest

from edgeagent.transport.job import Job, first_difference, job_fingerprint
from edgeagent.transport.rounding import numeric_class, unlike

LAPTOP = {
    "torch": "torch 2.13.0",
    "processor": "x86-64 with AVX-512 (AMD EPYC)",
    "device": "on the processor",
    "rounding": "square roots aaaa, divisions bbbb",
}
JETSON = {
    **LAPTOP,
    "processor": "aarch64 (Cortex-A78AE)",
    "device": "on Orin with CUDA 12.6",
    "rounding": "square roots cccc, divisions bbbb",
}


def job(update: str, about: dict[str, str]) -> Job:
    fields = tuple((f"about {name}", text) for name, text in about.items())
    return (*fields, ("optimizer", "SGD"), ("update", update))


def test_another_processor_is_no_difference_where_updates_round_alike() -> None:
    assert job_fingerprint(job("1", LAPTOP)) == job_fingerprint(job("1", JETSON))
    assert job_fingerprint(job("1", LAPTOP)) != job_fingerprint(job("2", LAPTOP))
    assert first_difference(job("1", LAPTOP), job("1", JETSON)) is None
    assert first_difference(job("1", LAPTOP), job("2", JETSON)) == ("update", "1", "2")


def test_a_numeric_class_is_that_of_the_updates() -> None:
    one, other = job("1" * 64, LAPTOP), job("2" * 64, LAPTOP)
    assert numeric_class(one, "x86_64 Linux") == "1" * 16
    assert numeric_class(one, "arm64 Darwin") == "1" * 16, "whatever the machine is"
    assert numeric_class(other, "x86_64 Linux") != numeric_class(one, "x86_64 Linux")
    # Where the optimizer is divided the field is not compared, and says the same.
    divided = (*one[:-1], ("about update", "1" * 64))
    assert numeric_class(divided, "x86_64 Linux") == numeric_class(one, "x86_64 Linux")
    assert first_difference(divided, (*one[:-1], ("about update", "2" * 64))) is None
    assert numeric_class((), "arm64 Darwin") == "arm64 Darwin"


@pytest.mark.parametrize(
    ("theirs", "text"),
    [
        (
            JETSON,
            "its updates round differently (square roots); there: aarch64 (Cortex-A78AE), on Orin"
            " with CUDA 12.6; here: x86-64 with AVX-512 (AMD EPYC), on the processor",
        ),
        (
            {**LAPTOP, "torch": "torch 2.12.1"},
            "its updates round differently; there: torch 2.12.1; here: torch 2.13.0",
        ),
        (
            LAPTOP,
            "the same updates give other bits there, though both are torch 2.13.0, x86-64 with"
            " AVX-512 (AMD EPYC), on the processor: is the optimizer's own code the same?",
        ),
        ({}, ""),
    ],
)
def test_what_differs_is_said_in_words(theirs: dict[str, str], text: str) -> None:
    assert unlike(job("1", LAPTOP), job("2", theirs)) == text


def test_what_a_peer_says_is_cleaned_and_cut() -> None:
    wild = {"torch": "\x1b[2J" + "x" * 4000, "rounding": "square roots, \x1b 1, a" * 100}
    text = unlike(job("1", LAPTOP), job("2", wild))
    assert text.isprintable()
    assert len(text) < 500
    assert "there: ?[2Jxxx" in text
    assert "unknown" in text
