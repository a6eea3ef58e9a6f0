"""A real agent that sends impossible things: `lying_agent.py LIE ARGUMENTS...`.

The arguments are those of `edgeagent`. Except for the one lie, which begins at the iteration
`LIES_FROM`, the agent behaves like any other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from edgeagent.cli import main
from edgeagent.dataplane.reduce import Reducer
from edgeagent.dataplane.shards import shard_view
from edgeagent.shell import Shell, pulls
from protocols.wire import messages as m

if TYPE_CHECKING:
    from protocols.rounds.control_word import ControlWord

LIES_FROM = 30
HUGE_TERM = (1 << 30) - 1


def contributes(change: Callable[[ControlWord], ControlWord]) -> None:
    """Have this agent change the control word that it contributes."""
    honest = Reducer.contribute

    def lie(reducer: Reducer, word: ControlWord) -> None:
        now = reducer._round
        late = now is not None and now.spec.iteration >= LIES_FROM
        honest(reducer, change(word) if late else word)

    patch.object(Reducer, "contribute", lie).start()


def floods(message: m.Message) -> None:
    """Have this agent flood `message` with every heartbeat."""
    honest = Shell._ping

    def lie(shell: Shell) -> None:
        honest(shell)
        node = shell.node
        if node is not None and node.context.is_member and node.context.iteration >= LIES_FROM:
            node.context.send(m.EVERYONE, message)
            shell._perform(node._flush(shell._loop.time()))

    patch.object(Shell, "_ping", lie).start()


def serves_zeros() -> None:
    """Have this agent send zeros in the place of the shards of its state."""

    def lie(*of: Any) -> memoryview:
        return memoryview(bytes(len(shard_view(*of))))

    patch.object(pulls, "shard_view", lie).start()


LIES: dict[str, Callable[[], None]] = {
    "buffers": lambda: contributes(lambda word: replace(word, agree=False)),
    "bitmap": lambda: contributes(lambda word: replace(word, gradient_bitmap=b"\xff" * 9)),
    "shards": serves_zeros,
    "term": lambda: floods(m.Fence(HUGE_TERM, 1)),
}

if __name__ == "__main__":
    LIES[sys.argv.pop(1)]()
    sys.exit(main(sys.argv[1:]))
