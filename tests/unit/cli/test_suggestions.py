"""Mistyped commands, jobs and names lead to the word that was meant, and to no wild guesses."""

from __future__ import annotations

import pytest

from edgeagent.cli import main
from edgeagent.suggestions import did_you_mean, explained


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("staus", "; did you mean 'status'?"),
        ("STATUS", "; did you mean 'status'?"),
        ("status", ""),
        ("fly", ""),
        ("", ""),
        ("x" * 10_000_000, ""),
    ],
)
def test_the_most_similar_word_is_proposed(word: str, expected: str) -> None:
    assert did_you_mean(word, ["run", "status", "leave"]) == expected
    assert did_you_mean(word, []) == ""


def test_what_argparse_says_of_both_old_and_new_pythons() -> None:
    for choices in ("'run', 'status'", "run, status"):
        said = f"argument COMMAND: invalid choice: 'rn' (choose from {choices})"
        assert explained(said) == f"{said}; did you mean 'run'?"
    assert explained("expected one argument") == "expected one argument"


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (["staus"], "status"),
        (["token", "nwe"], "new"),
        (["run", "digit"], "digits"),
        (["run", "cifar-10"], "cifar10"),
        (["run", "digits", "--log-level", "warn"], "warning"),
    ],
)
def test_mistyped_words(argv: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert f"did you mean '{meant}'?" in error
    assert error.count("\n") == 1
