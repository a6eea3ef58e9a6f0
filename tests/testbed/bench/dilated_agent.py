"""The command `edgeagent`, with an agent whose time-outs and pauses are `DILATE` times as long.

Together with links and computing that are so many times as slow, an agent then does the same with
processors so many times as fast as those of this machine: it tells of measurements, asks for signs
of life and looks again as often beside what it sends as it would there.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import sys

import edgeagent
import protocols
from edgeagent.cli import main
from tests.testbed.bench.dilation import VARIABLE

TIME = re.compile(r"^[A-Z][A-Z_]*_(SECONDS|S)$")  # how constants are called that are times
# Modules of packages that the agent may lack are not needed to train.
OPTIONAL = re.compile(r"^edgeagent\.(__main__|demo|gpu|services)")


def dilate(times: float) -> int:
    """Make each constant that is a time so many times as long; return how many there are."""
    for package in (protocols, edgeagent):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not OPTIONAL.match(found.name):
                importlib.import_module(found.name)
    changed = 0
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] not in ("protocols", "edgeagent"):
            continue
        for constant, value in list(vars(module).items()):
            if TIME.match(constant) and isinstance(value, int | float):
                longer = value * times
                setattr(module, constant, round(longer) if isinstance(value, int) else longer)
                changed += 1
    return changed


if __name__ == "__main__":
    dilate(float(os.environ[VARIABLE]))
    sys.exit(main())
