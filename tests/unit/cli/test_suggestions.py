"""Mistyped commands, jobs and names lead to the word that was meant, and to no wild guesses."""

from __future__ import annotations

import sys

import pytest

from edgeagent.cli import main
from edgeagent.commands.completion import NO_SHTAB
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


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_shells_complete_commands_and_options(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in ("invite", "global-batch", "rotate"))


def test_without_shtab_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert capsys.readouterr().err == f"edgeagent: {NO_SHTAB}\n"
