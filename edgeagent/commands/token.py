"""`edgeagent token new`: makes a cluster's token.

Law: the token is the only thing on stdout, so that a shell can take it.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from edgeagent.commands.options import EXIT_STATUSES, add_command
from edgeagent.errors import UsageError

if TYPE_CHECKING:
    from edgeagent.commands.options import Commands

DESCRIPTION = """\
Make the secret that lets devices into a cluster: 128 random bits and a
checksum. Whoever holds it may join; give it to each device in the environment
variable EDGEAGENT_TOKEN or in a file.
"""
EXAMPLES = """\
  export EDGEAGENT_TOKEN=$(edgeagent token new)
  (umask 077; edgeagent token new > token)        for run JOB --token-file token
"""


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "token",
        execute,
        summary="make the secret that lets devices into a cluster",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action")
    actions.add_parser(
        "new",
        help="print a new token",
        description="Print a new token.",
        epilog=EXIT_STATUSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def execute(args: argparse.Namespace) -> int:
    """Print a new token; return the exit status."""
    if args.action is None:
        raise UsageError("say what to do with tokens: `edgeagent token new`")
    from edgeagent.transport.token import new_token

    print(new_token())
    return 0
