"""`edgeagent join`: what it asks, what runs, and what runs only after a yes."""

from __future__ import annotations

import argparse
import io
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from edgeagent.cli import main
from edgeagent.commands import join, run
from edgeagent.errors import EdgeAgentError
from edgeagent.local import token_store
from edgeagent.local.script_store import script_path
from edgeagent.recipe import Recipe
from edgeagent.recipe_search import Told
from edgeagent.transport.token import new_token

TEXT = "print('\x1b[2J')\n"
SCRIPT = Recipe("train.py", (("--steps", "7"),), ("--epochs", "5"), TEXT)
DIGITS = Recipe("digits", (("--seed", "3"),))


class Home:
    """A device with a kept token, whose question is answered with `recipe`."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = str(folder)
        self.recipe: Recipe | None = DIGITS
        self.asked: list[tuple[str, list[str], bool]] = []
        self.ran: list[argparse.Namespace] = []
        patch.setenv("EDGEAGENT_HOME", self.root)
        patch.setattr(join, "_ask", self.ask)
        patch.setattr(run, "execute", self.run)
        token_store.keep_token(self.root, "default", new_token())

    def ask(self, root: str, cluster: str, addresses: Sequence[str], *, mdns: bool) -> Told:
        self.asked.append((cluster, list(addresses), mdns))
        if self.recipe is None:
            raise EdgeAgentError("no agent of it was found")
        return Told(self.recipe, "ann", "192.0.2.1:7430")

    def run(self, args: argparse.Namespace) -> int:
        self.ran.append(args)
        return 5

    @property
    def kept(self) -> Path:
        return Path(script_path(self.root, "default", "train.py"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return Home(tmp_path, monkeypatch)


class Terminal(io.StringIO):
    """What somebody types at a terminal."""

    def isatty(self) -> bool:
        return True


def types(patch: pytest.MonkeyPatch, text: str) -> io.StringIO:
    """Have `text` typed; return what is printed to stderr."""
    shown = Terminal()
    patch.setattr(sys, "stdin", Terminal(text))
    patch.setattr(sys, "stderr", shown)
    return shown


def test_a_built_in_job_runs_as_if_it_had_been_typed(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["join"]) == 5
    (args,) = home.ran
    assert (args.job, args.seed, args.cluster, args.peer) == ("digits", 3, None, [])
    assert home.asked == [("default", [], True)]
    assert "ann trains digits; the same here: edgeagent run digits --seed=3" in (
        capsys.readouterr().err
    )
    assert main(["join", "--cluster", "lab", "--peer", "192.0.2.1:7430"]) == 5
    assert home.asked[1] == ("lab", ["192.0.2.1:7430"], False)
    assert (home.ran[1].cluster, home.ran[1].peer) == ("lab", ["192.0.2.1:7430"])


def test_the_cluster_of_the_environment_is_meant(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGEAGENT_CLUSTER", "lab")
    assert main(["join"]) == 5
    assert main(["join", "--cluster", "default"]) == 5
    assert [cluster for cluster, _, _ in home.asked] == ["lab", "default"]
    assert [args.cluster for args in home.ran] == [None, "default"]
    home.recipe = SCRIPT
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main(["join", "--cluster", "default", "--peer", "h:1"]) == 1
    again = "edgeagent join --cluster default --peer 192.0.2.1:7430"
    assert f"`{again} --show` prints it, `{again} --accept {SCRIPT.digest}` runs it" in (
        capsys.readouterr().err
    )


def test_the_kept_token_is_used_whatever_is_in_the_environment(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EDGEAGENT_TOKEN", raising=False)
    assert main(["join"]) == 5
    monkeypatch.setenv("EDGEAGENT_TOKEN", new_token())
    assert main(["join"]) == 5
    kept = token_store.token_path(home.root, "default")
    assert [args.token_file for args in home.ran] == [None, kept]


def test_a_built_in_job_that_is_not_there_is_named(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.recipe = Recipe("weather")
    assert main(["join"]) == 1
    assert "'weather', which this edgeagent does not have" in capsys.readouterr().err
    assert home.ran == []


def test_a_script_runs_after_a_yes_and_is_not_asked_about_again(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.recipe = SCRIPT
    shown = types(monkeypatch, "\nperhaps\nshow\nyes\n")
    assert main(["join"]) == 5
    assert f"train.py, {len(TEXT)} bytes, digest {SCRIPT.digest}" in shown.getvalue()
    assert "with the arguments --epochs 5" in shown.getvalue()
    (args,) = home.ran
    assert (args.job, args.steps) == (str(home.kept), 7)
    assert args.script_arguments == ["--epochs", "5"]
    assert home.kept.read_text() == TEXT
    assert stat.S_IMODE(home.kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.kept.parent.stat().st_mode) == 0o700
    shown = types(monkeypatch, "")
    assert main(["join"]) == 5
    assert "is the script that was accepted here before" in shown.getvalue()
    for other in (
        Recipe("train.py", SCRIPT.options, ("--epochs", "6"), TEXT),
        Recipe("train.py", SCRIPT.options, SCRIPT.arguments, TEXT + "#"),
    ):
        home.recipe = other
        shown = types(monkeypatch, "no\n")
        assert main(["join"]) == 1
        assert "not run: train.py from ann" in shown.getvalue()
    assert len(home.ran) == 2


def test_a_script_and_its_arguments_are_shown_whole(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"a = 1  #{' ' * 2000}\r\nb = 2\n\tc\n"
    words = ("a" * 900, "two words", "two\nlines")
    home.recipe = Recipe("train.py", arguments=words, script=text)
    shown = types(monkeypatch, "show\nno\n")
    assert main(["join"]) == 1
    assert capsys.readouterr().out == f"a = 1  #{' ' * 2000}\nb = 2\n    c\n\n"
    lines = [line.partition(": ")[2] for line in shown.getvalue().splitlines()]
    at = next(k for k, line in enumerate(lines) if line.startswith("with the arguments "))
    pieces = [lines[at].removeprefix("with the arguments "), *lines[at + 1 : at + 3]]
    assert "".join(p.removeprefix("... ") for p in pieces) == (
        f"{'a' * 900} 'two words' \"'two\\nlines'\""
    )


@pytest.mark.parametrize("answer", ["no\n", "n\n", ""])
def test_without_a_yes_nothing_is_kept_or_run(
    home: Home, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    home.recipe = SCRIPT
    types(monkeypatch, answer)
    assert main(["join"]) == 1
    assert home.ran == []
    assert not home.kept.exists()


def test_without_a_terminal_the_digest_is_the_yes(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.recipe = SCRIPT
    assert main(["join"]) == 1
    assert f"`edgeagent join --accept {SCRIPT.digest}` runs it" in capsys.readouterr().err
    assert main(["join", "--accept", "0" * 64]) == 1
    assert f"with the digest {SCRIPT.digest}, and not what --accept names" in (
        capsys.readouterr().err
    )
    assert main(["join", "--accept", SCRIPT.digest.upper()]) == 5
    assert len(home.ran) == 1


def test_a_script_is_shown_without_what_controls_a_terminal(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.recipe = SCRIPT
    assert main(["join", "--show"]) == 0
    said = capsys.readouterr()
    assert "print('" in said.out
    assert "\x1b" not in said.out + said.err
    assert SCRIPT.digest in said.err
    home.recipe = DIGITS
    assert main(["join", "--show"]) == 0
    assert "built-in job digits, which has no script" in capsys.readouterr().err
    assert home.ran == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--no-run"], "--no-run and --replace go with a code"),
        (["--replace"], "--no-run and --replace go with a code"),
        (["27-4819-2730", "--cluster", "lab"], "leave --cluster away"),
        (["--peer", "a..b"], "is no address"),
    ],
)
def test_wrong_usage_is_said(
    home: Home, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert main(["join", *words]) == 2
    assert says in capsys.readouterr().err
    assert home.asked == []


def test_a_code_may_be_typed_instead(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = types(monkeypatch, "27-4819-2731\n")  # a digit is wrong
    assert main(["join", "-"]) == 2
    assert shown.getvalue().startswith("edgeagent: the code: edgeagent: ")
    assert "code" in shown.getvalue().splitlines()[-1]
    assert home.asked == []


def test_a_code_pairs_and_what_runs_beside_the_inviting_device_is_asked(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(join, "_pair", lambda args, root: "lab")
    assert main(["join", "27-4819-2730", "--peer", "192.0.2.7:40001"]) == 5
    assert home.asked == [("lab", ["192.0.2.7:7430"], False)]
    assert main(["join", "27-4819-2730", "--no-run"]) == 0
    home.recipe = None
    capsys.readouterr()
    assert main(["join", "27-4819-2730"]) == 0
    said = capsys.readouterr()
    assert "nothing to run yet: no agent of it was found" in said.err
    assert said.out == "edgeagent run JOB --cluster lab\n"
    assert main(["join"]) == 1, "without a code there is nothing else to say"
    assert len(home.ran) == 1


def test_without_a_kept_token_it_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGEAGENT_HOME", str(tmp_path))
    assert main(["join", "--cluster", "lab"]) == 2
    assert "no token of cluster 'lab' is kept here: run `edgeagent invite`" in (
        capsys.readouterr().err
    )
