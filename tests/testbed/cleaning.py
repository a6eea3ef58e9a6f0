"""Removes what a testbed has made: the processes in its namespaces, then the namespaces.

Queues, devices and filters are in namespaces and disappear with them. The delay daemon runs in the
switch's namespace, so it is found there even if the process that started it is gone.

Only namespaces with the testbed's own names are touched, and only processes inside them. What
belongs to a process that still runs stays, unless its removal is asked for explicitly.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

from tests.testbed.congestion import restore_congestion
from tests.testbed.namespaces import Owner, TestbedError, existing, parse, run

END_S = 10.0  # within this time the kernel has to end processes that were killed
POLL_S = 0.005


def pids(namespace: str) -> list[int]:
    """Return the processes in a namespace."""
    return [int(word) for word in run("ip", "netns", "pids", namespace).split()]


def remove(namespaces: list[str]) -> int:
    """Kill what runs in these namespaces and delete them; return how many processes that were."""
    killed: set[int] = set()
    deadline = time.monotonic() + END_S
    waiting = list(namespaces)
    while waiting:
        waiting = [name for name in waiting if (found := pids(name)) and not _kill(found, killed)]
        if waiting and time.monotonic() > deadline:
            raise TestbedError(f"processes in {', '.join(waiting)} do not end")
        time.sleep(POLL_S if waiting else 0)
    for name in namespaces:
        with contextlib.suppress(TestbedError):  # another process may be cleaning, too
            run("ip", "netns", "delete", name)
    return len(killed)


def _kill(found: list[int], killed: set[int]) -> bool:
    """Kill these processes. Returns False, because the caller has to look for them again."""
    for pid in found:
        killed.add(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return False


def namespaces_of(owner: Owner) -> list[str]:
    """Return the namespaces of one network."""
    return [name for name in existing() if (found := parse(name)) and found[0] == owner]


def clean(everything: bool = False) -> tuple[int, int]:
    """Remove what processes that have ended left behind; with `everything`, all that others use.

    Returns how many namespaces and how many processes that were.
    """
    names = []
    for name in existing():
        found = parse(name)
        if found and (everything or not found[0].lives):
            names.append(name)
    killed = remove(names)
    restore_congestion()
    return len(names), killed


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore signals that ask this process to end while the block runs, so that nothing is half
    removed (only the main thread gets signals)."""
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            before[number] = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
