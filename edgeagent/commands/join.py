"""`edgeagent join CODE`: takes the cluster's token from the device that has shown the code.

It trains nothing: the token is kept under the cluster's name, and the command that trains is
printed, as it needs to know the job.
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

from edgeagent.commands.options import add_command
from edgeagent.errors import EdgeAgentError
from edgeagent.terminal.text import clean

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from edgeagent.commands.options import Commands
    from edgeagent.transport.pairing import Offer

DESCRIPTION = """\
Pair this device with the one on which `edgeagent invite` waits: type the code
that it shows. This device gets the cluster's token and keeps it under the
cluster's name, so that from now on `edgeagent run JOB` finds it. The inviting
device is found by multicast DNS, or named with --peer.
"""
EXAMPLES = """\
  edgeagent join 27-4819-2730
  edgeagent join 27-4819-2730 --peer 192.168.1.20:7430
"""


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "join",
        execute,
        summary="get into a cluster by the code that `edgeagent invite` shows elsewhere",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    parser.add_argument("code", metavar="CODE", help="the ten digits; dashes may be left out")
    parser.add_argument(
        "--peer", metavar="HOST:PORT", help="address of the inviting device, as it shows it"
    )
    parser.add_argument(
        "--replace",
        action="store_true",
        help="keep the token even if another is kept for a cluster of the same name",
    )


def execute(args: argparse.Namespace) -> int:
    """Pair, keep the token and say what to type next; return the exit status."""
    from edgeagent.config import (
        DEFAULT_CLUSTER,
        agent_config_from_environment,
        default_name,
        split_address,
        state_root,
    )
    from edgeagent.local.token_store import keep_token
    from edgeagent.runtime import agent_runner
    from edgeagent.transport.pairing_client import Invitee
    from edgeagent.transport.pairing_code import parse_code
    from edgeagent.transport.token import token_text

    code, root = parse_code(args.code), state_root(os.environ)
    if args.peer:
        split_address(args.peer)
    name = agent_config_from_environment(os.environ).name or default_name()
    kept: list[str] = []

    def store(offer: Offer) -> None:
        kept.append(keep_token(root, offer.cluster, token_text(offer.token)))

    invitee = Invitee(code, name, _agreement(root, args.replace), store)
    with agent_runner() as runner:
        pairing = invitee.pair_with(args.peer) if args.peer else invitee.find()
        offer = runner.run(pairing)
    cluster = "" if offer.cluster == DEFAULT_CLUSTER else f" --cluster {shlex.quote(offer.cluster)}"
    _say(f"{offer.inviter} lets this device into cluster {offer.cluster!r}")
    _say(f"its token is kept in {kept[-1]}; from now on this trains with it:")
    print(clean(f"edgeagent run JOB{cluster}"), flush=True)
    return 0


def _agreement(root: str, replaces: bool) -> Callable[[str, str], None]:
    """Return the check of an offer, made before the token is sent."""
    from edgeagent.config import is_name
    from edgeagent.local.token_store import stored_token, token_path

    def agree(cluster: str, inviter: str) -> None:
        if not is_name(cluster):
            raise EdgeAgentError(f"{inviter} offers a cluster without a usable name")
        if not replaces and stored_token(root, cluster) is not None:
            raise EdgeAgentError(
                f"a token of a cluster {cluster!r} is kept here already "
                f"({token_path(root, cluster)}): --replace puts that of {inviter} in its place; "
                "the code is still good"
            )

    return agree


def _say(line: str) -> None:
    print(f"edgeagent: {clean(line)}", file=sys.stderr, flush=True)
