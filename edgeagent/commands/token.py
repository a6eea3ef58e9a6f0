"""`edgeagent token new`, `show` and `rotate`: makes a token, shows or replaces that of a cluster.

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
    node_name,
)
from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.terminal.text import clean

if TYPE_CHECKING:
    from edgeagent.commands.options import Commands

DESCRIPTION = """\
The secret that lets devices into a cluster: 128 random bits and a checksum.
Whoever holds it may join; give it to each device in the environment variable
EDGEAGENT_TOKEN or in a file; `edgeagent invite` passes it on unseen.
"""
EXAMPLES = """\
  export EDGEAGENT_TOKEN=$(edgeagent token new)
  (umask 077; edgeagent token new > token)        for run JOB --token-file token
  edgeagent token rotate                          while the cluster trains
  edgeagent token show --cluster lab              the one that is kept here
"""
NEW = "Print a new token."
SHOW = """\
Print the token of the agent on this device as it is now, or, if none runs, the
one that is kept here for the cluster's name. `edgeagent invite` gives it to one
device without showing it.
"""
_SHOWN = """\
edgeagent: warning: whoever sees this token (on stdout) can join cluster {cluster} from now on
"""
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
        summary="make, show or change the secret that lets devices into a cluster",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    _, show, rotate = add_actions(
        parser,
        ("new", "print a new token", NEW),
        ("show", "print the token of the cluster", SHOW),
        ("rotate", "give the running cluster a new token, and print it", ROTATE),
    )
    add_agent_option(rotate)
    add_agent_option(show)
    show.add_argument(
        "--cluster",
        metavar="NAME",
        type=node_name,
        help='the cluster\'s name (default that of the agent here, else "default")',
    )


def execute(args: argparse.Namespace) -> int:
    """Print a new token; return the exit status."""
    if args.action is None:
        raise UsageError(
            "say what to do with tokens: `edgeagent token new`, `token show` or `token rotate`"
        )
    if args.action == "show":
        return _show(args)
    if args.action == "rotate":
        return _rotate(args)
    from edgeagent.transport.token import new_token

    print(new_token())
    return 0


def show_new_token(token: str) -> None:
    """Print the new token of a running cluster, and on stderr what to do with it."""
    print(token, flush=True)
    print(_WHAT_TO_DO, end="", file=sys.stderr)


def _show(args: argparse.Namespace) -> int:
    from edgeagent.commands.invite import agent_here
    from edgeagent.config import agent_config_from_environment, state_root
    from edgeagent.local.api import fetch_token
    from edgeagent.local.token_store import stored_token

    agent = agent_here(args.cluster, args.name)
    if agent is not None:
        cluster, token = agent.cluster, fetch_token(agent.socket_path)["token"]
    else:
        cluster = args.cluster or agent_config_from_environment(os.environ).cluster
        kept = stored_token(state_root(os.environ), cluster)
        if kept is None:
            raise EdgeAgentError(
                f"no agent of cluster {cluster!r} runs on this device, and no token of it is kept"
            )
        token = kept
    print(_SHOWN.format(cluster=repr(clean(cluster))), end="", file=sys.stderr, flush=True)
    print(token, flush=True)
    return 0


def _rotate(args: argparse.Namespace) -> int:
    from edgeagent.commands.changing import see_through
    from edgeagent.local.api import ask_for_new_token

    agent = chosen_agent(args.name, os.environ)
    done = see_through(agent, ask_for_new_token(agent.socket_path))
    show_new_token(done["token"])
    return 0
