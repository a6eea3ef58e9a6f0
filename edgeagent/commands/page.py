"""`edgeagent page`: opens the web page of the agent on this device in a browser.

The address is printed in any case, since a browser may run elsewhere or not at all. It contains a
code that can be used once.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from edgeagent.commands.options import add_agent_option, add_command, chosen_agent

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from edgeagent.commands.options import Commands

DESCRIPTION = """\
Open the web page of the agent on this device: the cluster as a picture, loss
and samples per second, who is waited for and why, joins, the log, and buttons
to leave, to add and remove links and to expel members. The agent serves it to
this device only. The printed address can be opened once, within 5 minutes;
whoever opens it can do what the page can.
"""
EXAMPLES = """\
  edgeagent page
  edgeagent page --name alice         when several agents run on this device
  edgeagent page --no-open            print the address only
from another device (PORT is the number in the address that is printed):
  ssh -L PORT:127.0.0.1:PORT DEVICE   then open the address on this side
"""


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "page",
        execute,
        summary="open the web page of the agent on this device",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    parser.add_argument("--no-open", action="store_true", help="print the address only")
    add_agent_option(parser)


def execute(args: argparse.Namespace) -> int:
    """Print the page's address and have a browser open it; return the exit status."""
    from edgeagent.local.api import ask_for_page

    url = ask_for_page(chosen_agent(args.name, os.environ).socket_path)
    print(url, flush=True)
    if not args.no_open and not (has_screen(os.environ) and _opened(url)):
        print("edgeagent: no browser was found: open the printed address in one", file=sys.stderr)
    return 0


def has_screen(environment: Mapping[str, str], platform: str = sys.platform) -> bool:
    """Return whether a browser with a window can open here; one in the terminal would take the
    terminal over, and cannot show the page."""
    if platform.startswith("linux"):
        return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))
    return True


def _opened(url: str) -> bool:
    import webbrowser

    return webbrowser.open(url)
