"""The agent's end of the hand-over, before the trainer has said anything, and while it pauses."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from edgeagent.errors import EdgeAgentError
from edgeagent.handover import (
    HANDOVER_VERSION,
    AgentsHere,
    Decoder,
    End,
    Hello,
    Message,
    SaveAside,
    Settle,
    Work,
)
from edgeagent.integer_blocks import BLOCK, BLOCK_WORDS, MOST_BLOCKS
from edgeagent.trainer_link import TrainerLink, check_hello

if TYPE_CHECKING:
    from collections.abc import Callable


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


def sent_by(act: Callable[[TrainerLink], None]) -> list[Message]:
    """Return what a trainer gets when `act` is done with its link."""
    ours, theirs = socket.socketpair()

    async def agent() -> None:
        link = TrainerLink(lambda _message: None, lambda: None)
        link.expect(ours)
        act(link)

    with ours, theirs:
        asyncio.run(agent())
        theirs.setblocking(False)
        try:
            return list(Decoder().feed(theirs.recv(1 << 16)))
        except BlockingIOError:
            return []


WORK, MORE, NONE = Work(3, (0, 1), 0), Work(3, (2,), 1), Work(3, (), 1)
ASIDE, END = SaveAside(False), End("left", "", 0)


def test_work_is_held_while_a_device_pauses_and_comes_in_order() -> None:
    def pauses(link: TrainerLink) -> None:
        link.hold(work=True, rejoin=False)
        link.send(WORK)
        link.send(MORE)

    assert sent_by(pauses) == []

    def goes_on(link: TrainerLink) -> None:
        pauses(link)
        link.hold(work=True, rejoin=False)
        link.hold(work=False, rejoin=False)
        link.send(NONE)

    assert sent_by(goes_on) == [WORK, MORE, NONE]

    def others_have_computed_it(link: TrainerLink) -> None:
        pauses(link)
        link.send(NONE)
        link.send(WORK)

    assert sent_by(others_have_computed_it) == [WORK, MORE, NONE], "and the next waits again"

    def slots_are_wanted(link: TrainerLink) -> None:
        pauses(link)
        link.send(Settle(False))

    assert sent_by(slots_are_wanted) == [Settle(False)], "which changes nothing of that"

    def another_agent_starts_here(link: TrainerLink) -> None:
        pauses(link)
        link.send(AgentsHere(2))

    assert sent_by(another_agent_starts_here) == [AgentsHere(2)], "nor does this"

    def ends(link: TrainerLink) -> None:
        pauses(link)
        link.send(END)

    assert sent_by(ends) == [WORK, MORE, END]


def test_a_device_that_stands_aside_is_asked_later_whether_it_can_join() -> None:
    def stands_aside(link: TrainerLink) -> None:
        link.hold(work=True, rejoin=True)
        link.send(ASIDE)

    assert sent_by(stands_aside) == []

    def is_back(link: TrainerLink) -> None:
        stands_aside(link)
        link.hold(work=True, rejoin=False)

    assert sent_by(is_back) == [ASIDE]


def test_integer_sums_are_laid_out_in_whole_blocks() -> None:
    words = 4 * BLOCK_WORDS
    hello = Hello(
        HANDOVER_VERSION,
        1,
        (),
        100,
        (),
        "float32",
        words,
        words // 2,
        4,
        8,
        0,
        0,
        b"",
        wide_bytes=8 * 4 * BLOCK,
    )
    check_hello(hello)
    wrong: list[dict[str, Any]] = [
        {"accumulate": "float64"},
        {"rounded_chunks": 1},
        {"wide_bytes": 8 * 4 * BLOCK + 8},
        {"elements": words + 16},
        {"chunk_elements": BLOCK_WORDS + 1},
        {"chunk_elements": 0},
        {"chunk_elements": 3 * BLOCK_WORDS},
        {
            "elements": MOST_BLOCKS * 2 * BLOCK_WORDS,
            "chunk_elements": MOST_BLOCKS * 2 * BLOCK_WORDS,
        },
    ]
    for fields in wrong:
        with pytest.raises(EdgeAgentError, match="impossible layout of integer sums"):
            check_hello(replace(hello, **fields))


def test_shares_of_subnets_that_cannot_be_are_refused() -> None:
    hello = Hello(HANDOVER_VERSION, 1, (), 100, (), "float32", 64, 16, 8, 8, 0, 0, b"")
    check_hello(replace(hello, in_cells=True, least_share=8, last_round_counts=1.0))
    wrong: list[dict[str, Any]] = [
        {"least_share": 9},
        {"least_share": -1},
        {"last_round_counts": 1.5},
        {"last_round_counts": -0.5},
        {"last_round_counts": float("nan")},
    ]
    for fields in wrong:
        with pytest.raises(EdgeAgentError, match="impossible shares of a round of subnets"):
            check_hello(replace(hello, **fields))


def test_costs_of_subnets_that_cannot_be_are_refused() -> None:
    hello = Hello(HANDOVER_VERSION, 1, (), 100, (), "float32", 64, 16, 8, 8, 0, 0, b"")
    for fixed, square in ((0.0, 0.0), (0.9, 0.1), (0.0, 1.0)):
        check_hello(replace(hello, fixed_cost=fixed, square_cost=square))
    nan = float("nan")
    for fixed, square in ((1.0, 0.0), (0.6, 0.6), (-0.1, 0.0), (0.0, -0.1), (nan, 0.0), (0.0, nan)):
        with pytest.raises(EdgeAgentError, match="impossible cost"):
            check_hello(replace(hello, fixed_cost=fixed, square_cost=square))


@pytest.mark.parametrize("how", ["done", "cancelled", "failed"])
def test_a_message_waits_for_what_it_speaks_of_and_all_others_follow(how: str) -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)

    async def agent() -> None:
        link = TrainerLink(lambda _message: None, lambda: None)
        link.expect(ours)
        link.send(WORK)
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        link.send(MORE, ready)
        link.send(END)
        assert list(Decoder().feed(theirs.recv(1 << 16))) == [WORK]
        if how == "done":
            ready.set_result(None)
        elif how == "failed":
            ready.set_exception(MemoryError())
        else:
            ready.cancel()
        await asyncio.sleep(0)

    with ours, theirs:
        asyncio.run(agent())
        rest = [MORE, END] if how == "done" else [END]
        assert list(Decoder().feed(theirs.recv(1 << 16))) == rest
