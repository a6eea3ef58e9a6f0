"""The findings of `edgeagent doctor` for people: one row each, the advice below it.

Words say what colours say, too, so that nothing is lost where there are none. Everything is folded
to the width of the terminal, 80 columns where there is none.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from edgeagent.doctor.findings import Finding, Verdict
from edgeagent.terminal.status_view import rich_console
from edgeagent.terminal.text import clean, plural

if TYPE_CHECKING:
    from typing import TextIO

_STYLES = {
    Verdict.OK: "green",
    Verdict.WARNING: "yellow",
    Verdict.FAILED: "bold red",
    Verdict.UNKNOWN: "dim",
}
NARROW = 60  # columns; below that the name of a check has no column of its own


def print_findings(findings: list[Finding], stream: TextIO) -> None:
    """Write the findings and a summary to `stream`."""
    if stream.isatty():
        console = rich_console(stream)
        console.print(render(findings, console.width))
        console.print(summary(findings))
        return
    text = io.StringIO()
    console = rich_console(text)
    console.print(render(findings, console.width))
    console.print(summary(findings))
    stream.writelines(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def render(findings: list[Finding], width: int) -> Table:
    """Return the findings as a table for a terminal of `width` columns."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    if width >= NARROW:
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        style = _STYLES[finding.verdict]
        seen = Text(clean(finding.seen))
        if width < NARROW:
            seen = Text.assemble((f"{finding.check}: ", "bold"), seen)
        if finding.advice:
            seen.append(f"\n-> {clean(finding.advice)}", style="bold" if style != "dim" else "")
        first = Text(str(finding.verdict), style=style)
        table.add_row(*((first, finding.check, seen) if width >= NARROW else (first, seen)))
    return table


def summary(findings: list[Finding]) -> Text:
    """Return the last line: how many checks have ended how."""
    counts = {verdict: sum(f.verdict is verdict for f in findings) for verdict in Verdict}
    parts = [
        f"{counts[Verdict.FAILED]} failed",
        plural(counts[Verdict.WARNING], "warning"),
        f"{counts[Verdict.OK]} ok",
    ]
    if counts[Verdict.UNKNOWN]:
        parts.append(f"{counts[Verdict.UNKNOWN]} not known")
    worst = Verdict.FAILED if counts[Verdict.FAILED] else Verdict.OK
    return Text(f"\n{', '.join(parts)}", style=_STYLES[worst])
