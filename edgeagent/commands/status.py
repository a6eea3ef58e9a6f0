"""`edgeagent status`: what the agent on this device knows, once or repeatedly.

One agent's answers are shown for people or, with --json or --trace, as they came. Watching ends
gracefully with Ctrl+C, SIGTERM, SIGHUP or the agent's end.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from itertools import chain
from typing import TYPE_CHECKING, NoReturn

from edgeagent.commands.options import add_command, chosen_agent, writable_file
from edgeagent.errors import UsageError
from edgeagent.plain_json import json_text
from edgeagent.terminal.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edgeagent.commands.options import Commands

DESCRIPTION = """\
Show the members, links, tree, scheduler and progress as the agent on this
device sees them, why the policy in force is as it is, and joins under way.
"-" stands for what is not measured yet.
"""
EXAMPLES = """\
  edgeagent status
  edgeagent status --watch            again and again, until Ctrl+C
  edgeagent status --name alice       when several agents run on this device
  edgeagent status --json | jq .loss
  edgeagent status --watch --interval 5 --json >> statuses
  edgeagent status --trace FILE       what the agent did lately, for a report
"""
INTERVAL_S = 1.0  # between two statuses by default
LEAST_INTERVAL_S = 0.2
LONGEST_INTERVAL_S = 3600.0


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "status",
        execute,
        summary="members, links, tree, scheduler and progress, as this device sees them",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object (a line)")
    parser.add_argument("--watch", action="store_true", help="show it again and again")
    parser.add_argument(
        "--interval",
        metavar="SECONDS",
        type=interval,
        help=f"how often with --watch (default {INTERVAL_S:g}, at least {LEAST_INTERVAL_S:g})",
    )
    parser.add_argument(
        "--trace",
        nargs="?",
        const="-",
        metavar="FILE",
        help="write what the agent was last told and did, one JSON object a line, for a report of "
        "trouble (default to stdout; no token is in it, but names, addresses and certificates are)",
    )
    parser.add_argument("--name", metavar="NAME", help="which agent, if several run")


def interval(text: str) -> float:
    """Return `text` as the seconds between two statuses."""
    with contextlib.suppress(ValueError):
        if LEAST_INTERVAL_S <= (seconds := float(text)) <= LONGEST_INTERVAL_S:
            return seconds
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a number of seconds from {LEAST_INTERVAL_S:g} to {LONGEST_INTERVAL_S:g}"
    )


def execute(args: argparse.Namespace) -> int:
    """Show the status once, or with --watch until interrupted; return the exit status."""
    if args.interval is not None and not args.watch:
        raise UsageError("--interval goes with --watch")
    if args.trace is not None and (args.watch or args.json):
        raise UsageError("--trace goes with neither --watch nor --json")
    if args.trace is not None:
        return _trace(args)
    if args.watch:
        return _watch(args)
    from edgeagent.local.api import fetch_status

    status = fetch_status(chosen_agent(args.name, os.environ).socket_path)
    if args.json:
        print(json_text(status))
        return 0
    from edgeagent.terminal.status_view import print_status

    print_status(status, sys.stdout)
    return 0


def _trace(args: argparse.Namespace) -> int:
    """Write a trace to standard output or to a file; return 0."""
    from edgeagent.local.api import fetch_trace

    pieces = fetch_trace(chosen_agent(args.name, os.environ).socket_path)
    if args.trace == "-":
        for piece in pieces:
            sys.stdout.write(piece)
        return 0
    from edgeagent.trace import write_trace

    first = next(pieces)  # raises if the agent refuses, before a file is made
    write_trace(writable_file("--trace", args.trace), chain((first,), pieces))
    return 0


def _watch(args: argparse.Namespace) -> int:
    """Show one status after another until the user interrupts it or the agent ends; return 0.

    Raises `NoAgent` if no agent runs at the beginning.
    """
    with _signals_as_interrupts() as interrupted, contextlib.suppress(KeyboardInterrupt):
        from edgeagent.local.api import NoAgent, fetch_status
        from edgeagent.terminal.watch import screen_for

        agent = chosen_agent(args.name, os.environ)
        status = fetch_status(agent.socket_path)
        screen = screen_for(sys.stdout, as_json=args.json)
        try:
            due = time.monotonic()
            while not interrupted():
                screen.show(status)
                now = time.monotonic()
                due = max(due + (args.interval or INTERVAL_S), now)
                time.sleep(due - now)
                status = fetch_status(agent.socket_path)
        except NoAgent:
            pass
        finally:
            screen.close()
        if not interrupted():
            print(f"{clean(agent.name)} has ended", file=sys.stderr if args.json else sys.stdout)
    return 0


@contextlib.contextmanager
def _signals_as_interrupts() -> Iterator[Callable[[], bool]]:
    """Let SIGTERM and SIGHUP end the watching like Ctrl+C, so that the cursor becomes visible
    again. Yields a function that tells whether one of the three has come: a KeyboardInterrupt is
    lost if the signal comes while the interpreter runs a destructor.

    Signals that are ignored (`nohup`) stay ignored.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # only that can handle signals
        yield lambda: False
        return

    def interrupt(number: int, frame: object) -> NoReturn:
        came.append(number)
        raise KeyboardInterrupt

    endings = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heeded = [n for n in endings if signal.getsignal(n) != signal.SIG_IGN]
    before = {n: signal.signal(n, interrupt) for n in heeded}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
