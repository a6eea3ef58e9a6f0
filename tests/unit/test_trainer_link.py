"""The agent's end of the hand-over, before the trainer has said anything."""

from __future__ import annotations

import asyncio
import socket

import pytest

from edgeagent.handover import Decoder, End
from edgeagent.trainer_link import TrainerLink


def test_a_trainer_that_comes_too_late_still_hears_the_end() -> None:
    ours, theirs = socket.socketpair()
    end = End("left", "", 0)

    async def agent() -> None:
        link = TrainerLink(lambda _message: None, lambda: None)
        link.send(end)  # no trainer is known yet: nothing to do
        opening = asyncio.create_task(link.open(ours))
        await asyncio.sleep(0)
        link.send(end)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        link.close()

    with ours, theirs:
        asyncio.run(agent())
        assert Decoder().feed(theirs.recv(4096)) == [end]


def test_a_trainer_that_is_gone_hears_nothing() -> None:
    ours, theirs = socket.socketpair()

    async def agent() -> None:
        link = TrainerLink(lambda _message: None, lambda: None)
        theirs.close()
        with pytest.raises(EOFError):
            await link.open(ours)
        link.send(End("left", "", 0))

    with ours:
        asyncio.run(agent())
