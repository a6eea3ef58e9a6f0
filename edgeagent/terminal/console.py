"""The running agent's own lines: what happened, how far a join is, how the training goes.

    console = console_for(config)
    console.say("bob has joined")              one line, at once
    console.joining(JoinLine(...))             as often as it changes; shown a few times a second
    console.training(TrainingLine(...))        every iteration; shown now and then
    console.fail("the trainer ended ...")      one line on stderr
    console.close()

No call blocks the agent's loop: a thread does the writing, and if a terminal accepts nothing
(Ctrl+S, a full pipe), lines are lost but no heartbeats are missed. On a terminal the last lines are
refreshed in place. A script prints lines of its own, so beside a script this is done only while it
waits for its join. Everywhere else all output is plain lines. Text from other devices is cleaned
first.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeagent.launch import BUILT_IN_JOBS
from edgeagent.terminal.text import bytes_text, clean, loss_text, plural, rate_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    from rich.console import Console as RichConsole
    from rich.console import RenderableType
    from rich.live import Live

    from edgeagent.config import AgentConfig

QUEUE_LINES = 1000  # waiting lines; if there are more, they are dropped and counted
LIVE_EVERY_S = 0.1  # between two refreshes in place
TRAINING_EVERY_S = 5.0  # between two plain lines about the training
JOINING_EVERY_S = 1.0  # between two plain lines about a join
CLOSE_S = 1.0  # at most, for writing the last lines
NAMED_SOURCES = 8  # of a join; the others are counted
_BAR_WIDTH = 20


@dataclass(frozen=True, slots=True)
class TrainingLine:
    """How the training goes. `steps` is 0 if there is no end; `loss` is the cluster's, of the last
    iteration. `local_steps` is 0, or how many global batches a round of local steps has;
    `local_step` is how many of how many steps this device has taken in the round that runs."""

    iteration: int
    steps: int
    loss: float | None
    samples_per_second: float
    members: int
    local_steps: int = 0
    local_step: tuple[int, int] | None = None

    def text(self) -> str:
        """Return the line."""
        end = f"/{self.steps}" if self.steps else ""
        number = f"step {self.iteration}{end}"
        if self.local_steps:
            number = f"round {self.iteration}{end} of {plural(self.local_steps, 'local step')}"
        if self.local_step is not None:
            number += ", step {} of {} of the next one".format(*self.local_step)
        return (
            f"{number}  loss {loss_text(self.loss)}  "
            f"{rate_text(self.samples_per_second)}  {plural(self.members, 'member')}"
        )


@dataclass(frozen=True, slots=True)
class SourceLine:
    """What one source has sent so far; `rate` is in bytes/s over the whole pull."""

    name: str
    done_bytes: int
    rate: float


@dataclass(frozen=True, slots=True)
class JoinLine:
    """How far the pull of the training state is, `seconds` after its first request."""

    done_bytes: int
    total_bytes: int
    sources: tuple[SourceLine, ...]
    seconds: float

    def text(self) -> str:
        """Return the line: bytes, rate, time left, and the rate of each source."""
        shown = self.sources[:NAMED_SOURCES]
        named = [f"{clean(s.name)} {bytes_text(s.rate)}/s" for s in shown]
        if hidden := len(self.sources) - len(shown):
            named.append(f"{hidden} more")
        line = f"{self.total_text()} from {plural(len(self.sources), 'source')}, {self.rate_text()}"
        return f"{line} ({', '.join(named)})" if named else line

    def total_text(self) -> str:
        """Return how much is pulled, such as "12.0 MB of 40.0 MB"."""
        return f"{bytes_text(self.done_bytes)} of {bytes_text(self.total_bytes)}"

    def rate_text(self) -> str:
        """Return the rate and, if it can be estimated, the time left."""
        rate = self.done_bytes / self.seconds if self.seconds > 0 else 0.0
        left = (self.total_bytes - self.done_bytes) / rate if rate > 0 else None
        line = f"{bytes_text(rate)}/s"
        return f"{line}, {seconds_text(left)} left" if left else line

    @property
    def part(self) -> float:
        """How much is pulled, as a part from 0 to 1."""
        return min(1.0, self.done_bytes / self.total_bytes) if self.total_bytes else 1.0


@dataclass(frozen=True, slots=True)
class _Said:
    """One line to show; a failure goes to stderr."""

    text: str
    failure: bool = False


@dataclass(frozen=True, slots=True)
class _Settled:
    """Ends the live line, so that what follows is written below it."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """Is reached when everything queued before it is shown."""

    shown: threading.Event


_Item = _Said | _Settled | _Mark | TrainingLine | JoinLine


class Console:
    """The running agent's lines; see the module's docstring.

    All methods are to be called from one thread, the agent's.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        live: bool,
        live_joins: bool = False,
        prefix: Callable[[], str] = lambda: "",
        failures: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._painter = _Painter(stream, live, live_joins, prefix, failures or sys.stderr)
        self._live = live
        self._live_joins = live or live_joins
        self._clock = clock
        self._queue: queue.Queue[_Item | None] = queue.Queue(QUEUE_LINES)
        self._thread: threading.Thread | None = None
        self._training_due = self._joining_due = 0.0
        self._pulled = False
        self._unshown: TrainingLine | None = None
        self._closed = False
        self.dropped = 0

    def say(self, text: str) -> None:
        """Show one line at once."""
        self._post(_Said(clean(text)))

    def fail(self, text: str) -> None:
        """Show one line on stderr, beginning with "edgeagent: "."""
        self._post(_Said(f"edgeagent: {clean(text)}", failure=True))

    def training(self, line: TrainingLine) -> None:
        """Show how the training goes, unless that was shown a moment ago."""
        self._unshown = line
        self._pulled = False
        if (now := self._clock()) >= self._training_due:
            self._training_due = now + (LIVE_EVERY_S if self._live else TRAINING_EVERY_S)
            self._unshown = None
            self._post(line)

    def joining(self, line: JoinLine) -> None:
        """Show how far the join is, unless that was shown a moment ago; always show its end
        once."""
        now, done = self._clock(), line.part == 1.0
        if not self._pulled if done else now >= self._joining_due:
            self._joining_due = now + (LIVE_EVERY_S if self._live_joins else JOINING_EVERY_S)
            self._post(line)
        self._pulled = done

    def settle(self) -> None:
        """Show the last training line and end the live line, so that what follows comes below
        it."""
        if self._unshown is not None:
            self._post(self._unshown)
            self._unshown = None
        if self._thread is not None:
            self._post(_Settled())

    def flush(self) -> None:
        """Wait until all lines are shown, at most `CLOSE_S`. Not to be called on the agent's
        loop."""
        if self._thread is not None and not self._closed:
            shown = threading.Event()
            self._post(_Mark(shown))
            shown.wait(CLOSE_S)

    def close(self) -> None:
        """Settle, write the last lines, and return within `CLOSE_S`. Idempotent."""
        if self._closed:
            return
        self.settle()
        self._closed = True
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._queue.put(None, timeout=CLOSE_S / 2)
            self._thread.join(CLOSE_S / 2)

    def _post(self, item: _Item) -> None:
        if self._closed:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._paint, name="console", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            self.dropped += 1

    def _paint(self) -> None:
        try:
            while (item := self._queue.get()) is not None:
                if isinstance(item, _Mark):
                    item.shown.set()
                else:
                    self._painter.paint(item)
        except (OSError, ValueError):  # the terminal or the pipe is closed, so nobody reads
            while (item := self._queue.get()) is not None:
                if isinstance(item, _Mark):
                    item.shown.set()
        else:
            with contextlib.suppress(OSError, ValueError):
                self._painter.close()


class _Painter:
    """Writes items to the streams; used only by the console's thread."""

    def __init__(
        self,
        stream: TextIO,
        live: bool,
        live_joins: bool,
        prefix: Callable[[], str],
        failures: TextIO,
    ) -> None:
        self._stream = stream
        self._live = live
        self._live_joins = live or live_joins
        self._prefix = prefix
        self._failures = failures
        self._console: RichConsole | None = None
        self._bottom: Live | None = None

    def paint(self, item: _Said | _Settled | TrainingLine | JoinLine) -> None:
        """Show `item`."""
        if isinstance(item, JoinLine):
            self._joining(item)
            return
        if not self._live:  # the join has ended, so the terminal belongs to the script again
            self._end_live()
        if isinstance(item, _Said):
            if item.failure:
                self._end_live()
                print(item.text, file=self._failures, flush=True)
            else:
                self._line(item.text)
        elif isinstance(item, _Settled):
            self._end_live()
        elif self._live:
            self._refresh(_text(item.text()))
        else:
            self._line(item.text())

    def _joining(self, line: JoinLine) -> None:
        if not self._live_joins:
            self._line(f"joining: {line.text()}")
            return
        self._refresh(_bar(line))
        if not self._live and line.part == 1.0:
            self._end_live()

    def close(self) -> None:
        """End the live line; its last content stays."""
        self._end_live()
        self._stream.flush()

    def _line(self, text: str) -> None:
        line = self._prefix() + text
        if self._bottom is not None:
            assert self._console is not None
            self._console.print(_text(line), soft_wrap=True)
        else:
            print(line, file=self._stream, flush=True)

    def _refresh(self, content: RenderableType) -> None:
        if self._bottom is None:
            from rich.live import Live

            from edgeagent.terminal.status_view import rich_console

            self._console = rich_console(self._stream)
            self._bottom = Live(
                console=self._console,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._bottom.start()
        self._bottom.update(content, refresh=True)

    def _end_live(self) -> None:
        bottom, self._bottom = self._bottom, None
        if bottom is not None:
            bottom.stop()


def _text(line: str) -> RenderableType:
    from rich.text import Text

    return Text(line, no_wrap=True, overflow="ellipsis")


def _bar(line: JoinLine) -> RenderableType:
    """Return a bar and, below it, a line for each source."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    bar = Table.grid(padding=(0, 1))
    figures = f"{line.total_text()}, {line.rate_text()}"
    bar.add_row("joining", ProgressBar(1.0, line.part, width=_BAR_WIDTH), _text(figures))
    sources = Table.grid(padding=(0, 2))
    sources.add_column()
    for _ in ("bytes", "rate"):
        sources.add_column(justify="right", no_wrap=True)
    for source in line.sources[:NAMED_SOURCES]:
        cells = (bytes_text(source.done_bytes), f"{bytes_text(source.rate)}/s")
        sources.add_row(_text(f"  from {clean(source.name)}"), *cells)
    if (hidden := len(line.sources) - NAMED_SOURCES) > 0:
        sources.add_row(f"  and {hidden} more")
    return Group(bar, sources)


def console_for(config: AgentConfig) -> Console:
    """Return the console of an agent.

    It writes to stderr if stdout must stay quiet, and refreshes lines in place if the stream is a
    terminal. A script prints lines of its own, so beside a script only a join is refreshed in
    place, because the script waits for it.
    """
    stream = sys.stderr if config.quiet else sys.stdout
    built_in = config.job in BUILT_IN_JOBS and not config.quiet
    terminal = can_refresh(stream)
    prefix = _clock_prefix if built_in else _name_prefix
    return Console(stream, live=built_in and terminal, live_joins=terminal, prefix=prefix)


def can_refresh(stream: TextIO) -> bool:
    """Return whether lines on `stream` can be refreshed in place."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def _clock_prefix() -> str:
    return time.strftime("%H:%M:%S ")


def _name_prefix() -> str:
    return "edgeagent: "
