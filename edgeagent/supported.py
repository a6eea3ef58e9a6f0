"""On which systems edgeagent runs at all (docs/systems.md)."""

from __future__ import annotations

import sys

from edgeagent.errors import UsageError


def check_system(platform: str = sys.platform) -> None:
    """Raise `UsageError`, which says what to do, where edgeagent cannot run. `platform`: as in
    `sys.platform`."""
    if platform in ("win32", "cygwin"):
        raise UsageError(
            "edgeagent does not run on Windows itself: install WSL (`wsl --install`), and install "
            "and start edgeagent there"
        )
