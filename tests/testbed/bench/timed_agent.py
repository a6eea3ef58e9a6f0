"""The command `edgeagent`, with an agent that notes how long it decides who is to hold which part
of a divided optimizer: one line of seconds for each decision, in the file `DECISIONS`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from edgeagent.cli import main
from protocols.scheduler import levelling, negotiator

decide = levelling.level


def timed(*args: Any, **options: Any) -> Any:
    """Decide, and note how long that took."""
    began = time.perf_counter()
    found = decide(*args, **options)
    with Path(os.environ["DECISIONS"]).open("a", encoding="utf-8") as file:
        file.write(f"{time.perf_counter() - began}\n")
    return found


if __name__ == "__main__":
    negotiator.level = timed  # type: ignore[attr-defined]  # imported there, to be used
    sys.exit(main())
