"""`edgeagent` with another clock, of another release, or of other protocol versions.

Usage: python odd_agent.py clock=SECONDS|release=TEXT|version=N,... ARGUMENTS...

The clock of a network namespace cannot be set, so `time.time` is shifted instead.
"""

import sys
import time

name, _, value = sys.argv.pop(1).partition("=")
if name == "clock":
    shift, now, now_ns = float(value), time.time, time.time_ns
    time.time = lambda: now() + shift
    time.time_ns = lambda: now_ns() + int(shift * 1e9)
elif name == "release":
    import edgeagent

    edgeagent.__version__ = value
else:
    from edgeagent.transport import join_wire

    join_wire.VERSIONS = tuple(map(int, value.split(",")))

from edgeagent.cli import main  # noqa: E402 - after what it is to see has been changed

sys.exit(main())
