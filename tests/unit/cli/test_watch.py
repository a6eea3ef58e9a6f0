"""`edgeagent status --watch`: how it shows, and every way in which it ends."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from edgeagent.cli import main
from edgeagent.commands import status as status_command
from edgeagent.errors import EdgeAgentError
from edgeagent.launch import package_environment
from edgeagent.local import api
from edgeagent.local.state_dir import claim_state_dir
from edgeagent.terminal.watch import Blocks, JsonLines, LiveScreen, screen_for
from tests.unit.cli.samples import sample_status
from tests.unit.cli.test_console import Terminal, without_escapes
from tests.unit.cli.test_local_api import FakeAgent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgeagent.local.status_model import Status

WAIT_S = 60.0
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


class Training(FakeAgent):
    """An agent that is one iteration further each time it is asked, and ends after some."""

    def __init__(self, path: str, answers: int) -> None:
        super().__init__(path)
        self._left = answers
        self._iteration = 0

    def status(self) -> Status:
        """Return the next status; after the last one nobody is let in any more."""
        self._iteration += 1
        self._left -= 1
        if self._left == 0:
            os.unlink(self.api.path)
            asyncio.get_running_loop().call_soon(self.left.set)
        return {**super().status(), "iteration": self._iteration}


class Beside:
    """Such an agent in a thread of its own, until it ends or the test does."""

    def __init__(self, home: Path, answers: int = 1 << 30) -> None:
        self._claimed = claim_state_dir(str(home), "default", "alice")
        self._answers = answers
        self._up = threading.Event()
        self._agent: Training | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Beside:
        """Return once it listens."""
        self._thread.start()
        assert self._up.wait(WAIT_S)
        return self

    def __exit__(self, *error: object) -> None:
        """End it, if it has not ended."""
        self.end()
        self._thread.join(WAIT_S)
        self._claimed.release()

    def end(self) -> None:
        """Let it end."""
        with contextlib.suppress(RuntimeError):  # its loop is closed
            assert self._agent is not None
            self._loop.call_soon_threadsafe(self._agent.left.set)

    def _run(self) -> None:
        async def body() -> None:
            self._agent = Training(self._claimed.socket_path, self._answers)
            await self._agent.api.start()
            self._up.set()
            await self._agent.left.wait()
            await self._agent.api.close()

        self._loop.run_until_complete(body())
        self._loop.close()


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which the command looks for agents; its path is short enough for sockets."""
    folder = tempfile.mkdtemp(prefix="ea-")
    monkeypatch.setenv("EDGEAGENT_HOME", folder)
    monkeypatch.setattr(status_command, "INTERVAL_S", 0.001)
    yield Path(folder)
    shutil.rmtree(folder)


def steps(text: str) -> list[int]:
    """Return the steps that `text` tells of."""
    return [int(found) for found in re.findall(r"^step (\d+) of 400", text, re.MULTILINE)]


def test_plain_blocks_until_the_agent_ends(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Beside(home, answers=3):
        assert main(["status", "--watch"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "\n\n\n" not in captured.out
    lines = captured.out.splitlines()
    assert steps(captured.out) == [1, 2, 3]
    assert lines[-1] == "alice has ended"
    assert sum(bool(re.fullmatch(r"\d\d:\d\d:\d\d", line)) for line in lines) == 3
    assert max(map(len, lines)) <= 80


def test_json_lines_until_the_agent_ends(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Beside(home, answers=3):
        assert main(["status", "--watch", "--json", "--name", "alice"]) == 0
    captured = capsys.readouterr()
    found = [json.loads(line) for line in captured.out.splitlines()]
    assert found == [{**sample_status(), "iteration": n} for n in (1, 2, 3)]
    assert captured.err == "alice has ended\n"


def test_no_agent_to_begin_with_is_a_failure(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["status", "--watch"], ["status", "--watch", "--json"]):
        assert main(command) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("edgeagent: no agent runs on this device")
    with Beside(home):
        assert main(["status", "--watch", "--name", "bob"]) == 1
    assert "running: alice" in capsys.readouterr().err


def test_an_agent_that_does_not_answer_is_a_failure(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([sample_status()])

    def fetch(path: str) -> Status:
        for status in answers:
            return status
        raise EdgeAgentError("the agent does not answer")

    monkeypatch.setattr(api, "fetch_status", fetch)
    with Beside(home):
        assert main(["status", "--watch"]) == 1
    captured = capsys.readouterr()
    assert steps(captured.out) == [120]
    assert captured.err == "edgeagent: the agent does not answer\n"


def test_the_interval_is_kept(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    def fetch(path: str) -> Status:
        now[0] += [0.0, 0.1, 0.5, 0.0][len(slept)]  # the agent takes its time
        if len(slept) == 3:
            raise api.NoAgent("gone")
        return sample_status()

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(status_command, "time", clock)
    monkeypatch.setattr(api, "fetch_status", fetch)
    claimed = claim_state_dir(str(home), "default", "alice")
    try:
        assert main(["status", "--watch", "--interval", "0.4"]) == 0
    finally:
        claimed.release()
    assert slept == pytest.approx([0.4, 0.3, 0.0])
    assert capsys.readouterr().out.endswith("alice has ended\n")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--interval", "1"], "--interval goes with --watch"),
        (["--watch", "--interval", "0.1"], "'0.1' is not a number of seconds from 0.2 to 3600"),
        (["--watch", "--interval", "nan"], "'nan'"),
        (["--watch", "--interval", "inf"], "'inf'"),
        (["--watch", "--interval", "-1"], "'-1'"),
        (["--watch", "--interval", "often"], "'often'"),
    ],
)
def test_wrong_intervals(
    argv: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", *argv]) == 2
    assert expected in capsys.readouterr().err


# Signals, in a process of its own


def start(home: Path, *options: str, **streams: Any) -> subprocess.Popen[bytes]:
    """Start the command as a user would."""
    environment = package_environment(os.environ) | {"EDGEAGENT_HOME": str(home), "COLUMNS": "80"}
    command = [sys.executable, "-m", "edgeagent", "status", "--watch", "--interval", "0.2"]
    return subprocess.Popen(
        [*command, *options], stderr=subprocess.PIPE, env=environment, **streams
    )


class KilledInDestructor:
    """Sends this process a signal as it is destroyed: what the handler raises is lost there."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __del__(self) -> None:
        signal.raise_signal(self._number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_comes_in_a_destructor_ends_it(
    home: Path, number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: lost.append(what.exc_type))
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert len(slept) < 3
        KilledInDestructor(number)

    monkeypatch.setattr(time, "sleep", sleep)
    with Beside(home):
        assert main(["status", "--watch"]) == 0
    assert lost == [KeyboardInterrupt]
    assert "has ended" not in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_signal_ends_it_gracefully(home: Path, number: int, options: list[str]) -> None:
    with Beside(home), start(home, *options, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()  # it reaches the pipe at once
        process.send_signal(number)
        rest = process.stdout.read()
        errors = process.stderr.read()
        assert process.wait(WAIT_S) == 0
    assert errors == b""
    text = (first + rest).decode()
    assert text.endswith("\n")
    if options:
        assert json.loads(first)["node"] == "alice"


def test_under_nohup_the_terminal_may_go(home: Path) -> None:
    with Beside(home):
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a child inherits it
        try:
            process = start(home, "--json", stdout=subprocess.PIPE)
        finally:
            signal.signal(signal.SIGHUP, before)
        with process:
            assert process.stdout is not None
            first = json.loads(process.stdout.readline())["iteration"]
            process.send_signal(signal.SIGHUP)
            assert json.loads(process.stdout.readline())["iteration"] == first + 1
            assert json.loads(process.stdout.readline())["iteration"] == first + 2
            process.terminate()
            assert process.wait(WAIT_S) == 0


def read_until(terminal: int, text: str, count: int) -> str:
    """Return what comes from a pseudo terminal until it has `text` so many times, or its end."""
    found = ""
    while found.count(text) < count:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # its other end is closed
            break
        if not piece:
            break
        found += piece.decode(errors="replace")
    return found


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, None])
def test_a_terminal_gets_its_cursor_back(
    home: Path, ending: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    outer, inner = pty.openpty()
    with Beside(home) as agent, start(home, stdout=inner, stdin=inner) as process:
        os.close(inner)
        shown = read_until(outer, "scheduler bob (term 3)", 2)
        assert HIDE in shown
        assert SHOW not in shown
        if ending is None:
            agent.end()
        else:
            process.send_signal(ending)
        shown += read_until(outer, "\0", 1)
        assert process.wait(WAIT_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    os.close(outer)
    assert shown.count(HIDE) == shown.count(SHOW) == 1
    assert "\x1b[?1049h" not in shown  # no alternate screen: the last status stays
    after = without_escapes(shown[shown.index(SHOW) :])
    assert after.strip() == ("alice has ended" if ending is None else "")


# Screens


def test_which_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(screen_for(io.StringIO(), as_json=False), Blocks)
    assert isinstance(screen_for(Terminal(), as_json=True), JsonLines)
    live = screen_for(Terminal(), as_json=False)
    assert isinstance(live, LiveScreen)
    live.close()
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(screen_for(Terminal(), as_json=False), Blocks)


def test_a_status_is_refreshed_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "50")
    out = Terminal()
    screen = LiveScreen(out)
    screen.show(sample_status(iteration=1))
    screen.show(sample_status(iteration=2))
    screen.close()
    screen.close()
    text = out.getvalue()
    assert text.index("step 1 ") < text.index("\x1b[2K") < text.index("step 2 ")
    assert text.count(HIDE) == text.count(SHOW) == 1


def test_a_terminal_that_was_closed_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")

    class Closed(Terminal):
        gone = False

        def write(self, text: str) -> int:
            if self.gone:
                raise OSError(5, "Input/output error")
            return super().write(text)

    out = Closed()
    screen = LiveScreen(out)
    screen.show(sample_status())
    out.gone = True
    screen.close()
