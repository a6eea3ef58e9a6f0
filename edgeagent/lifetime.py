"""Makes a child process end together with the process that has started it, whatever ends that.

Where the system can do it (Linux), it kills the child when its parent ends, even a child that is in
an endless loop. Elsewhere a child notices it the next time it reads its socket, which then reads
end-of-file.
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
    """Return what a child has to call between fork and exec so that it dies with this process.

    Returns None where the system has no such function. Start the child in the main thread, because
    Linux kills the child when the thread that has started it ends.
    """
    if not platform.startswith("linux"):
        return None
    library: Any = ctypes.CDLL(None)  # loaded before the fork, after which that is not safe
    parent = os.getpid()

    def bind() -> None:
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent has ended before `prctl` took effect
            os._exit(1)

    return bind
