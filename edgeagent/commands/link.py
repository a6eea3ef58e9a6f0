"""`edgeagent link add` and `link remove`: the link between this agent and another member.

The command ends when the cluster trains with the change. The wait is bounded.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from edgeagent.commands.options import (
    add_actions,
    add_agent_option,
    add_command,
    chosen_agent,
    node_argument,
)
from edgeagent.errors import UsageError
from edgeagent.terminal.text import clean

if TYPE_CHECKING:
    from edgeagent.commands.options import Commands

DESCRIPTION = """\
Add or remove a direct link between the agent on this device and another member.
The cluster takes the change over between two steps, and nobody stops training.
NODE is the member's name, or at least 4 digits that its id begins with (see
`edgeagent status --json`).
"""
EXAMPLES = """\
  edgeagent link add bob
  edgeagent link remove bob
  edgeagent link add bob --name alice    when several agents run on this device
"""
ADD = """\
Connect the agent on this device with another member, and keep them connected.
Waits until the cluster trains with the link.
"""
REMOVE = """\
Disconnect the agent on this device from another member, and keep them apart
until `link add`. Refused if the cluster would fall into two parts. Waits until
the cluster trains without the link.
"""


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "link",
        execute,
        summary="add or remove a link between this agent and another member",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    for action in add_actions(
        parser,
        ("add", "connect to a member", ADD),
        ("remove", "disconnect from a member", REMOVE),
    ):
        action.add_argument("node", metavar="NODE", type=node_argument, help="the other member")
        add_agent_option(action)


def execute(args: argparse.Namespace) -> int:
    """Ask the agent, and wait for the change; return the exit status."""
    if args.action is None:
        raise UsageError("say what to do with links: `edgeagent link add NODE` or `link remove`")
    from edgeagent.commands.changing import see_through
    from edgeagent.local.api import ask_for_link

    agent = chosen_agent(args.name, os.environ)
    wanted = args.action == "add"
    done = see_through(agent, ask_for_link(agent.socket_path, args.node, wanted))
    how = "added" if wanted else "removed"
    print(clean(f"link to {done['node']} {how}: in force since step {done['step']}"))
    return 0
