"""What the page shows of the past: the curves of the training, and the lines of the log.

Both are bounded, however long the agent runs. The curves cover the whole training: when there are
too many points, each two neighbours become one that stands for the steps of both. The log holds
the last lines, each with a number that only grows, so that a reader can tell which it has.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgeagent.terminal.text import clean, seconds_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_POINTS = 512  # of the curves; a page is about so many pixels wide
MAX_LINES = 200  # of the log
SHOWN_STALL_S = 0.01  # a departure that has cost less is not worth a line


@dataclass(slots=True)
class Point:
    """`steps` steps that follow each other, the last of which made iteration `iteration`.

    `seconds` is how long those took whose duration is known, and `samples` counts theirs. `losses`
    of the steps had a loss that is a number; `loss_sum` is their sum.
    """

    iteration: int
    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    loss_sum: float = 0.0
    losses: int = 0

    def take(self, later: Point) -> None:
        """Stand for the steps of `later`, too."""
        self.iteration = later.iteration
        self.steps += later.steps
        self.samples += later.samples
        self.seconds += later.seconds
        self.loss_sum += later.loss_sum
        self.losses += later.losses

    @property
    def loss(self) -> float | None:
        """The mean loss, None if no step had one."""
        return self.loss_sum / self.losses if self.losses else None

    @property
    def rate(self) -> float | None:
        """Samples per second of the cluster, None if no step's duration is known."""
        return self.samples / self.seconds if self.seconds > 0 else None


class Curve:
    """The training from its first step seen to the last, as at most `MAX_POINTS` points."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.stride = 1  # steps that a point stands for, the last one excepted

    def add(self, step: Point) -> None:
        """Append one step. Steps of the same iteration and of later ones are forgotten: this
        device has begun again from an earlier state, for example that of another cluster."""
        points = self.points
        while points and points[-1].iteration >= step.iteration:
            points.pop()
        if points and points[-1].steps < self.stride:
            points[-1].take(step)
            return
        if len(points) >= MAX_POINTS:
            self._halve()
        points.append(step)

    def _halve(self) -> None:
        """Let each point stand for twice as many steps."""
        for kept, gone in zip(self.points[::2], self.points[1::2], strict=True):
            kept.take(gone)
        del self.points[1::2]
        self.stride *= 2


class History:
    """Listens to the observer of one agent; see `observer.Listener`."""

    def __init__(self, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        """`clock` measures seconds; `wall` gives the time of day, in Unix seconds, of a line."""
        self._clock = clock
        self._wall = wall
        self._stepped: float | None = None  # when the last step was done
        self._count = 0
        self.curve = Curve()
        self.lines: deque[tuple[int, float, str]] = deque(maxlen=MAX_LINES)
        self.on_line: Callable[[], None] = lambda: None

    def event(self, event: str, values: Mapping[str, Any]) -> None:
        """Note an event: a step in the curves, some others in the log."""
        if event == "step":
            self._step(values)
        elif event == "joined":
            self._stepped = None  # what came before was no step but the pull
        if text := _text_of(event, values):
            self.line(text)

    def line(self, text: str) -> None:
        """Note a line that the terminal shows."""
        self._count += 1
        self.lines.append((self._count, round(self._wall(), 3), clean(text)))
        self.on_line()

    def _step(self, values: Mapping[str, Any]) -> None:
        now, before, loss = self._clock(), self._stepped, values["loss"]
        self._stepped = now
        step = Point(values["iteration"], steps=1)
        if before is not None:
            step.samples, step.seconds = values["samples"], now - before
        if loss is not None and math.isfinite(loss):
            step.loss_sum, step.losses = loss, 1
        self.curve.add(step)


def _text_of(event: str, values: Mapping[str, Any]) -> str:
    """Return a line for those events that the terminal shows no line of, else ""."""
    match event:
        case "link_up":
            return f"the link to {values['node']} is open"
        case "link_down":
            return f"the link to {values['node']} has ended"
        case "restarted":
            what = f"step {values['iteration'] + 1} was done again"
            return f"{what} by {len(values['members'])} members after a failure"
        case "member_left" if (stall := values["stall_s"]) is not None and stall >= SHOWN_STALL_S:
            return f"the departure of {values['node']} made a step {seconds_text(stall)} longer"
        case "error":
            return f"error: {values['message']}"
    return ""
