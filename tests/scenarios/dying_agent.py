"""The command `edgeagent`, with an agent that is killed at the worst moment.

`DIES_AT` names what it is in the middle of then:

- `sums`: it sends the sums of its stripes to their copies, so the result is not certain yet;
- `results`: it sends new weights, so that some members have them and others do not;
- `lends`: it sends an optimizer's slots to a member that learns them;
- `learns`: such slots come in.

From the moment when the file `DIES_WHEN` exists it goes on for `DIES_AFTER` more frames of that
kind, and the next one is its end: SIGKILL, with whatever is queued.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from edgeagent.cli import main
from edgeagent.shell.stripes import Stripes
from edgeagent.transport.links import TcpLink
from protocols.wire.bulk import BulkKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.wire.bulk import BulkHeader

SENT = {"sums": BulkKind.SUM, "results": BulkKind.DOWN, "lends": BulkKind.SLOT}
moment = os.environ["DIES_AT"]
left = int(os.environ.get("DIES_AFTER", "0"))


def count() -> None:
    """A frame of the kind is about to pass; perhaps it does not."""
    global left
    if os.path.exists(os.environ["DIES_WHEN"]):
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1


def counted(usual: Callable[..., Any]) -> Callable[..., Any]:
    """Return what sends a frame as `usual`, counted if it is of the kind."""

    def send_bulk(self: TcpLink, header: BulkHeader, payload: memoryview) -> None:
        if header.kind is SENT[moment]:
            count()
        usual(self, header, payload)

    return send_bulk


def counted_in(usual: Callable[..., Any]) -> Callable[..., Any]:
    """Return what takes a slot's chunk as `usual`, counted."""

    def received(self: Stripes, *rest: Any) -> None:
        count()
        usual(self, *rest)

    return received


if __name__ == "__main__":
    if moment == "learns":
        Stripes.received = counted_in(Stripes.received)  # type: ignore[method-assign]
    else:
        TcpLink.send_bulk = counted(TcpLink.send_bulk)  # type: ignore[method-assign]
    sys.exit(main())
