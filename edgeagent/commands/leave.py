"""`edgeagent leave`: the agent on this device leaves the cluster gracefully.

The command ends when the agent has ended. The wait is bounded.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from edgeagent.commands.options import add_command, chosen_agent
from edgeagent.errors import EdgeAgentError

if TYPE_CHECKING:
    import argparse

    from edgeagent.commands.options import Commands

LEAVE_TIMEOUT_S = 60.0
POLL_S = 0.1

DESCRIPTION = """\
Ask the agent on this device to leave, and wait until it has. The others go on;
no sample is lost. The model is saved as at the end of a run. The same as
Ctrl+C in the agent's terminal.
"""
EXAMPLES = """\
  edgeagent leave
  edgeagent leave --name alice        when several agents run on this device
"""


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "leave",
        execute,
        summary="leave the cluster gracefully with the agent on this device",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    parser.add_argument("--name", metavar="NAME", help="which agent, if several run")


def execute(args: argparse.Namespace) -> int:
    """Ask the agent to leave and wait until it has ended; return the exit status."""
    from edgeagent.local.api import NoAgent, ask_to_leave, fetch_status

    agent = chosen_agent(args.name, os.environ)
    ask_to_leave(agent.socket_path)
    deadline = time.monotonic() + LEAVE_TIMEOUT_S
    with contextlib.suppress(NoAgent):
        while fetch_status(agent.socket_path):
            if time.monotonic() > deadline:
                raise EdgeAgentError(
                    f"{agent.name} is still leaving after {LEAVE_TIMEOUT_S:.0f} s, perhaps because "
                    "it saves a large model: it goes on by itself, `edgeagent leave` waits again"
                )
            time.sleep(POLL_S)
    print(f"{agent.name} has left")
    return 0
