"""The files by which a system starts an agent: a systemd user unit, a launchd property list.

Both are made from the same `Service`, without I/O, so that both can be tested on any system. Each
contains `MARK`, by which a later command knows that the file is ours. Neither contains a token.

The agent is stopped as by Ctrl+C: it hands back what it has not computed, saves the model and ends.
"""

from __future__ import annotations

import plistlib
import re
from dataclasses import dataclass

from edgeagent.errors import UsageError

MARK = "Written by `edgeagent service install`"
# A leaving agent ends the running micro-batch, and its trainer writes the model. systemd grants a
# whole user session 120 s at shutdown; more than that would have no effect there.
STOP_SECONDS = 120
RESTART_SECONDS = 30  # after a failure: the network may be back by then
# After so many failures within so many seconds the service stays down: what fails at once each time
# (a script that is gone, a wrong token) would otherwise be started for ever.
FAILURES, FAILURES_SECONDS = 5, 600

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PLAIN = re.compile(r"[A-Za-z0-9_@+:,./=-]+")  # words that systemd takes without quotes
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


@dataclass(frozen=True, slots=True)
class Service:
    """One agent that is to be started by the system.

    `command` begins with the absolute path of a program; `folder` is where it runs. `environment`
    has (name, value) pairs. `log` is the file for its output, where the system keeps none itself.
    """

    name: str
    command: tuple[str, ...]
    folder: str
    environment: tuple[tuple[str, str], ...] = ()
    log: str = ""

    def __post_init__(self) -> None:
        texts = (self.folder, *self.command, *(text for pair in self.environment for text in pair))
        if any("\0" in text for text in texts):
            raise UsageError("a service's command must not contain NUL")
        if not self.folder.isprintable() or self.folder != self.folder.strip():
            raise UsageError(f"the folder {self.folder!r} cannot stand in a unit: use another one")


def service_name(text: str) -> str:
    """Return `text` if it can name a service; raise `UsageError` otherwise."""
    if not _NAME.fullmatch(text):
        raise UsageError(
            f"{text!r} cannot name a service: use 1 to 64 letters, digits, dots, dashes and "
            "underscores, the first a letter or digit"
        )
    return text


def name_of_job(job: str) -> str:
    """Return a service's name made of a job's."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", job).strip("-._")[:64] or "job"


def systemd_unit(service: Service) -> str:
    """Return the text of a systemd user unit."""
    settings = [f"Environment={_word(f'{name}={value}')}" for name, value in service.environment]
    program, *arguments = service.command
    line = " ".join([_word(program), *(_word(a).replace("$", "$$") for a in arguments)])
    return "\n".join(
        [
            f"# {MARK}; `edgeagent service remove` removes it.",
            "[Unit]",
            f"Description=edgeagent trains {service.name}",
            f"StartLimitIntervalSec={FAILURES_SECONDS}",
            f"StartLimitBurst={FAILURES}",
            "",
            "[Service]",
            f"WorkingDirectory={service.folder.replace('%', '%%')}",
            *settings,
            f"ExecStart={line}",
            "# As Ctrl+C in a terminal: the agent leaves gracefully and saves the model.",
            "KillSignal=SIGINT",
            "# The signal goes to the agent alone, which ends its trainer.",
            "KillMode=mixed",
            f"TimeoutStopSec={STOP_SECONDS}",
            "# Not after a training that is done, nor after a graceful leave.",
            "Restart=on-failure",
            f"RestartSec={RESTART_SECONDS}",
            "",
            "[Install]",
            "WantedBy=default.target",
            "",
        ]
    )


def _word(text: str) -> str:
    """Return `text` as one word of a unit: quoted if need be, "%" doubled."""
    doubled = text.replace("%", "%%")
    if _PLAIN.fullmatch(text):
        return doubled
    return '"' + "".join(_escaped(letter) for letter in doubled) + '"'


def _escaped(letter: str) -> str:
    if letter in _ESCAPES:
        return _ESCAPES[letter]
    return letter if ord(letter) >= 32 and ord(letter) != 127 else f"\\x{ord(letter):02x}"


def launchd_plist(service: Service) -> bytes:
    """Return the contents of a property list for launchd.

    launchd stops a program with SIGTERM, which an agent takes as Ctrl+C, too.
    """
    values: dict[str, object] = {
        "Label": launchd_label(service.name),
        "ProgramArguments": list(service.command),
        "WorkingDirectory": service.folder,
        "EnvironmentVariables": dict(service.environment),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": RESTART_SECONDS,
        "ExitTimeOut": STOP_SECONDS,
        "ProcessType": "Background",
    }
    if service.log:
        values |= {"StandardOutPath": service.log, "StandardErrorPath": service.log}
    try:
        text = plistlib.dumps(values)
    except ValueError as error:
        raise UsageError(f"the command cannot stand in a property list: {error}") from None
    return text.replace(b"<plist", f"<!-- {MARK} -->\n<plist".encode(), 1)


def launchd_label(name: str) -> str:
    """Return the label by which launchd knows a service."""
    return f"edgeagent.{name}"
