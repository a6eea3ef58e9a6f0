"""Parses the command line and runs one command.

The exit status is 0 if the command was done or the node left gracefully, 2 for wrong usage or
configuration, and 1 for any other failure, so that a script can tell them apart. Each failure that
can be expected is one line `edgeagent: ...` on stderr; a traceback would only hide what the user
can do about it. If the reader of a pipe goes away, as in `edgeagent status | head`, nothing is said
and the status is the one that shells give to a program which ends for that reason. Large modules
are imported by the command that needs them, because a command such as `edgeagent status` shall
answer at once.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import TYPE_CHECKING

from edgeagent import __version__
from edgeagent.commands import COMMANDS
from edgeagent.commands.options import Parser
from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.launch import BUILT_IN_JOBS, check_protocols
from edgeagent.standard_streams import (
    complain,
    is_about_output,
    open_closed_streams,
    settle_streams,
)
from edgeagent.supported import check_system
from edgeagent.terminal.text import accept_all, clean

if TYPE_CHECKING:
    from collections.abc import Sequence

DESCRIPTION = "Train one model together on the laptops, desktops and Jetsons in this room."
READER_GONE = 141  # exit status: 128 + SIGPIPE, of which other programs die then
EPILOG = """\
first steps:
  edgeagent demo                                  see it all on this machine
  export EDGEAGENT_TOKEN=$(edgeagent token new)   the cluster's secret: make it
                                                  once, set it on each device
  edgeagent invite, edgeagent join CODE           or pair two devices by a code
  edgeagent run digits                            the same on each device
  edgeagent status                                who is there, how far it is

exit status: 0 done or left gracefully, 2 wrong usage or configuration,
130 interrupted before anything began, 141 nobody reads the output any more,
1 any other failure; each failure is one line on stderr.
`edgeagent COMMAND --help` explains a command.
"""


def build_parser() -> Parser:
    """Return the parser of the whole command line."""
    parser = Parser(
        prog="edgeagent",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"edgeagent {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for command in COMMANDS:
        command.add_parser(commands)
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the parsed command line; raise `UsageError` if it is wrong.

    What follows the first `--` is for the user's script and ends up in `script_arguments`. It is
    cut off before argparse sees it, because the script may have options of the same names.
    """
    own, separator, rest = list(argv), False, []
    if "--" in own:
        cut = own.index("--")
        own, separator, rest = own[:cut], True, own[cut + 1 :]
    args, unknown = build_parser().parse_known_args(own)
    if unknown:
        raise UsageError(_about_unknown(args, own, rest, unknown))
    if args.command is None:
        raise UsageError("no command given (see `edgeagent --help`)")
    if separator and args.command not in ("run", "service"):
        raise UsageError(f"`edgeagent {args.command}` takes no arguments after --")
    args.script_arguments = rest
    args.parser = build_parser  # for the command that describes the command line to a shell
    args.parse = parse  # for the command that keeps a command line to be run later
    return args


def _about_unknown(
    args: argparse.Namespace, typed: Sequence[str], rest: Sequence[str], unknown: Sequence[str]
) -> str:
    """Return what to tell the user of arguments that the command does not know. `typed` is what
    stands before `--`, and `rest` what stands behind it."""
    words = [args.command, getattr(args, "action", None)]
    command = " ".join(["edgeagent", *filter(None, words)])
    said = f"unrecognized arguments: {shlex.join(unknown)} (see `{command} --help`)"
    job = getattr(args, "job", None)
    if args.command != "run" or job is None or job in BUILT_IN_JOBS:
        return said
    if job not in typed[: list(typed).index(unknown[0])]:
        return said
    left, known = list(unknown), []
    for word in typed:
        if left and word == left[0]:
            left.pop(0)
        else:
            known.append(word)
    example = shlex.join(["edgeagent", *known, "--", *unknown, *rest])
    return f"{said}; arguments of the script itself go after --, as in: {example}"


def run_command(argv: Sequence[str]) -> int:
    """Run the command line `argv`; return the exit status."""
    open_closed_streams()
    accept_all(sys.stdout, sys.stderr)
    try:
        status = _executed(argv)
        sys.stdout.flush()
        return status
    except EdgeAgentError as error:
        complain(clean(str(error)))
        return error.exit_status
    except KeyboardInterrupt:
        complain("stopped by Ctrl+C")
        return 1
    except BrokenPipeError:
        return READER_GONE
    except OSError as error:
        if not is_about_output(error):
            raise
        complain(f"the output cannot be written: {error.strerror}")
        return 1
    finally:
        settle_streams()


def _executed(argv: Sequence[str]) -> int:
    try:
        args = parse(argv)
        check_system()
        check_protocols()
        status: int = args.execute(args)
    except SystemExit as stop:  # --help, --version
        return stop.code if isinstance(stop.code, int) else 0
    return status
