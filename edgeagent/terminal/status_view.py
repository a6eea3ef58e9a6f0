"""A status for people: a headline, a table of members and links, what changes at present.

Law: fits 80 columns; plain text where there is no terminal; names are cleaned before being shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console as RichConsole
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgeagent.terminal.text import bytes_text, clean, loss_text, plural, rate_text, seconds_text

if TYPE_CHECKING:
    from typing import TextIO

    from edgeagent.local.status_model import JoiningStatus, Status, TreeStatus

PLAIN_WIDTH = 80
MAX_ROWS = 64  # members shown; the rest is counted


def print_status(status: Status, stream: TextIO) -> None:
    """Write `status` to `stream`."""
    rich_console(stream).print(render(status))


def rich_console(stream: TextIO) -> RichConsole:
    """Return a console on `stream`: the terminal's width and colours, else 80 columns and none."""
    terminal = stream.isatty()
    return RichConsole(
        file=stream,
        width=None if terminal else PLAIN_WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
    )


def render(status: Status) -> Group:
    """Return `status` as something rich can print."""
    parts: list[RenderableType] = [_headline(status), Text(""), _members(status)]
    hidden = len(status["members"]) - MAX_ROWS
    if hidden > 0:
        parts.append(Text(f"... and {hidden} more (--json shows all)"))
    if status["tree"]["parents"]:
        parts.append(Text("\n" + _tree(status["tree"])))
    if (joining := status["joining"]) is not None:
        parts.append(Text("\n" + _joining(joining)))
    for pending in status["pending"][:MAX_ROWS]:
        what = f"pending: {pending['kind']} of {pending['node']} ({pending['phase']})"
        parts.append(Text(clean(what)))
    return Group(*parts)


def _headline(status: Status) -> Text:
    head = Text()
    head.append(clean(status["node"]), style="bold")
    head.append(f" in cluster {clean(status['cluster'])}: {clean(status['phase'])}, ")
    head.append(plural(len(status["members"]), "member"))
    end = f" of {status['steps']}" if status["steps"] else ""
    head.append(f"\niteration {status['iteration']}{end}, ")
    head.append(f"loss {loss_text(status['loss'])}, {rate_text(status['samples_per_second'])}")
    head.append(f"\nscheduler {clean(status['scheduler']) or '-'} (term {status['term']}), ")
    head.append(f"view {status['view']}, policy {status['policy']}")
    return head


def _members(status: Status) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("member", max_width=24, overflow="ellipsis", no_wrap=True)
    table.add_column("share", justify="right")
    table.add_column("role", no_wrap=True)
    table.add_column("delay", justify="right", no_wrap=True)
    table.add_column("sent", justify="right", no_wrap=True)
    table.add_column("received", justify="right", no_wrap=True)
    links = {link["peer"]: link for link in status["links"]}
    for member in status["members"][:MAX_ROWS]:
        name = clean(member["name"])
        role = "scheduler" if member["scheduler"] else ""
        link = links.pop(member["name"], None)
        if member["me"]:
            cells = ("this node", "", "")
        elif link is None:
            cells = ("no link", "", "")
        else:
            delay = "-" if link["delay_ms"] is None else f"{link['delay_ms']:.1f} ms"
            cells = (delay, bytes_text(link["sent_bytes"]), bytes_text(link["received_bytes"]))
        style = "bold" if member["me"] else ""
        table.add_row(name, str(member["share"]), role, *cells, style=style)
    return table


def _tree(tree: TreeStatus) -> str:
    edges = ", ".join(f"{child} > {parent}" for child, parent in sorted(tree["parents"].items()))
    return clean(f"tree to {tree['root']}: {edges}")


def _joining(joining: JoiningStatus) -> str:
    total = joining["total_bytes"]
    lines = [f"joining: {bytes_text(joining['bytes'])} of {bytes_text(total)} pulled"]
    for source in joining["sources"][:MAX_ROWS]:
        lines.append(
            f"  {clean(source['node'])}: {bytes_text(source['bytes'])} "
            f"in {seconds_text(source['seconds'])}"
        )
    return "\n".join(lines)
