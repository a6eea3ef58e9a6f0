"""A real agent that sends what cannot be: `lying_agent.py LIE ARGUMENTS...`, as `edgeagent` else.

Law: everything but the one lie is what any agent does; it begins at iteration `LIES_FROM`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import patch

from edgeagent.cli import main
from edgeagent.dataplane.reduce import Reducer
from edgeagent.shell import Shell
from protocols.wire import messages as m

if TYPE_CHECKING:
    from protocols.rounds.control_word import ControlWord

LIES_FROM = 30
HUGE_TERM = (1 << 30) - 1


def contributes(change: Callable[[ControlWord], ControlWord]) -> None:
    """Change the control word of this agent's own part."""
    honest = Reducer.contribute

    def lie(reducer: Reducer, word: ControlWord) -> None:
        now = reducer._round
        late = now is not None and now.spec.iteration >= LIES_FROM
        honest(reducer, change(word) if late else word)

    patch.object(Reducer, "contribute", lie).start()


def floods(message: m.Message) -> None:
    """Say `message` to everybody, with every heartbeat."""
    honest = Shell._ping

    def lie(shell: Shell) -> None:
        honest(shell)
        node = shell.node
        if node is not None and node.context.is_member and node.context.iteration >= LIES_FROM:
            node.context.send(m.EVERYONE, message)
            shell._perform(node._flush(shell._loop.time()))

    patch.object(Shell, "_ping", lie).start()


LIES: dict[str, Callable[[], None]] = {
    "buffers": lambda: contributes(lambda word: replace(word, agree=False)),
    "bitmap": lambda: contributes(lambda word: replace(word, gradient_bitmap=b"\xff" * 9)),
    "term": lambda: floods(m.Fence(HUGE_TERM, 1)),
}

if __name__ == "__main__":
    LIES[sys.argv.pop(1)]()
    sys.exit(main(sys.argv[1:]))
