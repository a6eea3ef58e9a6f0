"""Copies a file from a URL to this device's disk.

Usage: carry.py URL PATH        prints {"seconds": S, "bytes": N}

It uses plain HTTP and one connection, and ends when the file is on disk (fsync).
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request

PIECE = 1 << 20


def carry(url: str, path: str) -> int:
    """Copy; return the number of bytes."""
    count = 0
    with urllib.request.urlopen(url) as source, open(path, "wb") as target:
        while piece := source.read(PIECE):
            count += target.write(piece)
        target.flush()
        os.fsync(target.fileno())
    return count


if __name__ == "__main__":
    began = time.monotonic()
    size = carry(sys.argv[1], sys.argv[2])
    print(json.dumps({"seconds": time.monotonic() - began, "bytes": size}), flush=True)
