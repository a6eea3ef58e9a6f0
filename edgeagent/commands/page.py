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
this device only, unless --remote is given. The printed address can be opened
once, within 5 minutes; whoever opens it can do what the page can.

--remote is for a browser elsewhere, on a phone for example. The agent then
listens at this device's address, by TLS, until it ends. Nobody vouches for its
certificate, so the browser warns: compare the fingerprint that is printed with
the one that the browser shows before you go on.
"""
EXAMPLES = """\
  edgeagent page
  edgeagent page --name alice         when several agents run on this device
  edgeagent page --no-open            print the address only
  edgeagent page --remote             for a browser on another device
the same over SSH, which checks the device for you (PORT is the number in the
address that `edgeagent page` prints there):
  ssh -L PORT:127.0.0.1:PORT DEVICE   then open the address on this side
"""
_REMOTE = """\
edgeagent: open it on the other device, once, within 5 minutes. Its browser will warn that it does
not know the certificate: go on only if its SHA-256 fingerprint is
  {}"""


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
    parser.add_argument(
        "--remote", action="store_true", help="serve it to a browser on another device, by TLS"
    )
    add_agent_option(parser)


def execute(args: argparse.Namespace) -> int:
    """Print the page's address and have a browser open it; return the exit status."""
    from edgeagent.local.api import ask_for_page

    found = ask_for_page(chosen_agent(args.name, os.environ).socket_path, remote=args.remote)
    url = found.url
    print(url, flush=True)
    if args.remote:
        print(_REMOTE.format(found.fingerprint), file=sys.stderr)
        return 0
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
