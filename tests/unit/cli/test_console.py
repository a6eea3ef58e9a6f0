"""The agent's own lines, on a terminal and elsewhere."""

from __future__ import annotations

import io
import re
import sys
import threading
import time

import pytest

from edgeagent.config import AgentConfig
from edgeagent.observer import Observer
from edgeagent.terminal import console as console_module
from edgeagent.terminal.console import (
    Console,
    JoinLine,
    SourceLine,
    TrainingLine,
    can_refresh,
    console_for,
)
from edgeagent.terminal.text import (
    accept_all,
    bar_text,
    bytes_text,
    clean,
    loss_text,
    mbit_text,
    ms_text,
    plural,
    rate_text,
    seconds_text,
)
from tests.simulation.virtual.world import Recorder, Silence


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


def without_escapes(text: str) -> str:
    """Return what a terminal shows of `text`."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


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
        f"> step 1{rest}",
        f"> step 3{rest}",
        f"> step 4{rest}",
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
        "step 1  loss 0.5000  - samples/s  1 member",
        "step 2  loss 0.5000  - samples/s  1 member",
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
    assert text.rindex("step 2/400") < text.index("left after step 2")
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1


def joining(done: int, seconds: float, sources: int = 2) -> JoinLine:
    """Return a line on a pull of 40 MB, the same from each source."""
    rate = done / seconds / sources if seconds else 0.0
    lines = tuple(SourceLine(f"s{k}\x1b", done // sources, rate) for k in range(sources))
    return JoinLine(done, 40_000_000, lines, seconds)


def test_plain_join_progress() -> None:
    out, clock = io.StringIO(), Clock()
    console = Console(out, live=False, clock=clock)
    for step in range(5):
        console.joining(joining(step * 10_000_000, step * 0.5))
        clock.now += 0.5
    console.joining(joining(40_000_000, 3.0))  # a shard that came twice
    console.close()
    assert out.getvalue().splitlines() == [
        "joining: 0 B of 40.0 MB from 2 sources, 0 B/s (s0  0 B/s, s1  0 B/s)",
        "joining: 20.0 MB of 40.0 MB from 2 sources, 20.0 MB/s, 1.00 s left "
        "(s0  10.0 MB/s, s1  10.0 MB/s)",
        "joining: 40.0 MB of 40.0 MB from 2 sources, 20.0 MB/s (s0  10.0 MB/s, s1  10.0 MB/s)",
    ]


def test_a_second_join_is_told_like_the_first() -> None:
    out, clock = io.StringIO(), Clock()
    console = Console(out, live=False, clock=clock)
    for _ in range(2):
        console.joining(joining(40_000_000, 1.0))
        console.training(training(1))
    console.close()
    assert out.getvalue().count("joining: 40.0 MB of 40.0 MB") == 2


def test_many_sources_are_counted() -> None:
    line = joining(20_000_000, 1.0, sources=10)
    assert line.text().endswith("s7  2.0 MB/s, 2 more)")
    assert JoinLine(0, 0, (), 0.0).part == 1.0
    assert JoinLine(0, 0, (), 0.0).text() == "0 B of 0 B from 0 sources, 0 B/s"


@pytest.mark.parametrize("sources", [2, 10])
def test_a_join_has_a_bar(sources: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    console = Console(out, live=True, clock=Clock())
    console.joining(joining(10_000_000, 0.5, sources))
    console.close()
    lines = without_escapes(out.getvalue()).splitlines()
    assert "\u2501" in lines[0]
    assert lines[0].rstrip().endswith(" 10.0 MB of 40.0 MB, 20.0 MB/s, 1.50 s left")
    each = 10_000_000 // sources
    assert lines[1].split() == ["from", "s0", *bytes_text(each).split(), *rate_of(each)]
    assert max(map(len, lines)) <= 80
    hidden = [line for line in lines if line.strip() == "and 2 more"]
    assert bool(hidden) == (sources > 8)


def test_a_pull_is_shown_with_what_each_source_sent() -> None:
    clock, shown = Clock(), []

    class Shows(Silence):
        def joining(self, line: JoinLine) -> None:
            shown.append(line)

    observer = Observer("me", "room", Recorder(clock), Shows(), clock)
    observer.report("pull_begins", {"total_bytes": 100})
    observer.shard_arrived("bob", 10)
    clock.now += 2.0
    observer.shard_arrived("carol", 80, 999.0)
    observer.shard_arrived("bob", 20)
    bob, carol = SourceLine("bob", 10, 5.0), SourceLine("carol", 80, 40.0)
    assert shown == [
        JoinLine(10, 100, (SourceLine("bob", 10, 0.0),), 0.0),
        JoinLine(90, 100, (bob, carol), 2.0),
        JoinLine(100, 100, (SourceLine("bob", 30, 15.0), carol), 2.0),
    ]


def rate_of(size: int) -> list[str]:
    """Return the words of the rate of a source that sent `size` bytes in half a second."""
    return f"{bytes_text(size / 0.5)}/s".split()


def test_beside_a_script_only_a_join_is_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    out, clock = Terminal(), Clock()
    console = Console(out, live=False, live_joins=True, clock=clock)
    console.joining(joining(10_000_000, 0.5))
    clock.now += 0.01
    console.joining(joining(11_000_000, 0.6))  # too soon to be shown
    clock.now += 0.2
    console.joining(joining(40_000_000, 2.0))
    console.training(training(1))
    console.joining(joining(10_000_000, 0.5))  # it was cut off and joins again
    clock.now += 0.2
    console.joining(joining(30_000_000, 1.5))
    console.say("bob is lost")  # the join comes to nothing
    console.close()
    text = out.getvalue()
    assert "11.0 MB of" not in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 2
    shown_again = text.index("\x1b[?25h")
    assert text.index("40.0 MB of 40.0 MB") < shown_again < text.index("step 1/400")
    assert text.rindex("\x1b[?25h") < text.index("bob is lost")
    assert "30.0 MB of 40.0 MB" in text


def test_a_live_line_is_refreshed_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    out, clock = Terminal(), Clock()
    console = Console(out, live=True, clock=clock)
    console.joining(joining(10_000_000, 0.5))
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
    assert text.rindex("step 4/400") > text.index("carol has left")
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
        (ms_text(None), "-"),
        (ms_text(0.517), "0.52"),
        (ms_text(42.0), "42.0"),
        (ms_text(12_345.6), "12346"),
        (mbit_text(None), "-"),
        (mbit_text(0.0), "0.00"),
        (mbit_text(9.456), "9.46"),
        (mbit_text(93.34), "93.3"),
        (mbit_text(2097.152), "2097"),
        (bar_text(0.0, 4), "[....]"),
        (bar_text(0.49, 4), "[#...]"),
        (bar_text(1.7, 4), "[####]"),
        (bar_text(-1.0, 4), "[....]"),
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


def test_what_was_said_before_a_flush_is_shown() -> None:
    out = io.StringIO()
    console = Console(out, live=False)
    console.flush()  # nothing was said yet
    for number in range(50):
        console.say(f"line {number}")
    console.flush()
    assert out.getvalue().splitlines()[-1] == "line 49"
    console.close()
    console.flush()


def test_a_flush_returns_where_nobody_reads_any_more() -> None:
    out = io.StringIO()
    out.close()
    console = Console(out, live=False)
    console.say("nobody hears this")
    started = time.monotonic()
    console.flush()
    assert time.monotonic() - started < console_module.CLOSE_S / 2
    console.close()


def test_what_a_stream_cannot_encode_is_escaped() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    accept_all(stream, io.StringIO())
    print("J\u00fcrgen\u2026", file=stream, flush=True)
    assert raw.getvalue() == b"J\\xfcrgen\\u2026\n"
