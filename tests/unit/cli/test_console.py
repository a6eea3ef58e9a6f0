"""The agent's own lines and the status, on a terminal and elsewhere."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from edgeagent.config import AgentConfig
from edgeagent.terminal import console as console_module
from edgeagent.terminal.console import Console, JoinLine, TrainingLine, can_refresh, console_for
from edgeagent.terminal.status_view import MAX_ROWS, print_status
from edgeagent.terminal.text import bytes_text, clean, loss_text, plural, rate_text, seconds_text
from tests.unit.cli.samples import member, sample_status


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def training(iteration: int) -> TrainingLine:
    """Return a training line."""
    return TrainingLine(iteration, 400, 0.5, 1234.0, 3)


def test_plain_lines() -> None:
    out, failures, clock = io.StringIO(), io.StringIO(), Clock()
    console = Console(out, live=False, prefix=lambda: "> ", failures=failures, clock=clock)
    console.say("bob has joined\x1b[2J\nforged line")
    console.training(training(1))
    console.training(training(2))
    clock.now += 5
    console.training(training(3))
    console.training(training(4))
    console.fail("the trainer ended")
    console.close()
    console.close()
    console.say("too late")
    rest = "/400  loss 0.5000  1234 samples/s  3 members"
    assert out.getvalue().splitlines() == [
        "> bob has joined [2J forged line",
        f"> iteration 1{rest}",
        f"> iteration 3{rest}",
        f"> iteration 4{rest}",
    ]
    assert failures.getvalue() == "edgeagent: the trainer ended\n"


def test_the_goodbye_is_the_last_line() -> None:
    out, clock = io.StringIO(), Clock()
    console = Console(out, live=False, clock=clock)
    for iteration in (1, 2):
        console.training(TrainingLine(iteration, 0, 0.5, 0.0, 1))
    console.settle()
    console.say("left after step 2")
    console.close()
    assert out.getvalue().splitlines() == [
        "iteration 1  loss 0.5000  - samples/s  1 member",
        "iteration 2  loss 0.5000  - samples/s  1 member",
        "left after step 2",
    ]


def test_the_goodbye_stands_below_the_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    out = Terminal()
    console = Console(out, live=True, clock=Clock())
    console.training(training(1))
    console.training(training(2))
    console.settle()
    console.say("left after step 2")
    console.close()
    text = out.getvalue()
    assert text.rindex("iteration 2/400") < text.index("left after step 2")
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1


def test_plain_join_progress() -> None:
    out, clock = io.StringIO(), Clock()
    console = Console(out, live=False, clock=clock)
    for step in range(5):
        console.joining(JoinLine(step * 10_000_000, 40_000_000, 3, step * 0.5))
        clock.now += 0.5
    console.close()
    assert out.getvalue().splitlines() == [
        "joining: 0 B of 40.0 MB from 3 sources, 0 B/s",
        "joining: 20.0 MB of 40.0 MB from 3 sources, 20.0 MB/s, 1.00 s left",
        "joining: 40.0 MB of 40.0 MB from 3 sources, 20.0 MB/s",
    ]


def test_a_live_line_is_refreshed_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    out, clock = Terminal(), Clock()
    console = Console(out, live=True, clock=clock)
    console.joining(JoinLine(1, 2, 3, 0.1))
    for iteration in (1, 2, 3):
        clock.now += 0.2
        console.training(training(iteration))
    console.say("carol has left")
    clock.now += 0.01
    console.training(training(4))
    console.close()
    text = out.getvalue()
    assert "joining" in text
    assert "carol has left" in text
    assert text.rindex("iteration 4/400") > text.index("carol has left")
    assert "\x1b[2K" in text  # the line before is erased
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor comes back


def test_a_closed_pipe_mutes_the_console() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    console = Console(Broken(), live=False)
    console.say("nobody reads this")
    console.say("nor this")
    console.close()


def test_a_stopped_terminal_drops_lines_and_blocks_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(console_module, "CLOSE_S", 0.02)
    released = threading.Event()

    class Stopped(io.StringIO):
        def write(self, text: str) -> int:
            released.wait(60)
            return super().write(text)

    out = Stopped()
    console = Console(out, live=False)
    for number in range(console_module.QUEUE_LINES + 50):
        console.say(str(number))
    assert 48 <= console.dropped <= 50
    console.close()  # does not wait for the terminal
    released.set()


@pytest.mark.parametrize(
    ("config", "stream", "line"),
    [
        (AgentConfig(job="digits"), "stdout", None),
        (AgentConfig(job="train"), "stdout", "edgeagent: hello\n"),
        (AgentConfig(job="digits", quiet=True, events="-"), "stderr", "edgeagent: hello\n"),
    ],
)
def test_the_console_of_an_agent(
    config: AgentConfig, stream: str, line: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    console = console_for(config)
    console.say("hello")
    console.training(training(1))
    console.close()
    captured = capsys.readouterr()
    text = captured.out if stream == "stdout" else captured.err
    other = captured.err if stream == "stdout" else captured.out
    assert other == ""
    if line is not None:
        assert text.startswith(line)
    else:
        assert text.splitlines()[0][2:9:3] == ":: "
        assert text.splitlines()[0].endswith(" hello")


def test_a_dumb_terminal_is_not_refreshed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert not can_refresh(Terminal())
    monkeypatch.setenv("TERM", "xterm")
    assert can_refresh(Terminal())
    assert not can_refresh(io.StringIO())


STATUS_LINES = """\
alice in cluster default: training, 3 members
iteration 120 of 400, loss 0.3412, 5120 samples/s
scheduler bob (term 3), view 5, policy 7

member  share  role           delay     sent  received
alice       6             this node
bob         5  scheduler     0.4 ms  12.3 MB     999 B
carol       5               no link

tree to bob: alice > bob, carol > bob
"""


def shown(**changes: object) -> list[str]:
    """Return the status as plain lines without blanks at their ends."""
    out = io.StringIO()
    print_status(sample_status(**changes), out)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in out.getvalue()
    return [line.rstrip() for line in lines]


def test_plain_status() -> None:
    assert shown() == STATUS_LINES.splitlines()


def test_status_of_a_joiner() -> None:
    lines = shown(
        phase="joining",
        scheduler="",
        loss=None,
        members=[],
        links=[],
        tree={"root": "", "parents": {}},
        pending=[{"kind": "scale-out", "node": "alice", "phase": "pulling"}],
        joining={
            "sources": [{"node": "bob", "bytes": 4_000_000, "seconds": 0.4}],
            "bytes": 12_000_000,
            "total_bytes": 50_000_000,
        },
    )
    assert lines[1] == "iteration 120 of 400, loss -, 5120 samples/s"
    assert lines[2].startswith("scheduler - (term 3)")
    assert "joining: 12.0 MB of 50.0 MB pulled" in lines
    assert "  bob: 4.0 MB in 0.40 s" in lines
    assert lines[-1] == "pending: scale-out of alice (pulling)"


def test_status_with_long_and_evil_names_and_many_members() -> None:
    name = "\x1b[31m" + "n" * 70
    members = [member(name, 1), *(member(f"m{k}", 1) for k in range(100))]
    tree = {"root": name, "parents": {f"m{k}": name for k in range(100)}}
    lines = shown(members=members, node=name, cluster="c" * 200, tree=tree)
    assert f"... and {101 - MAX_ROWS} more (--json shows all)" in lines


def test_status_on_a_terminal_has_style(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Terminal()
    print_status(sample_status(), out)
    assert "\x1b[1m" in out.getvalue()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (bytes_text(0), "0 B"),
        (bytes_text(999), "999 B"),
        (bytes_text(1000), "1.0 kB"),
        (bytes_text(999_960), "1.0 MB"),
        (bytes_text(12_345_678), "12.3 MB"),
        (bytes_text(5e18), "5000000.0 TB"),
        (seconds_text(0.0), "0.0 ms"),
        (seconds_text(0.0004), "0.4 ms"),
        (seconds_text(0.05), "50 ms"),
        (seconds_text(0.42), "0.42 s"),
        (seconds_text(42.0), "42 s"),
        (seconds_text(250.0), "4 min 10 s"),
        (seconds_text(7322.0), "2 h 2 min"),
        (loss_text(None), "-"),
        (loss_text(float("nan")), "nan"),
        (loss_text(0.0), "0.0000"),
        (loss_text(0.34123), "0.3412"),
        (loss_text(0.00001234), "1.23e-05"),
        (rate_text(3.21), "3.2 samples/s"),
        (rate_text(5120.4), "5120 samples/s"),
        (rate_text(0.0), "- samples/s"),
        (plural(1, "member"), "1 member"),
        (plural(0, "member"), "0 members"),
        (clean("a\x1b]0;x\x07\r\nb\u202e"), "a ]0;x   b "),
        (clean("x" * 1000), "x" * 497 + "..."),
    ],
)
def test_numbers_and_names_as_people_read_them(text: str, expected: str) -> None:
    assert text == expected


def test_stderr_is_where_failures_go(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(sys.stdout, live=False)
    console.fail("no luck")
    console.close()
    assert capsys.readouterr().err == "edgeagent: no luck\n"
