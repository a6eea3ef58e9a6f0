"""The command line as a whole: help, errors, exit statuses, what it imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import edgeagent
from edgeagent.cli import main
from edgeagent.commands import demo as demo_command
from edgeagent.commands import run as run_command
from edgeagent.errors import EdgeAgentError
from edgeagent.launch import package_environment
from edgeagent.transport.token import new_token, parse_token
from tests.variants import variants

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

HELPS = [
    [],
    ["run"],
    ["demo"],
    ["status"],
    ["leave"],
    ["link"],
    ["link", "add"],
    ["link", "remove"],
    ["expel"],
    ["token"],
    ["token", "new"],
    ["token", "rotate"],
]
ACTIONS = [command for command in HELPS if len(command) == 2]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the user's own agents and settings from the tests."""
    for name in list(os.environ):
        if name.startswith("EDGEAGENT_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("EDGEAGENT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", HELPS, ids=" ".join)
def test_help_fits_a_terminal_and_names_the_exit_statuses(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--help"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "exit status: 0 done or left gracefully, 2 wrong usage" in text
    assert ("examples:" in text) or command in ([], *ACTIONS)


def test_help_names_every_option_of_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    text = capsys.readouterr().out
    options = "cluster token-file token name listen peer no-mdns neighbours steps global-batch"
    options += " micro-batch seed device save no-save resume events data threads"
    options += " on-partition rotate-every"
    for option in options.split():
        assert f"--{option}" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"edgeagent {edgeagent.__version__}\n"


def _one_line(text: str) -> str:
    assert text.startswith("edgeagent: ")
    assert text.count("\n") == 1
    assert text.endswith("\n")
    return text


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], "no command given"),
        (["fly"], "invalid choice: 'fly'"),
        (["--frobnicate"], "--frobnicate"),
        (["run"], "JOB"),
        (["run", "digits", "--steps", "0"], "'0' is not a whole number of 1 or more"),
        (["run", "digits", "--steps", "9" * 20], "'99999999999999999999' is not a whole number"),
        (["run", "digits", "--steps", "9" * 9999], "'" + "9" * 40 + "...' is not a whole number"),
        (["run", "digits", "--seed", "9" * 9999], "...' is not a whole number from 0 to 2^63 - 1"),
        (["run", "digits", "--threads", "100000"], "100000 are too many threads: this device has"),
        (["run", "digits", "--steps", "ten"], "'ten' is not a whole number"),
        (["run", "digits", "--steps"], "expected one argument"),
        (["run", "digits", "--step", "3"], "--step"),
        (["run", "digits", "--seed", "-1"], "'-1'"),
        (["run", "digits", "--seed", str(1 << 63)], "2^63 - 1"),
        (["run", "digits", "--name", ""], "is no name"),
        (["run", "digits", "--name", "a\x1bb"], "is no name"),
        (["run", "digits", "--save", "x", "--no-save"], "not allowed with"),
        (["run", "digits", "--token", "x", "--token-file", "y"], "not allowed with"),
        (["run", "digits"], "export EDGEAGENT_TOKEN=$(edgeagent token new)"),
        (["run", "digits", "--", "x"], "takes no arguments after --"),
        (["run", "mnist"], "unknown job 'mnist': give one of digits, fashion-mnist"),
        (["run", "no/such.py"], "there is no script no/such.py"),
        (["run", "such.py"], "there is no script such.py"),
        (["run", os.curdir], "is a folder"),
        (["status", "--", "x"], "`edgeagent status` takes no arguments after --"),
        (["run", "digits", "--copies", "8"], "'8' is not a whole number from 0 to 7"),
        (["demo", "--steps", "x"], "'x' is not a whole number"),
        (["token"], "edgeagent token new"),
        (["token", "old"], "invalid choice"),
        (["token", "new", "--name", "x"], "--name"),
        (["link"], "edgeagent link add NODE"),
        (["link", "cut"], "invalid choice: 'cut'"),
        (["link", "add"], "NODE"),
        (["link", "remove", ""], "'' names no node"),
        (["link", "remove", "a", "b"], "unrecognized arguments: b"),
        (["expel"], "NODE"),
        (["expel", "a\x1bb"], "names no node"),
        (["expel", "bob", "--", "x"], "takes no arguments after --"),
        (["run", "digits", "--on-partition", "stop"], "invalid choice: 'stop'"),
        (["run", "digits", "--rotate-every", "-1"], "'-1'"),
        (["run", "digits", "--rotate-every", "1.5"], "'1.5' is not a whole number from 0"),
        (["run", "digits", "--rotate-every", str(1 << 31)], "is not a whole number from 0"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    argv: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert expected in _one_line(captured.err)
    assert captured.out == ""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--bogus", "--bogus (see `edgeagent --help`)"),
        ("status --bogus", "--bogus (see `edgeagent status --help`)"),
        ("token new --bogus", "--bogus (see `edgeagent token new --help`)"),
        ("run digits --lr 0.1", "--lr 0.1 (see `edgeagent run --help`)"),
        ("run --lr=0.1 train.py", "--lr=0.1 (see `edgeagent run --help`)"),
        (
            "run train.py --steps 3 --lr 0.1",
            "--lr 0.1 (see `edgeagent run --help`); arguments of the script itself go after"
            " --, as in: edgeagent run train.py --steps 3 -- --lr 0.1",
        ),
        (
            "run train.py data.csv --name al -- --more",
            "data.csv (see `edgeagent run --help`); arguments of the script itself go after"
            " --, as in: edgeagent run train.py --name al -- data.csv --more",
        ),
    ],
)
def test_who_types_an_unknown_option_is_sent_to_the_right_help(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    assert _one_line(capsys.readouterr().err) == f"edgeagent: unrecognized arguments: {said}\n"


def test_token_new_prints_only_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "new"]) == 0
    captured = capsys.readouterr()
    assert parse_token(captured.out.removesuffix("\n"))
    assert captured.err == ""


@pytest.mark.parametrize(
    "command",
    ["status", "leave", "link add bob", "link remove bob", "expel bob", "token rotate"],
)
def test_without_an_agent_commands_that_need_one_fail(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.split()) == 1
    assert "no agent runs on this device" in _one_line(capsys.readouterr().err)


def test_a_token_on_the_command_line_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    token = new_token()
    assert main(["run", "digits", "--token", token, "--device", "abacus"]) == 2
    warning, error = capsys.readouterr().err.splitlines()
    assert warning.startswith("edgeagent: warning: --token is visible")
    assert token not in warning
    assert error == "edgeagent: --device abacus: use cpu, cuda, cuda:N or mps"


def test_a_token_file_that_others_can_read_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "the token"
    file.write_text(new_token())
    for mode, warns in ((0o600, False), (0o400, False), (0o640, True), (0o604, True)):
        file.chmod(mode)
        said = _said_by_run(["--token-file", str(file)], capsys)
        expected = f"edgeagent: warning: others on this device can read the token in {file} and so"
        assert said == ([f"{expected} join the cluster: `chmod 600 '{file}'`"] if warns else [])


def _said_by_run(options: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines on stderr of a `run` whose training is over at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_command, "_run", lambda job, agent, trainer: 0)
        assert main(["run", "digits", *options]) == 0
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("device", variants(["cuda:7"], long=["cuda", "mps"]))
def test_an_unusable_device_is_one_line_before_anything_starts(
    device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEAGENT_TOKEN", new_token())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["run", "digits", "--device", device]) == 2
    line = _one_line(capsys.readouterr().err)
    assert line.startswith(f"edgeagent: --device {device}: cannot be used: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("raised", "status", "line"),
    [
        (EdgeAgentError("no luck"), 1, "edgeagent: no luck\n"),
        (KeyboardInterrupt(), 1, "edgeagent: stopped by Ctrl+C\n"),
    ],
)
def test_expected_failures_are_one_line(
    raised: BaseException,
    status: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def execute(args: argparse.Namespace) -> int:
        raise raised

    monkeypatch.setattr(demo_command, "execute", execute)
    assert main(["demo"]) == status
    assert capsys.readouterr().err == line


def test_ctrl_c_at_the_very_end_changes_nothing() -> None:
    """Handlers run in reverse order, so the signal comes while the interpreter ends."""
    program = (
        "import atexit, os, signal, sys; sys.argv = ['edgeagent', 'token', 'new'];"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT));"
        "from edgeagent.cli import main; sys.exit(main())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=package_environment(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    parse_token(ended.stdout.strip())


def test_the_command_line_imports_nothing_heavy() -> None:
    code = "import sys, edgeagent.cli, edgeagent.command_line; print(' '.join(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        env=package_environment(os.environ),
        check=True,
        timeout=60,
        text=True,
    )
    heavy = {"torch", "aiohttp", "rich", "numpy", "asyncio", "cryptography", "zeroconf"}
    assert heavy & set(result.stdout.split()) == set()


def test_a_foreign_protocols_package_is_an_error(tmp_path: Path) -> None:
    foreign = tmp_path / "protocols"
    foreign.mkdir()
    (foreign / "__init__.py").write_text("raise RuntimeError('imported')\n")
    environment = package_environment(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), environment.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, "-m", "edgeagent", "token", "new"],
        capture_output=True,
        env=environment,
        check=False,
        timeout=60,
        text=True,
    )
    assert result.returncode == 2
    assert "another 'protocols'" in _one_line(result.stderr)


def test_signals_have_their_usual_meaning_after_main() -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert main(["token", "new"]) == 0
    assert signal.getsignal(signal.SIGTERM) is before
