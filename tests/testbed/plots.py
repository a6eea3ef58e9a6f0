"""Pictures of a run: loss, members and speed over time, with the lines of the timeline.

They show what the event files say, each iteration once, and no label covers another. Matplotlib
(the extra "bench") is needed; without it there are no pictures, and the user is told so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from tests.testbed.play import Played

Event = dict[str, Any]
BUCKETS = 120
MIN_BUCKET_S = 1.0
LABEL_POINTS = 7
LABEL_GAP = 0.02  # between labels, of the picture's height


def history(played: Played) -> list[Event]:
    """Return one `step` of each iteration, the first that was written, in the order of time.

    If the cluster was in two parts, an iteration may have been done twice; the later one is left
    out.
    """
    first: dict[int, Event] = {}
    steps = [e for life in played.lives for e in life.agent.events if e["event"] == "step"]
    for step in sorted(steps, key=lambda e: float(e["t"])):
        first.setdefault(step["iteration"], step)
    return sorted(first.values(), key=lambda e: float(e["t"]))


def rates(steps: Sequence[Event], began_t: float) -> tuple[list[float], list[float]]:
    """Return times in seconds after `began_t` and the samples/s around them, in equal pieces."""
    if len(steps) < 2:
        return [], []
    low, high = steps[0]["t"], steps[-1]["t"]
    width = max(MIN_BUCKET_S, (high - low) / BUCKETS)
    count = int((high - low) / width) + 1
    sums = [0.0] * count
    for step in steps[1:]:
        sums[min(count - 1, int((step["t"] - low) / width))] += step["samples"]
    times = [low - began_t + (k + 0.5) * width for k in range(count)]
    return times[:-1] or times, [value / width for value in (sums[:-1] or sums)]


def missing() -> str:
    """Return why there can be no pictures; empty if there can."""
    try:
        import matplotlib  # noqa: F401 - only whether it is there
    except ModuleNotFoundError:
        return "no pictures: matplotlib is not installed (pip install 'edgeagent[bench]')"
    return ""


def draw(played: Played, title: str, folder: Path) -> list[Path]:
    """Write one picture for loss, members and samples/s each; return their paths."""
    steps = history(played)
    times = [step["t"] - played.began_t for step in steps]
    seconds, speeds = rates(steps, played.began_t)
    loss = [float("nan") if step["loss"] is None else step["loss"] for step in steps]
    members = [step["members"] for step in steps]
    return [
        _picture(played, title, "loss", times, loss, folder, log=any(x > 0 for x in loss)),
        _picture(played, title, "members", times, members, folder, stepped=True),
        _picture(played, title, "samples/s", seconds, speeds, folder),
    ]


def stagger(labels: Sequence[tuple[float, float, float]]) -> list[float]:
    """Return how far below the top each label is drawn: as high as there is room for it.

    labels: left and right edge in any unit, and height, in the order of left edges.
    """
    shifts: list[float] = []
    for k, (left, _, height) in enumerate(labels):
        beside = [
            (shift, shift + taken)
            for (_, right, taken), shift in zip(labels[:k], shifts, strict=True)
            if right > left
        ]
        shift = 0.0
        for top, bottom in sorted(beside):
            if top < shift + height and shift < bottom:
                shift = bottom
        shifts.append(shift)
    return shifts


def _picture(
    played: Played,
    title: str,
    what: str,
    x: Sequence[float],
    y: Sequence[float],
    folder: Path,
    stepped: bool = False,
    log: bool = False,
) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(x, y, linewidth=1, drawstyle="steps-post" if stepped else "default")
    axes.set_title(title)
    axes.set_xlabel("seconds after the timeline's start")
    axes.set_ylabel(what)
    if log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    figure.draw_without_rendering()  # only now the sizes of the labels are known
    style: dict[str, Any] = {"rotation": 90, "va": "top", "ha": "left", "fontsize": LABEL_POINTS}
    style["bbox"] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
    labels = []
    for mark in played.marks:
        at = mark.t - played.began_t
        axes.axvline(at, color="tab:red", linewidth=0.7, alpha=0.6)
        place = axes.get_xaxis_transform()
        labels.append(axes.text(at, 0.98, mark.text, transform=place, color="tab:red", **style))
    figure.draw_without_rendering()
    inside = axes.get_window_extent().height
    boxes = [label.get_window_extent() for label in labels]
    shifts = stagger([(box.x0, box.x1, box.height / inside + LABEL_GAP) for box in boxes])
    for label, shift in zip(labels, shifts, strict=True):
        label.set_y(0.98 - shift)
    path = folder / f"{what.replace('/', '-per-')}.png"
    figure.savefig(path, dpi=120)
    return path
