"""What several commands share: kinds of arguments, their checks, and the layout of the help.

A check returns the value, or raises an error of one line that says what would be right.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from edgeagent.config import (
    COUNT_RULE,
    MOST_COPIES,
    WAITED_FOR_RULE,
    can_be_waited_for,
    is_count,
    is_name,
    listen_address,
    name_rule,
)
from edgeagent.errors import UsageError
from edgeagent.own_files import check_own, strange_link
from edgeagent.suggestions import explained
from edgeagent.terminal.text import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edgeagent.local.state_dir import RunningAgent

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


MOST_DIGITS = 40  # of a number; a longer one cannot be meant, and would take long to convert
THREADS_A_CORE = 8  # more threads only wait for each other, and some libraries crash
LEAST_MOST_THREADS = 64  # allowed on any device, however few cores it has


class Parser(argparse.ArgumentParser):
    """An argument parser that raises its errors as `UsageError`.

    argparse itself would print the usage and end the process; here `main` prints one line.
    """

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError` with `message` and the `--help` that explains the option."""
        raise UsageError(f"{explained(message)} (see `{self.prog} --help`)")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print a help or a version; argparse's own method hides it if that fails."""
        if message:
            (file or sys.stderr).write(message)


def add_command(
    commands: Commands,
    name: str,
    execute: Callable[[argparse.Namespace], int],
    *,
    summary: str,
    description: str,
    examples: str,
) -> argparse.ArgumentParser:
    """Add the parser of one command, with its examples and exit statuses in the help."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=f"examples:\n{examples.rstrip()}\n\n{EXIT_STATUSES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(execute=execute)
    return parser


EXIT_STATUSES = (
    "exit status: 0 done or left gracefully, 2 wrong usage or configuration,\n1 any other failure"
)


def positive(text: str) -> int:
    """Return `text` as a whole number from 1 to `limits.MAX_ITERATION`."""
    from protocols import limits  # not before it is known to be ours

    if not _is_number(text) or not 1 <= int(text) <= limits.MAX_ITERATION:
        most = "" if not _is_number(text) or int(text) < 1 else f", at most {limits.MAX_ITERATION}"
        raise argparse.ArgumentTypeError(f"{_cut(text)!r} is not a whole number of 1 or more{most}")
    return int(text)


def threads(text: str) -> int:
    """Return `text` as a number of threads, refusing more than this device can use."""
    number, cores = positive(text), os.cpu_count() or 1
    if number > max(LEAST_MOST_THREADS, THREADS_A_CORE * cores):
        raise argparse.ArgumentTypeError(
            f"{text} are too many threads: this device has {plural(cores, 'processor core')}"
        )
    return number


def part(text: str) -> float:
    """Return `text` as a number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:  # nor is NaN
        raise argparse.ArgumentTypeError(f"{_cut(text)!r} is not a number from 0 to 1")
    return value


def weight(text: str) -> float:
    """Return `text` as a number above 0 and up to 1."""
    if not (value := part(text)):
        raise argparse.ArgumentTypeError(f"{_cut(text)!r} is not above 0")
    return value


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS


def _cut(text: str) -> str:
    return text if len(text) <= MOST_DIGITS else f"{text[:MOST_DIGITS]}..."


def seed(text: str) -> int:
    """Return `text` as a seed: a whole number from 0 to 2^63 - 1."""
    if not _is_number(text) or int(text) >= 1 << 63:
        raise argparse.ArgumentTypeError(f"{_cut(text)!r} is not a whole number from 0 to 2^63 - 1")
    return int(text)


def node_name(text: str) -> str:
    """Return `text` if it can name a node: short, printable, without spaces at its ends."""
    if not is_name(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name: use {name_rule()}")
    return text


def node_argument(text: str) -> str:
    """Return `text` if it can name a member: a node's name or the beginning of its id."""
    if not is_name(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} names no node: use its name, or digits that its id begins with"
        )
    return text


def chosen_neighbours(text: str) -> tuple[tuple[str, ...], int]:
    """Read N, "all" or names; return (the names, the most links that the device should have).

    No names and 0 links mean that the cluster chooses. Raises `UsageError` for a number that no
    device can have.
    """
    from protocols import limits  # not before it is known to be ours

    if text.strip().lower() == "all":
        return (), limits.MAX_LINKS_PER_NODE
    if not _is_number(text):
        names = tuple(name for part in text.split(",") if (name := part.strip()))
        if wrong := [name for name in names if not is_name(name)]:
            raise UsageError(f"--neighbours: {_cut(wrong[0])!r} is no name: use {name_rule()}")
        return names, 0
    if not 1 <= int(text) <= limits.MAX_LINKS_PER_NODE:
        most = limits.MAX_LINKS_PER_NODE
        raise UsageError(f"--neighbours {_cut(text)}: a device links to 1 to {most} others")
    return (), int(text)


def whole(text: str) -> int:
    """Return `text` as a whole number from 0 to 2^31 - 1."""
    if not is_count(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not {COUNT_RULE}")
    return int(text)


def devices(text: str) -> int:
    """Return `text` as a number of devices that a founder can wait for."""
    if not can_be_waited_for(text):
        raise argparse.ArgumentTypeError(f"{_cut(text)!r} is not {WAITED_FOR_RULE}")
    return int(text)


def copies(text: str) -> int:
    """Return `text` as a number of copies of each part of a divided optimizer."""
    if not is_count(text) or int(text) > MOST_COPIES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {MOST_COPIES}")
    return int(text)


def add_actions(
    parser: argparse.ArgumentParser, *actions: tuple[str, str, str]
) -> list[argparse.ArgumentParser]:
    """Add actions (name, summary, description) to a command; return their parsers."""
    group = parser.add_subparsers(title="actions", metavar="ACTION", dest="action")
    return [
        group.add_parser(
            name,
            help=summary,
            description=description,
            epilog=EXIT_STATUSES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        for name, summary, description in actions
    ]


def add_agent_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that chooses an agent if several run on this device."""
    parser.add_argument("--name", metavar="AGENT", help="which agent on this device, if several")


def add_interface_option(parser: argparse._ActionsContainer) -> None:
    """Add the option that keeps an agent to one network interface."""
    parser.add_argument(
        "--interface",
        metavar="NAME",
        help="listen, announce and dial through this network interface only, for example eth0 "
        "(default all; those that lead to the room are told first, bridges of containers and VPNs "
        "last)",
    )


def checked_interface(name: str, listen: str) -> str:
    """Return `name`, that of an interface of this device or "" for all of them.

    Raises `UsageError` if there is none, or if `listen` names an address beside it.
    """
    if not name:
        return ""
    if listen and listen_address(listen)[0] not in ("", "0.0.0.0", "::"):
        raise UsageError(
            f"--interface {name}: --listen {listen} names an address already; with --interface "
            "give it the port alone"
        )
    from edgeagent.transport.interfaces import check_interface

    check_interface(name)
    return name


def present_folder() -> str:
    """Return the folder in which the command was started; raise `UsageError` if it was deleted."""
    try:
        return os.getcwd()
    except OSError as error:
        raise UsageError(
            f"the folder in which this was started is gone ({error.strerror}): "
            "change to one that exists, and start again"
        ) from None


def existing_file(option: str, path: str) -> str:
    """Return the absolute `path` of a file that can be read."""
    if not os.path.isfile(path) or not os.access(path, os.R_OK):
        raise UsageError(f"{option}: there is no readable file {path}")
    return os.path.abspath(path)


def existing_path(option: str, path: str) -> str:
    """Return the absolute `path` of a folder, or of a file that can be read."""
    if not os.path.isdir(path) and not (os.path.isfile(path) and os.access(path, os.R_OK)):
        raise UsageError(f"{option}: there is no folder or readable file {path}")
    return os.path.abspath(path)


def writable_file(option: str, path: str, *, regular: bool = False) -> str:
    """Return the absolute `path` of a file that can be written, or created.

    With `regular`, devices and pipes are refused.
    """
    folder = os.path.dirname(os.path.abspath(os.path.realpath(path) if regular else path))
    if not os.path.isdir(folder):
        raise UsageError(f"{option} {path}: there is no folder {folder}")
    if complaint := strange_link(path):
        raise UsageError(f"{option} {path}: {complaint}")
    if os.path.isdir(path):
        raise UsageError(f"{option} {path}: that is a folder; give a file's path")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise UsageError(f"{option} {path}: it cannot be written")
    if regular and os.path.exists(path) and not os.path.isfile(path):
        raise UsageError(f"{option} {path}: that is no regular file; --no-save writes no model")
    return os.path.abspath(path)


def chosen_agent(name: str | None, environment: Mapping[str, str]) -> RunningAgent:
    """Return this user's running agent; if several run, the one called `name`."""
    from edgeagent.config import state_root
    from edgeagent.local.api import choose_agent
    from edgeagent.local.state_dir import running_agents

    root = state_root(environment)
    check_own(root)
    return choose_agent(running_agents(root), name)
