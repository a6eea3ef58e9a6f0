"""Keeps glibc from returning freed buffers to the kernel, which would cost page faults again.

This is an optimisation only: where the C library is not glibc it does nothing, and it never fails.
"""

from __future__ import annotations

import ctypes
import platform

# Numbers of mallopt's options in glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_SETTINGS = (
    (_M_MMAP_THRESHOLD, 32 << 20),  # smaller buffers come from the heap
    (_M_TRIM_THRESHOLD, 512 << 20),  # so much free memory at its end is kept
    (_M_TOP_PAD, 16 << 20),  # it grows in steps of this size
)


def tune_malloc() -> bool:
    """Have large buffers come from the heap and stay there; return whether it took effect.

    Call it once at start-up, before buffers are allocated.
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
