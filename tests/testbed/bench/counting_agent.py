"""The command `edgeagent`, with an agent that notes what it sends of the rounds.

For each round that is complete here it writes a line of JSON to a file of its own in the folder
`SENT`, with the payload bytes of each kind of frame that it has sent since the line before.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from edgeagent.cli import main
from edgeagent.shell.rounds import Rounds

send_bulk, reduced = Rounds.send_bulk, Rounds._reduced
sent: Counter[str] = Counter()


def counted(self: Rounds, to: bytes, header: Any, payload: memoryview) -> None:
    """Send a frame, and count its payload."""
    sent[header.kind.name] += len(payload)
    send_bulk(self, to, header, payload)


def noted(self: Rounds, spec: Any, word: Any) -> None:
    """Note what was sent since the round before, then go on."""
    with Path(os.environ["SENT"], f"{os.getpid()}").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"iteration": spec.iteration, **sent}) + "\n")
    sent.clear()
    reduced(self, spec, word)


if __name__ == "__main__":
    Rounds.send_bulk, Rounds._reduced = counted, noted  # type: ignore[method-assign]
    sys.exit(main())
