"""The two systems that start agents: where their files lie, what to type next, what they say.

Files are written whole, readable by their user only, and never in place of a file that is not ours.
Nothing is started or stopped here: the user is told the commands.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from typing import TYPE_CHECKING, Protocol

from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.programs import ask
from edgeagent.services.units import MARK, Service, launchd_label, launchd_plist, systemd_unit
from edgeagent.transport.identity import write_private

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MAX_FILE_BYTES = 64 << 10  # of a file that may be ours
LINGER_FOLDER = "/var/lib/systemd/linger"  # a file for each user whose services start at boot


class System(Protocol):
    """A system that can start agents."""

    @property
    def folder(self) -> str:
        """Where it looks for the files of this user."""
        ...

    def file_name(self, name: str) -> str:
        """Return the name of a service's file."""
        ...

    def service_in(self, file_name: str) -> str:
        """Return the name of the service whose file this would be, "" for any other file."""
        ...

    def text(self, service: Service) -> bytes:
        """Return the contents of a service's file."""
        ...

    def after_install(self, name: str) -> tuple[str, ...]:
        """Return what the user types next: commands, each with what it does."""
        ...

    def after_remove(self, name: str) -> tuple[str, ...]:
        """Return the same, after the file was removed."""
        ...

    def links(self, name: str) -> tuple[str, ...]:
        """Return links to the file that go with it."""
        ...

    def state(self, name: str) -> str:
        """Return in words what the system says of a service."""
        ...

    def log(self, name: str) -> str:
        """Return the file for a service's output, "" if the system keeps it."""
        ...


def system_for(platform: str, environment: Mapping[str, str], user: int) -> System:
    """Return the system of `platform`, a value of `sys.platform`; raise `UsageError` if there is
    none that we know."""
    home = environment.get("HOME") or os.path.expanduser("~")
    if platform == "linux":
        return Systemd(environment.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"))
    if platform == "darwin":
        return Launchd(home, user)
    raise UsageError(f"services are made for systemd and launchd, and {platform} has neither")


class Systemd:
    """systemd's instance for one user."""

    def __init__(
        self, config: str, asks: Callable[[Sequence[str]], str] = ask, linger: str = LINGER_FOLDER
    ) -> None:
        self.folder = os.path.join(config, "systemd", "user")
        self._ask = asks
        self._linger = linger

    def file_name(self, name: str) -> str:
        """Return the name of a service's file."""
        return f"edgeagent-{name}.service"

    def service_in(self, file_name: str) -> str:
        """Return the name of the service whose file this would be, "" for any other file."""
        if not file_name.startswith("edgeagent-") or not file_name.endswith(".service"):
            return ""
        return file_name.removeprefix("edgeagent-").removesuffix(".service")

    def text(self, service: Service) -> bytes:
        """Return the contents of a service's file."""
        return systemd_unit(service).encode(errors="surrogateescape")

    def after_install(self, name: str) -> tuple[str, ...]:
        """Return what the user types next."""
        unit = self.file_name(name)
        return (
            f"systemctl --user daemon-reload && systemctl --user enable --now {unit}",
            "loginctl enable-linger        # once: it then runs without anybody logged in",
            f"journalctl --user -u {unit} -f   # what it says",
            f"systemctl --user stop {unit}     # leaves gracefully, as Ctrl+C does",
        )

    def after_remove(self, name: str) -> tuple[str, ...]:
        """Return what the user types next."""
        unit = self.file_name(name)
        return (f"systemctl --user stop {unit}; systemctl --user daemon-reload",)

    def links(self, name: str) -> tuple[str, ...]:
        """Return the link that `systemctl enable` has made."""
        return (os.path.join(self.folder, "default.target.wants", self.file_name(name)),)

    def state(self, name: str) -> str:
        """Return in words what systemd says of a service."""
        unit = self.file_name(name)
        enabled = any(os.path.islink(link) for link in self.links(name))
        begins = "starts at log-in" if enabled else "not enabled"
        if enabled and self._lingers():
            begins = "starts at boot"
        try:
            said = self._ask(
                ("systemctl", "--user", "show", unit, "-p", "ActiveState,SubState,MainPID,Result")
            )
        except EdgeAgentError as error:
            return f"{begins}; whether it runs is not known: {error}"
        values = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
        active, process = values.get("ActiveState", "unknown"), values.get("MainPID", "0")
        running = f", process {process}" if process not in ("", "0") else ""
        result = values.get("Result", "")
        failed = f", {result}" if active == "failed" and result else ""
        return f"{begins}; {active} ({values.get('SubState', '-')}{running}{failed})"

    def _lingers(self) -> bool:
        import getpass

        with contextlib.suppress(OSError, KeyError):
            return os.path.exists(os.path.join(self._linger, getpass.getuser()))
        return False

    def log(self, name: str) -> str:
        """Return "": the journal keeps what it prints."""
        return ""


class Launchd:
    """macOS's launchd, for the agents of one user."""

    def __init__(self, home: str, user: int, asks: Callable[[Sequence[str]], str] = ask) -> None:
        self.folder = os.path.join(home, "Library", "LaunchAgents")
        self._logs = os.path.join(home, "Library", "Logs")
        self._domain = f"gui/{user}"
        self._ask = asks

    def file_name(self, name: str) -> str:
        """Return the name of a service's file."""
        return f"{launchd_label(name)}.plist"

    def service_in(self, file_name: str) -> str:
        """Return the name of the service whose file this would be, "" for any other file."""
        if not file_name.startswith("edgeagent.") or not file_name.endswith(".plist"):
            return ""
        return file_name.removeprefix("edgeagent.").removesuffix(".plist")

    def text(self, service: Service) -> bytes:
        """Return the contents of a service's file."""
        return launchd_plist(service)

    def after_install(self, name: str) -> tuple[str, ...]:
        """Return what the user types next."""
        path = shlex.quote(os.path.join(self.folder, self.file_name(name)))
        return (
            f"launchctl bootstrap {self._domain} {path}",
            f"tail -f {shlex.quote(self.log(name))}   # what it says",
            f"launchctl bootout {self._domain}/{launchd_label(name)}   # leaves gracefully",
        )

    def after_remove(self, name: str) -> tuple[str, ...]:
        """Return what the user types next."""
        return (f"launchctl bootout {self._domain}/{launchd_label(name)}",)

    def links(self, name: str) -> tuple[str, ...]:
        """Return none: launchd makes no links."""
        return ()

    def state(self, name: str) -> str:
        """Return in words what launchd says of a service."""
        try:
            said = self._ask(("launchctl", "print", f"{self._domain}/{launchd_label(name)}"))
        except EdgeAgentError as error:
            return f"not loaded ({error})"
        values = dict(line.strip().split(" = ", 1) for line in said.splitlines() if " = " in line)
        process = f", process {values['pid']}" if "pid" in values else ""
        return f"{values.get('state', 'loaded')}{process}"

    def log(self, name: str) -> str:
        """Return the file for a service's output."""
        return os.path.join(self._logs, f"edgeagent-{name}.log")


# --- files ------------------------------------------------------------------------------------


def installed(system: System) -> tuple[str, ...]:
    """Return the names of the services whose files are ours, sorted."""
    try:
        names = sorted(os.listdir(system.folder))
    except OSError:
        return ()
    found = [(system.service_in(name), os.path.join(system.folder, name)) for name in names]
    return tuple(name for name, path in found if name and is_ours(path))


def is_ours(path: str) -> bool:
    """Whether there is a file at `path` that `install` wrote."""
    return MARK.encode() in (_contents(path) or b"")


def install(system: System, service: Service, *, replaces: bool) -> str:
    """Write the service's file and return its path.

    Raises `UsageError` if a file that is not ours is there, or another one of ours without
    `replaces`.
    """
    path, text = os.path.join(system.folder, system.file_name(service.name)), system.text(service)
    if os.path.lexists(path):
        there = _contents(path)
        if not is_ours(path):
            raise UsageError(
                f"{path} was not written by edgeagent and stays as it is: give this service "
                "another name with --as NAME, or remove that file yourself"
            )
        if there == text:
            return path
        if not replaces:
            raise UsageError(
                f"a service {service.name!r} is installed already ({path}): --replace writes it "
                "anew, --as NAME adds another one"
            )
    for folder in (system.folder, *([os.path.dirname(service.log)] if service.log else [])):
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make the folder {folder}: {error.strerror}") from None
    write_private(path, text)
    return path


def remove(system: System, name: str) -> str:
    """Remove the service's file and links to it; return its path.

    Raises `UsageError` if there is none, or if it is not ours.
    """
    path = os.path.join(system.folder, system.file_name(name))
    if not os.path.lexists(path):
        names = ", ".join(installed(system))
        raise UsageError(
            f"there is no service {name!r} here" + (f"; installed: {names}" if names else "")
        )
    if not is_ours(path):
        raise UsageError(f"{path} was not written by edgeagent: remove it yourself")
    for link in system.links(name):
        if os.path.islink(link) and os.path.realpath(link) == os.path.realpath(path):
            with contextlib.suppress(OSError):
                os.unlink(link)
    try:
        os.unlink(path)
    except OSError as error:
        raise UsageError(f"cannot remove {path}: {error.strerror}") from None
    return path


def _contents(path: str) -> bytes | None:
    """Return what is in a regular file, None if it is none or cannot be read."""
    if not os.path.isfile(path) or os.path.islink(path):
        return None
    try:
        with open(path, "rb") as file:
            return file.read(MAX_FILE_BYTES)
    except OSError:
        return None
