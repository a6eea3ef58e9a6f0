"""Times of contenders, side by side: a table for people, JSON for programs, a picture.

A contender that could not run has a line with the reason; no line is ever left out. Ratios are to
the physical bound of the same case, and medians have the range of all runs beside them.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PICTURE_INCHES = (9.0, 4.5)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one contender. Without `seconds` it failed, for the reason `why`.

    `bound_s`: the bound of this run, if runs of one case have different bounds.
    """

    case: str  # what was done, e.g. "6 -> 7 nodes"
    contender: str
    seconds: float | None
    why: str = ""
    bound_s: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """All runs of one contender in one case; times in seconds, `ratio` to the bound (the median of
    the runs' ratios if each has its own bound)."""

    case: str
    contender: str
    median: float | None
    low: float | None
    high: float | None
    ratio: float | None
    runs: int
    why: str


def lines(runs: Sequence[Run], bounds_s: Mapping[str, float]) -> list[Line]:
    """Return one line for each case and contender, in the order of their first runs."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.case, run.contender), []).append(run)
    found = []
    for (case, contender), group in groups.items():
        times = [run.seconds for run in group if run.seconds is not None]
        why = "; ".join(dict.fromkeys(run.why for run in group if run.why))
        if not times:
            found.append(Line(case, contender, None, None, None, None, 0, why))
            continue
        median, bound = statistics.median(times), bounds_s.get(case)
        own = [run.seconds / run.bound_s for run in group if run.seconds and run.bound_s]
        ratio = statistics.median(own) if own else median / bound if bound else None
        line = Line(case, contender, median, min(times), max(times), ratio, len(times), why)
        found.append(line)
    return found


def table(found: Sequence[Line], bounds_s: Mapping[str, float]) -> str:
    """Return the lines as Markdown, one table for each case, the bound first."""
    parts = []
    for case in dict.fromkeys(line.case for line in found):
        rows = ["| | median, s | range, s | over the bound | runs |", "|---|---|---|---|---|"]
        if case in bounds_s:
            rows.append(f"| physical bound | {bounds_s[case]:.3f} | | 1.00 | |")
        for line in found:
            if line.case == case:
                rows.append(_row(line))
        parts.append(f"**{case}**\n\n" + "\n".join(rows))
    return "\n\n".join(parts)


def _row(line: Line) -> str:
    if line.median is None:
        return f"| {line.contender} | failed: {line.why} | | | 0 |"
    ratio = f"{line.ratio:.2f}" if line.ratio is not None else ""
    spread = f"{line.low:.3f} to {line.high:.3f}"
    name = line.contender + (f" ({line.why})" if line.why else "")
    return f"| {name} | {line.median:.3f} | {spread} | {ratio} | {line.runs} |"


def write(
    folder: Path,
    name: str,
    about: Mapping[str, Any],
    runs: Sequence[Run],
    bounds_s: Mapping[str, float],
    pictured: Sequence[str] = (),
) -> list[Line]:
    """Write `name`.json, `name`.md and, if there is matplotlib, `name`.png into `folder`.

    about: what was measured and how, for the JSON. pictured: the cases that are drawn; all cases if
    it is empty.
    """
    found = lines(runs, bounds_s)
    folder.mkdir(parents=True, exist_ok=True)
    every = [
        {"case": r.case, "contender": r.contender, "s": r.seconds, "why": r.why}
        | ({"bound_s": r.bound_s} if r.bound_s is not None else {})
        for r in runs
    ]
    whole = {"about": dict(about), "bounds_s": dict(bounds_s), "runs": every}
    (folder / f"{name}.json").write_text(json.dumps(whole, indent=1) + "\n")
    (folder / f"{name}.md").write_text(table(found, bounds_s) + "\n")
    drawn = [line for line in found if line.case in pictured or not pictured]
    draw(drawn, bounds_s, name, folder / f"{name}.png")
    return found


def draw(found: Sequence[Line], bounds_s: Mapping[str, float], title: str, path: Path) -> bool:
    """Draw medians with their ranges, one panel for each case; return False without matplotlib."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    cases = list(dict.fromkeys(line.case for line in found))
    figure, panels = pyplot.subplots(1, len(cases), figsize=PICTURE_INCHES, squeeze=False)
    for panel, case in zip(panels[0], cases, strict=True):
        mine = [line for line in found if line.case == case and line.median is not None]
        for k, line in enumerate(mine):
            assert line.median is not None
            assert line.low is not None
            assert line.high is not None
            around = [[line.median - line.low], [line.high - line.median]]
            panel.barh(k, line.median, xerr=around, height=0.6, capsize=3, color="#4878a8")
        panel.set_yticks(range(len(mine)), [line.contender for line in mine])
        panel.invert_yaxis()
        if case in bounds_s:
            panel.axvline(bounds_s[case], color="#b03030", linestyle="--")
            place = (bounds_s[case], 1.01)
            across = panel.get_xaxis_transform()
            panel.text(*place, "bound", color="#b03030", ha="center", transform=across)
        panel.set_title(case, pad=16, fontsize="medium")
        panel.set_xlabel("seconds")
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True
