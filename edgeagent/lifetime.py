"""A child that does not outlive the process that started it, whatever ends that.

Law: where the system can do it (Linux), it kills the child together with its parent, even one that
loops and listens to nothing. Elsewhere a child learns of it from the end of its socket, the next
time that it looks there.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def dies_with_parent(platform: str = sys.platform) -> Callable[[], None] | None:
    """Return what a child has to do between fork and exec so that it dies with this process, None
    where the system knows no such thing. Call it in the thread that starts the child, the main one:
    Linux means the end of that thread."""
    if not platform.startswith("linux"):
        return None
    library: Any = ctypes.CDLL(None)  # looked up before the fork: after it nothing may be loaded
    parent = os.getpid()

    def bind() -> None:
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it has ended in between
            os._exit(1)

    return bind
