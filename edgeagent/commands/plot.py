"""`edgeagent plot EVENTS`: loss, members and step time of an event file, as a picture."""

from __future__ import annotations

import os
import sys
from itertools import groupby
from typing import TYPE_CHECKING, Any

from edgeagent.commands.options import add_command, existing_file, writable_file
from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.terminal.text import clean, plural

if TYPE_CHECKING:
    import argparse

    from edgeagent.commands.options import Commands
    from edgeagent.event_series import Series

MOST_LABELS = 12  # of joins and departures; more would hide each other
MOST_LETTERS = 48  # of a label
MOST_REPORTED = 4  # curves of reported figures
_BLUE, _ORANGE, _GREEN, _GREY = "#0072b2", "#d55e00", "#009e73", "#707070"  # told apart by all eyes
NO_MATPLOTLIB = "edgeagent plot needs matplotlib: install it with `pip install matplotlib`"

DESCRIPTION = """\
Draw what is in an event file (`edgeagent run JOB --events FILE`): the loss, the
number of members, who came and went, and how long the steps took, over the
iterations. Writes a PNG (or SVG or PDF, by the name after -o).
"""
EXAMPLES = """\
  edgeagent plot events.jsonl                     events.png beside it
  edgeagent plot events.jsonl -o run.svg
"""


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "plot",
        execute,
        summary="draw the loss, members and step time of an event file",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    parser.add_argument("events", metavar="EVENTS", help="file that --events has written")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="picture to write (default EVENTS with .png)"
    )


def execute(args: argparse.Namespace) -> int:
    """Draw the picture; return the exit status."""
    from edgeagent.event_series import series_of

    path = existing_file("EVENTS", args.events)
    output = writable_file("-o", args.output or f"{os.path.splitext(args.events)[0]}.png")
    if output == path:
        raise UsageError(f"-o {output}: that is the event file itself")
    with open(path, encoding="utf-8", errors="replace") as file:
        series = series_of(file)
    if not series.iterations:
        raise UsageError(f"{args.events} has no steps to draw: is it a file of --events?")
    if series.skipped:
        lines = plural(series.skipped, "line")
        print(f"edgeagent: left out {lines} that are no events", file=sys.stderr)
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise EdgeAgentError(NO_MATPLOTLIB) from None
    figure = draw(pyplot, series, _shown(os.path.basename(args.events)))
    try:
        figure.savefig(output, dpi=120)
    except ValueError as error:  # an ending that stands for no format
        raise UsageError(f"cannot write {output}: {error}") from None
    except OSError as error:
        raise EdgeAgentError(f"cannot write {output}: {error}") from None
    finally:
        pyplot.close(figure)
    print(output)
    return 0


def draw(pyplot: Any, series: Series, title: str) -> Any:
    """Return a figure with three plots, one below the other, of the same iterations."""
    figure, (top, middle, bottom) = pyplot.subplots(
        3,
        1,
        sharex=True,
        figsize=(9, 8),
        layout="constrained",
        height_ratios=(3, 1.6, 2),
    )
    top.set_title(title, loc="left")
    top.plot(series.iterations, series.losses, color=_BLUE, linewidth=1.2, label="loss")
    top.set_ylabel("loss (mean of the cluster)")
    _draw_reported(top, series)
    middle.step(series.iterations, series.members, color=_GREEN, where="post", linewidth=1.5)
    middle.set_ylabel("members")
    middle.set_ylim(0, max(series.members) * 1.3 + 0.5)
    middle.yaxis.get_major_locator().set_params(integer=True)
    _draw_changes(middle, series)
    bottom.plot(series.iterations, series.seconds, color=_GREY, linewidth=1, label="whole step")
    bottom.plot(series.iterations, series.compute, color=_BLUE, linewidth=1, label="computing here")
    bottom.plot(series.iterations, series.sync, color=_ORANGE, linewidth=1, label="summing")
    bottom.set_ylabel("seconds of a step")
    bottom.set_ylim(0, None)
    bottom.set_xlabel("iteration")
    bottom.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False, ncols=3, borderpad=0)
    for axes in (top, middle, bottom):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_reported(axes: Any, series: Series) -> None:
    """Draw what the script has reported on a scale of its own."""
    if not series.reported:
        return
    right = axes.twinx()
    right.spines["top"].set_visible(False)
    right.set_ylabel("reported")
    for k, (name, figures) in enumerate(list(series.reported.items())[:MOST_REPORTED]):
        at, values = zip(*figures, strict=True)
        right.plot(at, values, "o-", color=f"C{k + 1}", markersize=4, label=_shown(name))
    lines = [*axes.get_lines(), *right.get_lines()]
    right.legend(lines, [line.get_label() for line in lines], loc="center right", frameon=False)


def _draw_changes(axes: Any, series: Series) -> None:
    """Mark who came and went; what happened at one iteration shares a label."""
    marks = [
        (at, _shown(", ".join(what for _, what in group)))
        for at, group in groupby(series.changes, key=lambda change: change[0])
    ]
    for k, (at, what) in enumerate(marks):
        axes.axvline(at, color=_GREY, linewidth=0.8, linestyle=":")
        if k < MOST_LABELS:
            place = (at, 0.03 + 0.13 * (k % 3))
            note = axes.annotate(
                f" {what}", place, xycoords=("data", "axes fraction"), fontsize=8, color=_GREY
            )
            note.set_in_layout(False)  # a long one at the edge must not squeeze the plots


def _shown(text: str) -> str:
    """Return a name as it may stand in a plot: cut, and without a meaning for matplotlib."""
    text = clean(text)
    text = text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}..."
    return text.replace("$", "\\$").removeprefix("_")
