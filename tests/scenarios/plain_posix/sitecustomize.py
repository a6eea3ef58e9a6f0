"""Makes this process take the system for one of which no more than POSIX is known, as far as the
code of edgeagent can see: Python runs this file at its start if its folder is on PYTHONPATH.

The modules of edgeagent get other `sys`, `os`, `socket` and `mmap` than everybody else: without
what only Linux has, and with another name of the platform. They find no files in /proc and /sys.
"""

from __future__ import annotations

import builtins
import mmap
import os
import socket
import sys
from types import ModuleType
from typing import Any

OURS = ("edgeagent", "protocols", "models")
LACKS: dict[str, tuple[ModuleType, tuple[str, ...]]] = {
    "mmap": (mmap, ("MADV_REMOVE",)),
    "os": (os, ("memfd_create", "posix_fallocate", "sched_getaffinity", "pidfd_open")),
    "socket": (socket, ("SO_BINDTODEVICE", "SO_PEERCRED", "TCP_INFO", "TCP_USER_TIMEOUT")),
    "sys": (sys, ()),
}
PLATFORM = "posix"
_import, _open = builtins.__import__, builtins.open


class Elsewhere(ModuleType):
    """A module as it is on another system."""

    def __init__(self, real: ModuleType, lacks: tuple[str, ...]) -> None:
        super().__init__(real.__name__)
        self.__dict__["_real"] = real
        self.__dict__["_lacks"] = lacks

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__["_lacks"]:
            raise AttributeError(name)
        if (self.__name__, name) == ("sys", "platform"):
            return PLATFORM
        return getattr(self.__dict__["_real"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_real"], name, value)


ELSEWHERE = {name: Elsewhere(real, lacks) for name, (real, lacks) in LACKS.items()}


def is_ours(namespace: Any) -> bool:
    """Whether it is a module of edgeagent that has this namespace."""
    return str((namespace or {}).get("__name__", "")).partition(".")[0] in OURS


def import_(
    name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
) -> Any:
    """Import a module, or what stands for it."""
    if name in ELSEWHERE and is_ours(globals):
        return ELSEWHERE[name]
    return _import(name, globals, locals, fromlist, level)


def open_(file: Any, *rest: Any, **named: Any) -> Any:
    """Open a file, if there is one on that system."""
    hidden = isinstance(file, str) and file.startswith(("/proc/", "/sys/"))
    if hidden and is_ours(sys._getframe(1).f_globals):
        raise FileNotFoundError(2, "No such file or directory", file)
    return _open(file, *rest, **named)


builtins.__import__ = import_
builtins.open = open_
