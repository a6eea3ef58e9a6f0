"""What the kernel says about processes: which run in a session, and which are children of which.

Only /proc is read. A process that ends while it is looked at counts as not there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass

KILL_S = 5.0  # within this time the kernel has to end processes that were killed
POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Process:
    """A living process."""

    pid: int
    parent: int
    session: int


def living() -> list[Process]:
    """Return all living processes by ascending pid."""
    found = []
    for name in sorted(filter(str.isdecimal, os.listdir("/proc")), key=int):
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            if fields[0] not in "ZX":
                found.append(Process(int(name), int(fields[1]), int(fields[3])))
    return found


def children(pid: int) -> list[int]:
    """Return the living children of `pid`."""
    return [process.pid for process in living() if process.parent == pid]


def session_lives(leader: int) -> bool:
    """Return whether a process is left in the session that `leader` opened."""
    return any(process.session == leader for process in living())


def kill_session(leader: int) -> None:
    """Kill everything in the session that `leader`, a child of ours, has opened."""
    deadline = time.monotonic() + KILL_S
    while members := [process.pid for process in living() if process.session == leader]:
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert time.monotonic() < deadline, f"processes {members} do not end"
        time.sleep(POLL_S)


def listening_ports(pid: int) -> list[int]:
    """Return the TCP ports that `pid` listens on (IPv4)."""
    inodes = []
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            inodes.append(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    ports = []
    with open(f"/proc/{pid}/net/tcp", encoding="ascii") as file:
        for line in file.readlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                ports.append(int(fields[1].partition(":")[2], 16))
    return sorted(ports)
