"""`edgeagent status`: what the agent on this device knows.

Law: one answer of one agent, shown for people or, with --json, as it came.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from edgeagent.commands.options import add_command, chosen_agent
from edgeagent.plain_json import json_text

if TYPE_CHECKING:
    import argparse

    from edgeagent.commands.options import Commands

DESCRIPTION = """\
Show the members, links, scheduler and progress as the agent on this device
sees them.
"""
EXAMPLES = """\
  edgeagent status
  edgeagent status --name alice       when several agents run on this device
  edgeagent status --json | jq .loss
"""


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "status",
        execute,
        summary="members, links, scheduler and progress, as this device sees them",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--name", metavar="NAME", help="which agent, if several run")


def execute(args: argparse.Namespace) -> int:
    """Show the status; return the exit status."""
    from edgeagent.local.api import fetch_status

    status = fetch_status(chosen_agent(args.name, os.environ).socket_path)
    if args.json:
        print(json_text(status))
        return 0
    from edgeagent.terminal.status_view import print_status

    print_status(status, sys.stdout)
    return 0
