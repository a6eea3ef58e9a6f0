"""`edgeagent token new` and `token rotate`: makes a token, or replaces that of a cluster.

The token is the only thing on stdout, so that a shell can take it.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from edgeagent.commands.options import (
    add_actions,
    add_agent_option,
    add_command,
    chosen_agent,
)
from edgeagent.errors import UsageError

if TYPE_CHECKING:
    from edgeagent.commands.options import Commands

DESCRIPTION = """\
The secret that lets devices into a cluster: 128 random bits and a checksum.
Whoever holds it may join; give it to each device in the environment variable
EDGEAGENT_TOKEN or in a file.
"""
EXAMPLES = """\
  export EDGEAGENT_TOKEN=$(edgeagent token new)
  (umask 077; edgeagent token new > token)        for run JOB --token-file token
  edgeagent token rotate                          while the cluster trains
"""
NEW = "Print a new token."
ROTATE = """\
Give the cluster of the agent on this device a new token, and print it. All
members that run take it over at once and go on; the old one lets nobody in any
more. Devices that start from now on need the new one.
"""
_WHAT_TO_DO = """\
edgeagent: the cluster has a new token (on stdout), and the old one lets nobody in any more.
Devices that start from now on need it, in EDGEAGENT_TOKEN or --token-file; members that run
have it already. A member that is out of reach at present must be started again with it.
"""


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "token",
        execute,
        summary="make or change the secret that lets devices into a cluster",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    _, rotate = add_actions(
        parser,
        ("new", "print a new token", NEW),
        ("rotate", "give the running cluster a new token, and print it", ROTATE),
    )
    add_agent_option(rotate)


def execute(args: argparse.Namespace) -> int:
    """Print a new token; return the exit status."""
    if args.action is None:
        raise UsageError(
            "say what to do with tokens: `edgeagent token new` or `edgeagent token rotate`"
        )
    if args.action == "rotate":
        return _rotate(args)
    from edgeagent.transport.token import new_token

    print(new_token())
    return 0


def show_new_token(token: str) -> None:
    """Print the new token of a running cluster, and on stderr what to do with it."""
    print(token, flush=True)
    print(_WHAT_TO_DO, end="", file=sys.stderr)


def _rotate(args: argparse.Namespace) -> int:
    from edgeagent.commands.changing import see_through
    from edgeagent.local.api import ask_for_new_token

    agent = chosen_agent(args.name, os.environ)
    done = see_through(agent, ask_for_new_token(agent.socket_path))
    show_new_token(done["token"])
    return 0
