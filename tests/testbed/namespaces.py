"""Network namespaces: their names, how to enter them, and the commands that set them up.

The name of a namespace says which process made it (its pid and the moment at which it started), so
that a later clean-up can tell whether that process still runs. Commands either succeed or raise
`TestbedError` with what they printed.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

PREFIX = "edgebed"
FOLDER = "/run/netns"
NODE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,30}")
TOOLS = {"ip": "iproute2", "tc": "iproute2", "iptables-restore": "iptables"}
COMMAND_S = 30.0  # far more than any of these commands takes
_CLONE_NEWNET = 0x40000000
_NAME = re.compile(rf"{PREFIX}-(?P<pid>\d+)-(?P<start>\d+)-(?P<serial>\d+)-(?P<node>.+)")
_libc = ctypes.CDLL(None, use_errno=True)
_serials = itertools.count()


class TestbedError(Exception):
    """The testbed cannot do what it was asked to; the message is one sentence for the user."""

    __test__ = False  # no class of tests, whatever its name begins with


@dataclass(frozen=True, slots=True)
class Owner:
    """One network of one process."""

    pid: int
    start: int  # clock ticks since boot, field 22 of /proc/PID/stat
    serial: int

    @property
    def lives(self) -> bool:
        """Whether the process that made it still runs."""
        return start_ticks(self.pid) == self.start

    def namespace(self, node: str) -> str:
        """Return the name of the namespace of `node`."""
        return f"{PREFIX}-{self.pid}-{self.start}-{self.serial}-{node}"


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def new_owner() -> Owner:
    """Return the next network of this process."""
    start = start_ticks(os.getpid())
    assert start is not None
    return Owner(os.getpid(), start, next(_serials))


def parse(namespace: str) -> tuple[Owner, str] | None:
    """Return whose namespace this is and its node; None if it is not one of ours."""
    found = _NAME.fullmatch(namespace)
    if found is None:
        return None
    owner = Owner(int(found["pid"]), int(found["start"]), int(found["serial"]))
    return owner, found["node"]


def existing() -> list[str]:
    """Return the names of all namespaces of all testbeds, sorted."""
    try:
        return sorted(name for name in os.listdir(FOLDER) if parse(name))
    except FileNotFoundError:
        return []


def missing() -> str:
    """Return why no network can be made here, in one sentence; empty if nothing is missing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    if lacking:
        packages = " ".join(sorted({TOOLS[tool] for tool in lacking}))
        return f"{', '.join(lacking)} not found: install {packages}"
    return ""


def unusable() -> str:
    """Return why no network can be made here, after trying; empty if one can."""
    if why := missing():
        return why
    probe = new_owner().namespace("probe")
    try:
        run("ip", "netns", "add", probe)
    except TestbedError as error:
        return f"no namespaces can be made here: {error}"
    run("ip", "netns", "delete", probe)
    return ""


def run(*command: str, text: str = "") -> str:
    """Run a command with `text` on its standard input; return what it printed."""
    ended = subprocess.run(
        command, input=text, capture_output=True, text=True, check=False, timeout=COMMAND_S
    )
    if ended.returncode != 0:
        said = " ".join(ended.stderr.split()) or f"exit status {ended.returncode}"
        raise TestbedError(f"{' '.join(command)}: {said}")
    return ended.stdout


def ip(namespace: str, *lines: str) -> None:
    """Do several `ip` commands in a namespace ("" for the host's own)."""
    where = ("-n", namespace) if namespace else ()
    run("ip", *where, "-batch", "-", text="\n".join(lines) + "\n")


def tc(namespace: str, *lines: str) -> None:
    """Do several `tc` commands in a namespace."""
    if lines:
        run("tc", "-n", namespace, "-batch", "-", text="\n".join(lines) + "\n")


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Have the calling thread in a namespace; sockets made meanwhile stay there for good."""
    back = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        _enter(f"{FOLDER}/{namespace}")
        try:
            yield
        finally:
            _set(back, "its own namespace")
    finally:
        os.close(back)


def _enter(path: str) -> None:
    try:
        target = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise TestbedError(f"no namespace {path}: {error.strerror}") from None
    try:
        _set(target, path)
    finally:
        os.close(target)


def _set(descriptor: int, what: str) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise TestbedError(f"cannot enter {what}: {os.strerror(ctypes.get_errno())}")


def set_kernel(namespace: str, settings: dict[str, str]) -> None:
    """Set `net` settings of the kernel (path below /proc/sys/net: value) in a namespace."""
    with inside(namespace):
        for path, value in settings.items():
            with open(f"/proc/sys/net/{path}", "w", encoding="ascii") as file:
                file.write(value)
