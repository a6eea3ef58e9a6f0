"""`edgeagent expel NODE`: removes another member for good.

The command ends when the member is out and the token that it knows is of no use any more. The new
token is the only thing on stdout, so that a shell can take it.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from edgeagent.commands.options import add_agent_option, add_command, chosen_agent, node_argument
from edgeagent.terminal.text import clean

if TYPE_CHECKING:
    import argparse

    from edgeagent.commands.options import Commands

DESCRIPTION = """\
Remove another member from the cluster. The others go on without it, and at once
take over a new token, which is printed: the old one, which the expelled device
knows, lets nobody in any more. Waits until that is done.
NODE is the member's name, or at least 4 digits that its id begins with (see
`edgeagent status --json`). For this device itself use `edgeagent leave`.
"""
EXAMPLES = """\
  edgeagent expel carol
  edgeagent expel carol --name alice     when several agents run on this device
"""


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "expel",
        execute,
        summary="remove another member, and change the token so that it stays out",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    parser.add_argument("node", metavar="NODE", type=node_argument, help="the member to remove")
    add_agent_option(parser)


def execute(args: argparse.Namespace) -> int:
    """Ask the agent, and wait until the member is out; return the exit status."""
    from edgeagent.commands.changing import see_through
    from edgeagent.commands.token import show_new_token
    from edgeagent.local.api import ask_to_expel

    agent = chosen_agent(args.name, os.environ)
    done = see_through(agent, ask_to_expel(agent.socket_path, args.node))
    out = clean(f"{done['node']} is expelled: the others train without it since step")
    print(f"edgeagent: {out} {done['step']}", file=sys.stderr, flush=True)
    show_new_token(done["token"])
    return 0
