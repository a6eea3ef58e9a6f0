"""`edgeagent doctor`: looks at what training with others needs, and says what to do.

Nothing is changed, on no device. A peer that is named is asked as by an agent that looks for it.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from edgeagent.commands.options import add_command, add_interface_option, node_name
from edgeagent.config import DEFAULT_CLUSTER, TOKEN_VARIABLE, listen_address, split_address
from edgeagent.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from edgeagent.commands.options import Commands
    from edgeagent.doctor.examination import Wanted
    from edgeagent.doctor.facts import TokenFact

DESCRIPTION = """\
Look at what training with others needs, and say what to do about each trouble:
network interfaces and which one others are told first, multicast out and in,
ports and firewall, clock, token, job, torch, disk, memory. With --peer also
whether that agent is reached and reaches this device, speaks the same protocol
version, accepts the token, is seen by multicast, and whether large packets get
through. Nothing is changed; it takes some seconds.

The exit status is 0 if no check has failed, and 1 if one has. Each check ends
as ok, warning, failed, or "not known", if it could not be made.
"""
EXAMPLES = """\
  edgeagent doctor
  edgeagent doctor train.py --peer 192.168.1.20:7430
  edgeagent doctor --interface eth0
  edgeagent doctor --json | jq '.findings[] | select(.verdict != "ok")'
"""


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "doctor",
        execute,
        summary="look for trouble with network, token, torch and disk, and say what to do",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    parser.add_argument("job", metavar="JOB", nargs="?", help="a job or script to look for")
    parser.add_argument("--peer", metavar="HOST:PORT", default="", help="an agent to look at")
    add_interface_option(parser)
    parser.add_argument("--listen", metavar="[HOST:]PORT", help="as for `edgeagent run`")
    parser.add_argument(
        "--cluster", metavar="NAME", type=node_name, help='the cluster\'s name (default "default")'
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="file that holds the token (else EDGEAGENT_TOKEN, or the one kept for the cluster)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(token=None)


def execute(args: argparse.Namespace) -> int:
    """Look at everything and print what was found; return the exit status."""
    wanted = resolve(args, os.environ)  # says what is wrong with the command line at once
    import asyncio

    from edgeagent.doctor.device_findings import device_findings
    from edgeagent.doctor.examination import examine
    from edgeagent.doctor.findings import failed
    from edgeagent.doctor.peer_findings import peer_findings

    if not args.json and sys.stderr.isatty():
        print("looking; this takes some seconds ...", file=sys.stderr)
    facts = asyncio.run(examine(wanted, os.environ))
    findings = [*device_findings(facts.device), *peer_findings(facts)]
    bad = failed(findings)
    if args.json:
        from edgeagent.plain_json import json_text

        listed = [asdict(finding) for finding in findings]
        print(json_text({"ok": not bad, "findings": listed, "facts": asdict(facts)}))
    else:
        from edgeagent.terminal.doctor_view import print_findings

        print_findings(findings, sys.stdout)
    return 1 if bad else 0


def resolve(args: argparse.Namespace, environment: Mapping[str, str]) -> Wanted:
    """Return what to look at; raise `UsageError` for an address that is none."""
    from edgeagent.commands.options import present_folder
    from edgeagent.doctor.examination import Wanted
    from edgeagent.doctor.facts import JobFact
    from edgeagent.launch import resolve_job

    present_folder()
    listen = args.listen if args.listen is not None else environment.get("EDGEAGENT_LISTEN", "")
    if args.peer:
        split_address(args.peer)
    listen_address(listen or "0")
    job = None
    if args.job is not None:
        try:
            resolve_job(args.job)
            job = JobFact(args.job)
        except UsageError as error:
            job = JobFact(args.job, str(error))
    fact, secret = look_at_token(args, environment)
    return Wanted(
        token=fact,
        secret=secret,
        cluster=args.cluster or environment.get("EDGEAGENT_CLUSTER") or DEFAULT_CLUSTER,
        job=job,
        peer=args.peer,
        interface=args.interface or environment.get("EDGEAGENT_INTERFACE", ""),
        listen=listen,
    )


def look_at_token(
    args: argparse.Namespace, environment: Mapping[str, str]
) -> tuple[TokenFact, bytes | None]:
    """Return where the token is and what is wrong with it, and its bytes if nothing is."""
    from edgeagent.commands.run import resolve_token
    from edgeagent.config import agent_config_from_environment, state_root
    from edgeagent.doctor.facts import TokenFact
    from edgeagent.local.token_store import stored_token
    from edgeagent.transport.token import parse_token

    source = f"--token-file {args.token_file}" if args.token_file else TOKEN_VARIABLE
    try:
        if not args.token_file and not environment.get(TOKEN_VARIABLE):
            cluster = args.cluster or agent_config_from_environment(environment).cluster
            source = f"the token that is kept for cluster {cluster!r}"
            if stored_token(state_root(environment), cluster) is None:
                return TokenFact(TOKEN_VARIABLE, given=False), None
        return TokenFact(source, given=True), parse_token(resolve_token(args, environment))
    except UsageError as error:
        problem = str(error).removeprefix(f"{source}: ")
        return TokenFact(source, given=True, problem=problem), None
