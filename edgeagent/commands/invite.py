"""`edgeagent invite`: gives one other device the cluster's token, by a short code.

The code is the only thing on stdout. The command listens itself, also beside a running agent, so
that an agent has nothing to do with codes and nothing listens for them once the command has ended.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from edgeagent.commands.options import add_command, node_name
from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.terminal.text import clean, plural

if TYPE_CHECKING:
    import argparse

    from edgeagent.commands.options import Commands
    from edgeagent.local.state_dir import RunningAgent
    from edgeagent.transport.identity import Identity
    from edgeagent.transport.pairing import Offer
    from edgeagent.transport.pairing_listener import PairingListener

DEFAULT_MINUTES = 5
MOST_MINUTES = 60

DESCRIPTION = """\
Let one other device into the cluster. Prints a code of ten digits; type it on
that device, after `edgeagent join`, and it gets the cluster's token and keeps
it. Waits until that is done. The code is for one device and a few minutes, and
void after three wrong ones; who listens on the network learns nothing.

If no agent of the cluster runs here and no token is known, a new one is made
and kept, so the first two devices need nothing else than this.
"""
EXAMPLES = """\
  edgeagent invite                        the agent here, or cluster "default"
  edgeagent invite --cluster lab          a cluster of that name
  edgeagent invite --minutes 15
"""


def minutes(text: str) -> int:
    """Return `text` as a number of minutes that a code may live."""
    import argparse

    if not text.isascii() or not text.isdecimal() or len(text) > 4 or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    if int(text) > MOST_MINUTES:
        raise argparse.ArgumentTypeError(f"a code lives for {MOST_MINUTES} minutes at most")
    return int(text)


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "invite",
        execute,
        summary="let one other device into the cluster, by a short code",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    parser.add_argument(
        "--cluster",
        metavar="NAME",
        type=node_name,
        help='the cluster\'s name (default that of the agent here, else "default")',
    )
    parser.add_argument("--name", metavar="AGENT", help="which agent on this device, if several")
    parser.add_argument(
        "--minutes",
        metavar="N",
        type=minutes,
        default=DEFAULT_MINUTES,
        help=f"how long the code lives (default {DEFAULT_MINUTES}, at most {MOST_MINUTES})",
    )
    parser.add_argument(
        "--listen",
        metavar="[HOST:]PORT",
        help="where to wait (default every address, first free port from 7432)",
    )
    parser.add_argument("--no-mdns", action="store_true", help="do not announce the invitation")


def execute(args: argparse.Namespace) -> int:
    """Show a code and wait until it is used; return the exit status."""
    from edgeagent.config import listen_address
    from edgeagent.local.state_dir import first_slot
    from edgeagent.runtime import agent_runner
    from edgeagent.transport.identity import load_identity

    if args.listen:
        listen_address(args.listen)
    agent = agent_here(args.cluster, args.name)
    offer, folder = _offer(args, agent)
    identity = load_identity(folder or first_slot(_root(), offer.cluster))
    with agent_runner() as runner:
        return runner.run(_invite(args, offer, identity))


def agent_here(cluster: str | None, name: str | None) -> RunningAgent | None:
    """Return the running agent that is meant, None if none of that cluster runs.

    Raises `UsageError` if it is not clear which, or if none is called `name`.
    """
    from edgeagent.local.api import choose_agent
    from edgeagent.local.state_dir import running_agents

    every = tuple(running_agents(_root()))
    agents = tuple(a for a in every if cluster in (None, a.cluster))
    if not agents and name is None:
        return None
    if not agents and every:
        running = ", ".join(f"{a.cluster}/{a.name}" for a in every)
        raise UsageError(f"no agent of cluster {cluster!r} runs on this device; running: {running}")
    if name is None and len({agent.cluster for agent in agents}) == 1:
        return agents[0]  # all of them hold the same token
    return choose_agent(agents, name)


def _root() -> str:
    from edgeagent.config import state_root

    return state_root(os.environ)


def _offer(args: argparse.Namespace, agent: RunningAgent | None) -> tuple[Offer, str]:
    """Return what is offered, and the folder with the inviting agent's key, "" if none runs."""
    from edgeagent.config import agent_config_from_environment, default_name
    from edgeagent.local.api import fetch_token
    from edgeagent.local.state_dir import cluster_folder
    from edgeagent.local.token_store import keep_token, stored_token
    from edgeagent.transport.pairing import Offer
    from edgeagent.transport.token import new_token, parse_token

    if agent is not None:
        text = fetch_token(agent.socket_path)["token"]
        folder = os.path.join(cluster_folder(_root(), agent.cluster), f"slot-{agent.slot}")
        return Offer(agent.cluster, parse_token(text), agent.name), folder
    base = agent_config_from_environment(os.environ)
    cluster = args.cluster or base.cluster
    known = base.token or stored_token(_root(), cluster)
    if known is None:
        known = new_token()
        path = keep_token(_root(), cluster, known)
        _say(f"made a token for cluster {cluster!r}; it is kept in {path}")
    try:
        token = parse_token(known)
    except UsageError as error:
        raise UsageError(f"EDGEAGENT_TOKEN: {error}") from None
    return Offer(cluster, token, base.name or default_name()), ""


async def _invite(args: argparse.Namespace, offer: Offer, identity: Identity) -> int:
    """Wait until the code is used; raise `EdgeAgentError` if it comes to nothing."""
    import asyncio

    from edgeagent.config import PAIRING_PORT
    from edgeagent.transport.complaints import Complaints
    from edgeagent.transport.discovery import PAIRING_SERVICE, Discovery
    from edgeagent.transport.pairing_code import new_code
    from edgeagent.transport.pairing_listener import PairingListener
    from edgeagent.transport.sockets import listen_pair, told_addresses

    listening = listen_pair(args.listen or "", first_port=PAIRING_PORT)
    for spare in listening.peer:  # a pair is asked for, so that ports are numbered as agents' are
        spare.close()
    addresses = told_addresses(listening.join)
    code, complaints = new_code(), Complaints(_say)
    seconds = 60.0 * args.minutes
    listener = PairingListener(listening.join, identity, code, offer, seconds, _say, complaints)
    waiting = asyncio.create_task(listener.run())
    discovery = None
    if not args.no_mdns:
        discovery = Discovery(
            code.channel,
            addresses,
            lambda _: None,
            _say,
            listen=args.listen or "",
            service=PAIRING_SERVICE,
            otherwise=f"add --peer {addresses[0]} to the command on the other device",
        )
        await discovery.start()
    try:
        _show(code.text, addresses[0], offer.cluster, args.minutes)
        state = await waiting
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        if discovery is not None:
            await discovery.stop()
        complaints.close()
    return _conclude(listener, state.value, offer.cluster)


def _show(code: str, address: str, cluster: str, alive: int) -> None:
    _say(f"type this on the other device within {plural(alive, 'minute')}:")
    _say(f"    edgeagent join {code}")
    _say(f"where it finds nothing, add    --peer {address}")
    _say(f"it gets the token of cluster {cluster!r} and may join from then on; Ctrl+C ends this")
    print(code, flush=True)


def _conclude(listener: PairingListener, state: str, cluster: str) -> int:
    if state == "used":
        who = f"{listener.invitee} ({listener.host})"
        if listener.stored:
            _say(f"{who} has the token of cluster {cluster!r} now")
            return 0
        raise EdgeAgentError(
            f"{who} was sent the token and has not said that it keeps it: look there, and invite "
            "it again if it has not"
        )
    if state == "void":
        raise EdgeAgentError(
            "the code is void: somebody tried too often. Nobody got the token; invite again"
        )
    raise EdgeAgentError("the code has expired and nobody got the token: invite again")


def _say(line: str) -> None:
    print(f"edgeagent: {clean(line)}", file=sys.stderr, flush=True)
