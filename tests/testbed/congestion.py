"""The only setting of the host that networks change: which congestion control algorithms of TCP may
be used.

Namespaces may only use algorithms that the host allows. What a network adds to that list is noted
in a file, also for the networks of other processes. Only what was added is removed again, by the
last network that is removed, or by the clean-up after a killed one. While any network exists the
list stays, since that network may need it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from tests.testbed.namespaces import TestbedError, existing, parse

ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
ADDED = Path("/run/edgebed-congestion")  # the words that were added to it


def allow_congestion(name: str) -> None:
    """Have namespaces use this algorithm; raise `TestbedError` if the kernel does not have it."""
    if name in (allowed := ALLOWED.read_text().split()):
        return
    try:
        ALLOWED.write_text(" ".join([*allowed, name]))
    except OSError:
        raise TestbedError(f"the kernel has no TCP {name}") from None
    with ADDED.open("a") as file:
        file.write(f"{name}\n")


def restore_congestion() -> None:
    """Take away what was added, unless a network lives."""
    if not ADDED.exists() or any((found := parse(n)) and found[0].lives for n in existing()):
        return
    with contextlib.suppress(FileNotFoundError):  # another process may be doing the same
        added = ADDED.read_text().split()
        ALLOWED.write_text(" ".join(w for w in ALLOWED.read_text().split() if w not in added))
        ADDED.unlink()
