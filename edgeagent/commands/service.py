"""`edgeagent service install`, `remove` and `status`: agents that the system starts by itself.

It writes one file for systemd or launchd and starts nothing: the commands that do are printed, so
that the user sees what changes on the device. The token is never part of that file.
"""

from __future__ import annotations

import argparse
import os
import stat
import sys
from typing import TYPE_CHECKING

from edgeagent.commands.options import Parser, add_actions, add_command, present_folder
from edgeagent.config import RUN_VARIABLE, SOCKET_VARIABLE, TOKEN_VARIABLE, state_root
from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.terminal.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from edgeagent.commands.options import Commands
    from edgeagent.services.systems import System
    from edgeagent.services.units import Service

DESCRIPTION = """\
Have the system start `edgeagent run` by itself, at log-in or at boot, and again
after a failure: as a user service of systemd (Linux) or as an agent of launchd
(macOS). Stopping the service leaves the cluster gracefully, as Ctrl+C does.
"""
EXAMPLES = """\
  edgeagent service install digits --cluster lab
  edgeagent service install --dry-run train.py --join-only -- --width 64
  edgeagent service status
  edgeagent service remove digits
"""
INSTALL = """\
Write the file by which the system starts `edgeagent run JOB` in the present
folder, with these options and the EDGEAGENT_... variables that are set now, and
say what to type next. Options of `install` come before JOB or after it; all
others are those of `edgeagent run`, and so is what follows --. The command is
checked as `edgeagent run` would check it.

The service goes on from the file of --save if there is one (--continue). Its
token is read from --token-file, which only you may be able to read, or from
where pairing keeps it; one in EDGEAGENT_TOKEN is put there.
"""
REMOVE = "Remove that file again, and say how to stop the agent."
STATUS = "List the services that are installed here, and what the system says of them."
_AS = "the service's name (default that of the job)"
# Variables that a service has, beside those of edgeagent, if they are set when it is installed.
_KEPT_VARIABLES = ("XDG_STATE_HOME", "XDG_CACHE_HOME")
_NEVER = (TOKEN_VARIABLE, RUN_VARIABLE, SOCKET_VARIABLE)


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "service",
        execute,
        summary="have the system start an agent at log-in or boot",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    install, remove, _ = add_actions(
        parser,
        ("install", "write the file of a service", INSTALL),
        ("remove", "remove it", REMOVE),
        ("status", "list services and what the system says of them", STATUS),
    )
    install.usage = "edgeagent service install JOB [options of run] [-- script arguments]"
    _add_install_options(install)
    install.add_argument(
        "run", metavar="JOB ...", nargs=argparse.REMAINDER, help="job and options of `run`"
    )
    remove.add_argument(
        "name", metavar="NAME", nargs="?", help="which service (default: the only one)"
    )


def _add_install_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--as", dest="label", metavar="NAME", help=_AS)
    parser.add_argument(
        "--dry-run", action="store_true", help="print the file on stdout and write nothing"
    )
    parser.add_argument("--replace", action="store_true", help="write a service of this name anew")


def execute(args: argparse.Namespace) -> int:
    """Do one of the three; return the exit status."""
    if args.action is None:
        raise UsageError(
            "say what to do: `edgeagent service install JOB`, `service remove` or `service status`"
        )
    from edgeagent.services.systems import system_for

    if args.action != "install" and args.script_arguments:
        raise UsageError(f"`edgeagent service {args.action}` takes no arguments after --")
    system = system_for(sys.platform, os.environ, os.getuid())
    if args.action == "install":
        return _install(args, system, os.environ)
    return _remove(args, system) if args.action == "remove" else _status(system)


# --- install ----------------------------------------------------------------------------------


def _install(args: argparse.Namespace, system: System, environment: Mapping[str, str]) -> int:
    from edgeagent.services.systems import install

    own, typed = _split(args.run)
    dry = args.dry_run or own.dry_run
    service, token = planned(
        args.parse, typed, args.script_arguments, own.label or args.label, system, environment
    )
    if dry:
        sys.stdout.buffer.write(system.text(service))
        return 0
    for line in token.keep():
        _say(line)
    path = install(system, service, replaces=args.replace or own.replace)
    _say(f"written: {path}; type next:")
    for line in system.after_install(service.name):
        print(clean(line))
    return 0


def _split(typed: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return (options of `install` among `typed`, all others in their order)."""
    parser = Parser(prog="edgeagent service install", add_help=False, allow_abbrev=False)
    _add_install_options(parser)
    own, others = parser.parse_known_args(list(typed))
    return own, others


def planned(
    parse: Callable[[Sequence[str]], argparse.Namespace],
    typed: Sequence[str],
    script_arguments: Sequence[str],
    label: str | None,
    system: System,
    environment: Mapping[str, str],
) -> tuple[Service, TokenPlace]:
    """Return the service that runs `edgeagent run` with what was typed, and where its token is.

    `parse` is the parser of the whole command line.

    Raises `UsageError` for whatever `edgeagent run` would refuse, and for a token that others could
    read.
    """
    from edgeagent.commands.run import agent_config, trainer_config
    from edgeagent.launch import module_command, package_environment, resolve_job
    from edgeagent.services.units import Service, name_of_job, service_name

    if not typed or typed[0].startswith("-"):
        raise UsageError("name the job first: `edgeagent service install JOB [options of run]`")
    run = parse(["run", *typed, *(["--", *script_arguments] if script_arguments else [])])
    if run.dry_run or run.json:
        raise UsageError("--json is for `edgeagent run --dry-run`; a service trains")
    job = resolve_job(run.job, run.script_arguments)
    if run.token is not None:
        raise UsageError(
            "--token would stand in the service's file: write the token to a file that only you "
            "can read, and give --token-file FILE"
        )
    config = agent_config(run, job, environment)
    trainer = trainer_config(run, job, environment)
    extra = [] if run.resume or run.continues or not trainer.save else ["--continue"]
    command = [*module_command("edgeagent"), "run", *typed, *extra]
    command += ["--", *script_arguments] if script_arguments else []
    name = service_name(label) if label is not None else name_of_job(job.name)
    kept = {k: v for k, v in environment.items() if v and _is_kept(k)}
    if path := package_environment(environment).get("PYTHONPATH"):
        kept["PYTHONPATH"] = path
    service = Service(
        name, tuple(command), present_folder(), tuple(sorted(kept.items())), system.log(name)
    )
    place = TokenPlace(run.token_file, config.token or "", config.cluster, environment)
    return service, place


def _is_kept(variable: str) -> bool:
    if variable in _NEVER:
        return False
    return variable.startswith("EDGEAGENT_") or variable in _KEPT_VARIABLES


class TokenPlace:
    """Where a service will find its token. Raises `UsageError` if others could read that file."""

    def __init__(
        self, file: str | None, token: str, cluster: str, environment: Mapping[str, str]
    ) -> None:
        self._file, self._token, self._cluster = file, token, cluster
        self._root = state_root(environment)
        if file is not None and stat.S_IMODE(os.stat(file).st_mode) & 0o077:
            raise UsageError(f"others can read {file}: `chmod 600 {file}` first")

    def keep(self) -> list[str]:
        """Keep a token that is only in the environment; return what to tell the user."""
        from edgeagent.local.token_store import keep_token, stored_token, token_path
        from edgeagent.transport.token import parse_token, token_text

        if self._file is not None:
            return []
        own = token_text(parse_token(self._token))  # as it is compared when it is renewed
        there = stored_token(self._root, self._cluster)
        if there is None:
            path = keep_token(self._root, self._cluster, own)
            return [f"the token is kept in {path}, which only you can read"]
        if token_text(parse_token(there)) != own:
            raise UsageError(
                f"the token in {TOKEN_VARIABLE} is another one than that which is kept for cluster "
                f"{self._cluster!r} ({token_path(self._root, self._cluster)}): unset the variable, "
                "or give --token-file FILE"
            )
        return []


# --- remove, status ---------------------------------------------------------------------------


def _remove(args: argparse.Namespace, system: System) -> int:
    from edgeagent.services.systems import installed, remove
    from edgeagent.services.units import service_name

    name = args.name
    if name is None:
        names = installed(system)
        if not names:
            raise EdgeAgentError(f"no service of edgeagent is installed in {system.folder}")
        if len(names) > 1:
            raise UsageError(f"several services are installed, say which: {', '.join(names)}")
        name = names[0]
    path = remove(system, service_name(name))
    _say(f"removed: {path}; if it runs, type next:")
    for line in system.after_remove(name):
        print(clean(line))
    return 0


def _status(system: System) -> int:
    from edgeagent.services.systems import installed

    names = installed(system)
    if not names:
        print(clean(f"no service of edgeagent is installed in {system.folder}"))
    for name in names:
        print(clean(f"{name}: {system.state(name)}"))
        print(clean(f"  {os.path.join(system.folder, system.file_name(name))}"))
    return 0


def _say(line: str) -> None:
    print(f"edgeagent: {clean(line)}", file=sys.stderr, flush=True)
