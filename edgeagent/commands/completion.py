"""`edgeagent completion SHELL`: prints what a shell needs to complete commands and options."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from edgeagent.commands.options import add_command
from edgeagent.errors import EdgeAgentError

if TYPE_CHECKING:
    import argparse

    from edgeagent.commands.options import Commands

SHELLS = ("bash", "zsh", "tcsh")
NO_SHTAB = "edgeagent completion needs shtab: install it with `pip install shtab`"

DESCRIPTION = """\
Print a script that makes a shell complete edgeagent's commands and options. It
needs the package shtab now, and nothing when the shell uses it.
"""
EXAMPLES = """\
  edgeagent completion bash > ~/.local/share/bash-completion/completions/edgeagent
  edgeagent completion zsh > "${fpath[1]}/_edgeagent"
"""


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "completion",
        execute,
        summary="print a completion script for a shell",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def execute(args: argparse.Namespace) -> int:
    """Print the script; return the exit status."""
    try:
        import shtab
    except ImportError:
        raise EdgeAgentError(NO_SHTAB) from None
    sys.stdout.write(shtab.complete(args.parser(), args.shell) + "\n")
    return 0
