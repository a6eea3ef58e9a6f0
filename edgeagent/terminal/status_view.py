"""A status for people: who trains, over which links and tree, why so, and what changes at present.

The text fits 80 columns and is plain where there is no terminal. Names are cleaned before they are
shown. Units are in the headings, and "-" stands for what is not measured yet. Long lists are cut,
and the number of hidden rows is told.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from edgeagent.local.figures import pairs_of
from edgeagent.terminal.text import (
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
from edgeagent.terminal.tree_view import tree_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TextIO

    from edgeagent.local.status_model import (
        DividedStatus,
        MemberStatus,
        PairStatus,
        PendingStatus,
        PullStatus,
        Status,
    )

PLAIN_WIDTH = 80
MAX_ROWS = 64  # of one list; the others are counted
MOST_FATAL = 4  # sets of members that are named; more are counted
_BAR_WIDTH = 20
_REASON_SEPARATOR = "; "  # between the parts of a policy's reason, as the planner joins them


def print_status(status: Status, stream: TextIO) -> None:
    """Write `status` to `stream`."""
    if stream.isatty():
        rich_console(stream).print(render(status))
        return
    text = io.StringIO()
    rich_console(text).print(render(status))
    stream.writelines(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


class _Console(RichConsole):
    """A console that leaves a reader that has gone to the command line, as all other output does,
    and does not end the process itself."""

    def on_broken_pipe(self) -> None:
        """Raise the `BrokenPipeError` that is being handled."""
        raise


def rich_console(stream: TextIO) -> RichConsole:
    """Return a console on `stream` with the terminal's width and colours, else 80 plain columns."""
    terminal = stream.isatty()
    return _Console(
        file=stream,
        width=None if terminal else PLAIN_WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
    )


def render(status: Status) -> Group:
    """Return `status` as something rich can print."""
    parts: list[RenderableType] = [_headline(status)]
    if status["standby"]:
        parts += ["", Text(f"stands by: {clean(status['standby'])}")]
    if members := status["members"]:
        parts += ["", _Cropped(_members(members[:MAX_ROWS])), *_more(len(members))]
        parts += _waited_for(status)
    if pairs := pairs_of(status):
        parts += ["", _Cropped(_links(pairs[:MAX_ROWS])), *_more(len(pairs))]
        parts += _limited(members)
    if status["tree"]["root"]:
        parts += ["", *_tree(status, pairs)]
    if status["reason"]:
        parts += ["", Text(f"why policy {status['policy']} is as it is"), *_reason(status)]
    if (joining := status["joining"]) is not None:
        parts += ["", *_pull("joining ", joining)]
    if pending := status["pending"]:
        shown = [line for change in pending[:MAX_ROWS] for line in _pending(change)]
        parts += ["", *shown, *_more(len(pending))]
    return Group(*parts)


def _more(count: int) -> list[RenderableType]:
    """Return a line that says how many of `count` entries are not shown, if any."""
    hidden = count - MAX_ROWS
    return [Text(f"... and {hidden} more (--json shows all)")] if hidden > 0 else []


def _limited(members: Sequence[MemberStatus]) -> list[RenderableType]:
    """Return lines about members that something limits, whatever their single links carry."""
    lines: list[RenderableType] = []
    for member in members:
        out, into = member["most_out_mbit_s"], member["most_in_mbit_s"]
        known = (("sends", out), ("receives", into))
        does = [f"{verb} {mbit_text(rate)}" for verb, rate in known if rate is not None]
        if does:
            name, what = clean(member["name"]), " and ".join(does)
            lines.append(Text(f"{name} {what} Mbit/s over all its links at most"))
    return [*lines[:MAX_ROWS], *_more(len(lines))]


def _headline(status: Status) -> Text:
    head = Text()
    head.append(clean(status["node"]), style="bold")
    head.append(f" in cluster {clean(status['cluster'])}: {clean(status['phase'])}, ")
    head.append(plural(len(status["members"]), "member"))
    end = f" of {status['steps']}" if status["steps"] else ""
    local = status["local_steps"]
    of = f" of {plural(local, 'local step')}" if local else ""
    head.append(f"\n{'round' if of else 'step'} {status['iteration']}{end}{of}, ")
    if (step := status["local_step"]) is not None:
        head.append(f"step {step['done']} of {step['of']} of the next one here, ")
    head.append(f"loss {loss_text(status['loss'])}, {rate_text(status['samples_per_second'])}")
    head.append(f"\nscheduler {clean(status['scheduler']) or '-'} (term {status['term']}), ")
    head.append(f"view {status['view']}, policy {status['policy']}")
    if (divided := status["divided"]) is not None:
        head.append(f"\n{_divided(divided)}")
    if status["paused"]:
        head.append(f"\npaused: {clean(status['paused'])}")
    if (assembling := status["assembling"]) is not None:
        here, wanted = assembling["here"], assembling["wanted"]
        more = plural(wanted - here, "more device")
        head.append(f"\nwaiting for {more} ({here} of {wanted}) before training begins")
    if status["let_in"]:
        head.append("\nlet in: copies the state when the running step of the others is done")
    return head


def _divided(divided: DividedStatus) -> str:
    """Return in words which losses the optimizer's state survives."""
    if missing := divided["missing"]:
        names = ", ".join(clean(name) for name in missing)
        return f"optimizer: waiting for {names}, which alone has a part of its state"
    learns = divided["learning"]
    now = f", {plural(learns, 'member')} copying" if learns else ""
    return f"optimizer: {plural(divided['parts'], 'part')}, {_survives(divided)}{now}"


def _survives(divided: DividedStatus) -> str:
    """Return in words how many members may be lost, whichever they are, and which ones more."""
    most, members = divided["survives"], len(divided["held"])
    fatal = [" and ".join(clean(name) for name in names) for names in divided["fatal"]]
    cases = math.comb(members, most + 1)
    some = f"survives the loss of {plural(most, 'member')}" if most else "survives no loss"
    if not fatal or len(fatal) >= cases or most + 1 >= members:
        return some
    if len(fatal) > MOST_FATAL:
        more = f"{cases - len(fatal)} of {cases}"
        if not most:
            return f"survives the loss of any one of {more} members"
        return f"{some}, and of {most + 1} in {more} cases"
    if not most:
        return f"survives the loss of any member but {' or '.join(fatal)}"
    return f"{some}, and of {most + 1} unless they are {', or '.join(fatal)}"


def _name(text: str, style: str = "") -> Text:
    """Return a cell with a name, which is shortened if the row is too long."""
    return Text(clean(text), style=style, no_wrap=True, overflow="ellipsis")


class _Cropped:
    """A table that, in a terminal that is too narrow, loses its right side instead of its names."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        """Yield the lines, cut at the terminal's width."""
        wide = options.update(width=max(options.max_width, PLAIN_WIDTH))
        for line in console.render_lines(self._table, wide, pad=False):
            yield from Segment.adjust_line_length(line, options.max_width, pad=False)
            yield Segment.line()


def _table(names: Sequence[str], figures: Sequence[str], last: str | None = None) -> Table:
    """Return an empty table with columns for names, for figures, and perhaps for a remark."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in names:
        table.add_column(heading)
    for heading in figures:
        table.add_column(heading, justify="right", no_wrap=True)
    if last is not None:
        table.add_column(last, no_wrap=True)
    return table


def _members(members: Iterable[MemberStatus]) -> Table:
    """Return the table of members; `busy` is the part of an iteration spent computing."""
    headings = ["share", "ms each", "compute ms", "sync ms", "busy"]
    table = _table(["member"], headings, "role")
    for member in members:
        compute, sync = member["compute_ms"], member["sync_ms"]
        busy = "-"
        if compute is not None and sync is not None and compute + sync > 0:
            busy = f"{compute / (compute + sync):.0%}"
        figures = (str(member["share"]), *map(ms_text, (member["micro_batch_ms"], compute, sync)))
        role = ", ".join(
            word
            for word, holds in (
                ("scheduler", member["scheduler"]),
                ("here", member["me"]),
                (f"{member['trainer']} {member['owes_s']:.0f} s", member["trainer"] != "prompt"),
            )
            if holds
        )
        style = "bold" if member["me"] else ""
        table.add_row(_name(member["name"]), *figures, busy, role, style=style)
    return table


def _waited_for(status: Status) -> list[RenderableType]:
    """Return the lines on whom the others wait for, and on what would help."""
    if (waiting := status["waiting"]) is None:
        known = sum(member["compute_ms"] is not None for member in status["members"])
        lines = [
            "nobody holds the others up"
            if known > 1
            else "whether anybody holds the others up is not measured yet"
        ]
    else:
        lines = [clean(waiting["text"])]
    if (advice := status["advice"]) is not None:
        lines.append(clean(advice["text"]))
    return [Text(line, overflow="fold") for line in lines]


def _used(pair: PairStatus) -> str:
    """Return whether sums travel along a link, with the part of them if that is not all."""
    part = pair["part"]
    return "" if not pair["in_tree"] else "yes" if part in (None, 1.0) else f"{part:.0%}"


def _links(pairs: Iterable[PairStatus]) -> Table:
    figures = ["delay ms", "Mbit/s there", "Mbit/s back"]
    table = _table(["link from", "to"], figures, "in tree")
    for pair in pairs:
        table.add_row(
            _name(pair["a"]),
            _name(pair["b"]),
            ms_text(pair["delay_ms"]),
            mbit_text(pair["there_mbit_s"]),
            mbit_text(pair["back_mbit_s"]),
            _used(pair),
        )
    return table


def _tree(status: Status, pairs: Iterable[PairStatus]) -> list[RenderableType]:
    """Return the tree, with the rates and the delay between each node and its parent."""
    tree = status["tree"]
    rates: dict[tuple[str, str], tuple[float | None, float | None, float | None]] = {}
    for pair in pairs:
        there, back, delay = pair["there_mbit_s"], pair["back_mbit_s"], pair["delay_ms"]
        rates[pair["a"], pair["b"]] = (there, back, delay)
        rates[pair["b"], pair["a"]] = (back, there, delay)
    table = _table(["tree"], ["Mbit/s up", "Mbit/s down", "delay ms"])
    for number, (branches, name) in enumerate(tree_rows(tree["root"], tree["parents"])):
        if number == MAX_ROWS:
            break
        parent = tree["parents"].get(name) if number else None
        if parent is None:
            figures = ("", "", "")
        else:
            up, down, delay = rates.get((name, parent), (None, None, None))
            figures = (mbit_text(up), mbit_text(down), ms_text(delay))
        style = "bold" if name == status["node"] else ""
        cell = Text(branches, no_wrap=True, overflow="ellipsis")
        table.add_row(cell.append(clean(name), style=style), *figures)
    return [_Cropped(table), *_more(len(tree["parents"]) + 1)]


def _reason(status: Status) -> list[RenderableType]:
    """Return the parts of the policy's reason, one per row."""
    parts = status["reason"].split(_REASON_SEPARATOR)
    grid = Table.grid(padding=(0, 1))
    for part in parts[:MAX_ROWS]:
        grid.add_row("-", Text(clean(part), overflow="fold"))
    return [grid, *_more(len(parts))]


def _part(done: int, total: int) -> str:
    """Return how much of a state is pulled, as a bar and in figures."""
    if not total:
        return f"{bytes_text(done)}"
    bar = bar_text(done / total, _BAR_WIDTH)
    return f"{bar} {min(1.0, done / total):.0%}, {bytes_text(done)} of {bytes_text(total)}"


def _mean_mbit_s(size: int, seconds: float) -> float | None:
    return size * 8e-6 / seconds if seconds > 0 else None


def _pull(what: str, pull: PullStatus) -> list[RenderableType]:
    """Return lines on a pull of the state: how far it is, and how fast each source sends."""
    left = pull["seconds_left"]
    line = f"{what}{_part(pull['bytes'], pull['total_bytes'])}"
    line += f", {seconds_text(left)} left" if left is not None else ", time left -"
    sources = pull["sources"]
    if not sources:
        return [Text(line)]
    table = _table(["pulled from", ""], ["Mbit/s", "link Mbit/s"])
    table.columns[1].justify = "right"
    for source in sources[:MAX_ROWS]:
        table.add_row(
            _name(source["node"]),
            bytes_text(source["bytes"]),
            mbit_text(_mean_mbit_s(source["bytes"], pull["seconds"])),
            mbit_text(source["mbit_s"]),
        )
    return [Text(line), _Cropped(table), *_more(len(sources))]


def _pending(pending: PendingStatus) -> list[RenderableType]:
    what = clean(f"pending: {pending['kind']} of {pending['node']} ({pending['phase']})")
    pull = pending["pull"]
    return [Text(what), *(_pull("  ", pull) if pull is not None else [])]
