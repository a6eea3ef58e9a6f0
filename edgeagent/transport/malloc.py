"""Keeps glibc from giving freed buffers back to the kernel and faulting them in again.

Law: best effort; does nothing where the C library is not glibc, and never fails.
"""

from __future__ import annotations

import ctypes
import platform

_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_SETTINGS = (
    (_M_MMAP_THRESHOLD, 32 << 20),
    (_M_TRIM_THRESHOLD, 512 << 20),
    (_M_TOP_PAD, 16 << 20),
)


def tune_malloc() -> bool:
    """Make large buffers come from the heap and stay there; return whether it took effect.

    Call once at start-up, before buffers are allocated.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    mallopt.restype = ctypes.c_int
    results = [mallopt(option, value) for option, value in _SETTINGS]
    return all(result == 1 for result in results)
