"""The demo on the screen: a table refreshed in place on a terminal, plain lines elsewhere.

It shows only what the agents' events say.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from edgeagent.demo.report import Event, join_text
from edgeagent.terminal.console import can_refresh
from edgeagent.terminal.text import clean, loss_text, rate_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TextIO

    from rich.console import RenderableType

PLAIN_EVERY_S = 2.0  # between two plain lines about the progress
LIVE_EVERY_S = 0.1  # between two refreshes in place
SHOWN_HAPPENINGS = 10  # the newest ones, below the live table
TITLE = "edgeagent demo"
_BAR_WIDTH = 40


@dataclass(frozen=True, slots=True)
class NodeLine:
    """One agent in the table."""

    name: str
    state: str
    iteration: int
    loss: float | None
    samples_per_second: float


@dataclass(frozen=True, slots=True)
class Scene:
    """All that is shown at one moment."""

    nodes: tuple[NodeLine, ...]
    iteration: int
    steps: int
    members: int
    loss: float | None
    samples_per_second: float


class View(Protocol):
    """Where the story is shown."""

    def happened(self, text: str) -> None:
        """Show something that is worth a line."""

    def show(self, scene: Scene) -> None:
        """Show the present state of the run; called often."""

    def close(self) -> None:
        """End the showing. Idempotent."""


def view_for(stream: TextIO, title: str = TITLE) -> View:
    """Return the view for `stream`; `title` stands above the live table."""
    return LiveView(stream, title=title) if can_refresh(stream) else PlainView(stream)


class PlainView:
    """Writes one line for each happening, and one about the progress every few seconds."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._start = clock()
        self._due = 0.0
        self._shown = -1

    def happened(self, text: str) -> None:
        """Print `text` with the seconds since the start."""
        print(f"{self._clock() - self._start:6.1f} s  {text}", file=self._stream, flush=True)

    def show(self, scene: Scene) -> None:
        """Print a line if `PLAIN_EVERY_S` have passed and the run has advanced."""
        now = self._clock()
        if now >= self._due and scene.iteration != self._shown and scene.iteration > 0:
            self._due = now + PLAIN_EVERY_S
            self._shown = scene.iteration
            self.happened(
                f"step {scene.iteration}/{scene.steps}  loss {loss_text(scene.loss)}  "
                f"{rate_text(scene.samples_per_second)}  members {scene.members}"
            )

    def close(self) -> None:
        """Do nothing: every line is already complete."""


class LiveView:
    """Shows a progress bar, a table of the agents and the last happenings."""

    def __init__(
        self,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
        *,
        title: str = TITLE,
    ) -> None:
        from rich.live import Live

        from edgeagent.terminal.status_view import rich_console

        self._title = title
        self._clock = clock
        self._start = clock()
        self._due = 0.0
        self._happenings: list[str] = []
        self._scene: Scene | None = None
        self._live: Live | None = Live(
            console=rich_console(stream),
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def happened(self, text: str) -> None:
        """Add `text` to the list below the table."""
        self._happenings.append(f"{self._clock() - self._start:6.1f} s  {text}")
        self._due = 0.0

    def show(self, scene: Scene) -> None:
        """Refresh, at most a few times a second."""
        self._scene = scene
        now = self._clock()
        if self._live is not None and now >= self._due:
            self._due = now + LIVE_EVERY_S
            happenings = self._happenings[-SHOWN_HAPPENINGS:]
            self._live.update(render(scene, happenings, self._title), refresh=True)

    def close(self) -> None:
        """Leave the last scene on the screen."""
        live, self._live = self._live, None
        if live is not None:
            if self._scene is not None:
                live.update(render(self._scene, self._happenings, self._title), refresh=True)
            live.stop()


def render(scene: Scene, happenings: Sequence[str], title: str) -> RenderableType:
    """Return the scene as something rich can print."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    progress = Table.grid(padding=(0, 1))
    part = scene.iteration / scene.steps if scene.steps else 0.0
    progress.add_row(
        ProgressBar(1.0, min(1.0, part), width=_BAR_WIDTH),
        f"{scene.iteration}/{scene.steps}",
        f"loss {loss_text(scene.loss)}",
        rate_text(scene.samples_per_second),
    )
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("node", no_wrap=True)
    table.add_column("state", no_wrap=True, min_width=9)
    table.add_column("iteration", justify="right")
    table.add_column("loss", justify="right")
    table.add_column("speed", justify="right", no_wrap=True)
    styles = {
        "training": "green",
        "left": "dim",
        "done": "bold green",
        "failed": "red",
        "killed": "dim red",
    }
    for node in scene.nodes:
        speed = rate_text(node.samples_per_second) if node.samples_per_second else "-"
        cells = (node.name, node.state, str(node.iteration), loss_text(node.loss), speed)
        table.add_row(*cells, style=styles.get(node.state, ""))
    lines = [Text(line) for line in happenings]
    return Group(Text(title, style="bold"), progress, Text(""), table, Text(""), *lines)


def describe(node: str, event: Event) -> str | None:
    """Return a line about an event of `node`, None if the event is not worth one."""
    kind = event["event"]
    if kind == "joined" and event.get("sources"):
        join = {"lower_bound_s": None, **event, "node": node}
        return f"{node} joined and pulled {join_text(join)}"  # type: ignore[arg-type]
    if kind == "joined":
        return f"{node} founded the cluster"
    if kind == "scheduler" and event["why"] != "founded" and event["node"] == node:
        return f"{node} takes over as scheduler (term {event['term']})"
    if kind == "member_left" and event["reason"] == "failure":
        stall = event.get("stall_s")
        after = "" if stall is None else f", after a stall of {seconds_text(stall)}"
        return f"{node} goes on without {clean(event['node'])}{after}"
    if kind == "left":
        seconds = seconds_text(event["seconds"])
        return f"{node} ended at step {event['iteration']} after {seconds}"
    if kind == "evaluated":
        return f"{node} measured {clean(event['name'])} {event['value']:.2%}"
    if kind == "error":
        return f"{node}: {clean(str(event.get('message', event)))}"
    return None
