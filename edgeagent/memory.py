"""How much memory this device has free, and how much a process of ours takes.

Everything is read from the kernel's own files and nothing is guessed: where such a file is missing,
as on systems other than Linux, the figure is None, and whoever asks must do without it. A container
may be allowed less than the device has, so the limits of the control groups count as well.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

_KIB = 1024
_UNLIMITED = 1 << 60  # what the first version of control groups says where there is no limit
_PROC = "/proc"
_GROUPS = "/sys/fs/cgroup"
_SHARED_FILES = "/dev/shm"  # asked how full it is; nothing is written there


@dataclass(frozen=True, slots=True)
class Room:
    """What can still be taken, in bytes; None where the system does not say.

    `available`: the kernel's estimate of what can be had without swapping. `swap`: free swap.
    `group`: what the tightest control group of this process leaves. `shared_files`: free in
    /dev/shm, through which the workers of a data loader pass samples; the memory that an agent and
    its trainer share has no name there and is not bounded by it.
    """

    available: int | None
    swap: int
    group: int | None
    shared_files: int | None

    @property
    def free(self) -> int | None:
        """Return what can be taken without swapping."""
        known = [size for size in (self.available, self.group) if size is not None]
        return min(known) if known else None

    @property
    def with_swap(self) -> int | None:
        """Return what can be taken at most; a control group's limit is not stretched by swap."""
        if self.available is None:
            return self.group
        known = self.available + self.swap
        return known if self.group is None else min(known, self.group)


@dataclass(frozen=True, slots=True)
class Usage:
    """Resident memory of a process in bytes: its own, the files it has mapped (libraries), and
    what it maps together with others."""

    own: int
    files: int
    shared: int

    @property
    def private(self) -> int:
        """Return what is there on account of this process: all but the memory that is shared."""
        return self.own + self.files


def room(proc: str = _PROC, groups: str = _GROUPS, shared_files: str = _SHARED_FILES) -> Room:
    """Return what this process can still take."""
    known = _figures(os.path.join(proc, "meminfo"))
    free: int | None = None
    with contextlib.suppress(OSError, AttributeError):
        found = os.statvfs(shared_files)
        free = found.f_bavail * found.f_frsize
    return Room(
        known.get("MemAvailable"), known.get("SwapFree", 0), _group_room(proc, groups), free
    )


def usage(pid: int | None = None, proc: str = _PROC) -> Usage | None:
    """Return what a process, by default this one, takes; None if that cannot be read."""
    found = _figures(os.path.join(proc, "self" if pid is None else str(pid), "status"))
    if "RssAnon" not in found:
        return None
    return Usage(found["RssAnon"], found.get("RssFile", 0), found.get("RssShmem", 0))


def forget_peak() -> bool:
    """Have `peak` count from now on; return whether the system can do that."""
    try:
        with open(f"{_PROC}/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        return False
    return True


def peak() -> int | None:
    """Return the most that was resident of this process, shared memory included, in bytes."""
    return _figures(f"{_PROC}/self/status").get("VmHWM")


def children_private(proc: str = _PROC) -> int:
    """Return the bytes that the children of this process have to themselves."""
    total = 0
    for pid in _children(proc):
        found = _figures(os.path.join(proc, pid, "smaps_rollup"))
        total += found.get("Private_Clean", 0) + found.get("Private_Dirty", 0)
    return total


def _children(proc: str) -> list[str]:
    found: list[str] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(os.path.join(proc, "self", "task")):
            path = os.path.join(proc, "self", "task", task, "children")
            with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
                found += file.read().split()
    return found


def _figures(path: str) -> dict[str, int]:
    """Return the lines "Name:  123 kB" of a file of the kernel's, in bytes."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, rest = line.partition(":")
            words = rest.split()
            if len(words) == 2 and words[1] == "kB" and words[0].isdecimal():
                found[name] = int(words[0]) * _KIB
    return found


def _group_room(proc: str, groups: str) -> int | None:
    """Return what the tightest control group leaves, None without a limit."""
    left: list[int] = []
    for folder, files in _groups(proc, groups):
        limit, used = (_number(os.path.join(folder, name)) for name in files[:2])
        if limit is None or used is None or limit >= _UNLIMITED:
            continue
        left.append(max(0, limit - used + _reclaimable(folder, files[2])))
    return min(left) if left else None


def _groups(proc: str, groups: str) -> list[tuple[str, tuple[str, str, str]]]:
    """Return each control group that bounds this process: its folder, and what its files are
    called: the limit, what is used, and the entry of memory.stat that can be had back."""
    found: list[tuple[str, tuple[str, str, str]]] = []
    with (
        contextlib.suppress(OSError),
        open(os.path.join(proc, "self", "cgroup"), encoding="utf-8", errors="replace") as file,
    ):
        for line in file:
            _, controllers, path = (*line.rstrip("\n").split(":", 2), "", "")[:3]
            if "memory" in controllers.split(","):
                base = os.path.join(groups, "memory")
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            elif not controllers:
                base, names = groups, ("memory.max", "memory.current", "inactive_file")
            else:
                continue
            parts = [part for part in path.split("/") if part and part != os.pardir]
            found += [(os.path.join(base, *parts[:n]), names) for n in range(len(parts) + 1)]
    return found


def _number(path: str) -> int | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            text = file.read().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None  # "max": no limit


def _reclaimable(folder: str, entry: str) -> int:
    """Return the bytes of files that the group would drop before it runs out of memory."""
    with (
        contextlib.suppress(OSError),
        open(os.path.join(folder, "memory.stat"), encoding="ascii", errors="replace") as file,
    ):
        for line in file:
            name, _, value = line.strip().partition(" ")
            if name == entry and value.isdecimal():
                return int(value)
    return 0
