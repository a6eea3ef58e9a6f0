"""The search, against a transport that answers as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, cast

from edgeagent.search import Search, heard_from
from edgeagent.transport.api import PeerInfo, Standing
from edgeagent.transport.errors import SameIdentity
from protocols import founding

if TYPE_CHECKING:
    from edgeagent.errors import JobMismatch, JoinRefused
    from edgeagent.transport.tcp import TcpTransport
    from protocols.founding import Heard

ME = PeerInfo(b"m" * 32, 1, "me", (), b"")
OTHER = PeerInfo(b"o" * 32, 1, "other", (), b"")
CLUSTER = Standing(OTHER, "member", 10, 2, b"l", OTHER.node, ())
NOBODY = Standing(ME, "founding", 0, 0, b"", ME.node, ())


class Transport:
    """Answers after a while."""

    def __init__(self, answer: Callable[[], Standing], seconds: float = 0.0) -> None:
        self.me = ME
        self.answer = answer
        self.seconds = seconds
        self.asked = 0

    async def ask(self, address: str) -> Standing:
        self.asked += 1
        await asyncio.sleep(self.seconds)
        return self.answer()

    async def join(self, address: str) -> Standing:
        await asyncio.sleep(self.seconds)
        return self.answer()


class Outcome:
    """Notes what the search says."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.standing = NOBODY
        self.is_in = False
        self.is_spoilt = False

    def own(self) -> Heard:
        return heard_from(self.standing)

    def job_known(self) -> bool:
        return True

    def join_through(self, sponsor: Standing) -> None:
        self.calls.append("join")

    def found_cluster(self) -> None:
        self.calls.append("found")

    def entered(self) -> bool:
        return self.is_in

    def spoilt(self) -> bool:
        return self.is_spoilt

    def given_up(self) -> None:
        self.calls.append("given up")

    def other_job(self, error: JobMismatch) -> bool:
        return False

    def not_let_in(self, error: JoinRefused) -> bool:
        return False

    def same_identity(self, standing: Standing, address: str) -> None:
        self.calls.append("same identity")


def searching(
    transport: Transport, story: Callable[[Search, Outcome], Coroutine[None, None, None]]
) -> Outcome:
    """Play a story around a search that names one peer; return what it said."""
    outcome = Outcome()

    async def play() -> None:
        loop = asyncio.get_running_loop()
        search = Search(
            cast("TcpTransport", transport),
            ("h:1",),
            False,
            outcome,
            lambda text: None,
            lambda: "",
            loop.create_task,
        )
        task = loop.create_task(search.run())
        try:
            async with asyncio.timeout(20):
                await story(search, outcome)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await search.stop()

    asyncio.run(play())
    return outcome


async def until(done: Callable[[], bool]) -> None:
    """Wait for something."""
    while not done():  # noqa: ASYNC110 - what is awaited says nothing by itself
        await asyncio.sleep(0.01)


def test_a_member_that_is_alone_again_looks_for_others() -> None:
    transport = Transport(lambda: CLUSTER)

    async def story(search: Search, outcome: Outcome) -> None:
        await until(lambda: outcome.calls == ["join"])
        outcome.standing = Standing(ME, "member", 10, 2, b"l", OTHER.node, ())
        outcome.is_in = True
        await until(lambda: not search.joining)
        before = transport.asked
        outcome.standing = Standing(ME, "member", 5, 1, b"k", ME.node, ())  # all others are gone
        await until(lambda: outcome.calls == ["join", "join"])
        assert transport.asked > before

    searching(transport, story)


def test_who_is_spoilt_gives_up() -> None:
    transport = Transport(lambda: CLUSTER)
    before, founding.GIVE_UP_SECONDS = founding.GIVE_UP_SECONDS, 0.2

    async def story(search: Search, outcome: Outcome) -> None:
        await until(lambda: outcome.calls == ["join"])
        outcome.is_spoilt = True
        transport.seconds = 60.0
        search.refused()
        await until(lambda: "given up" in outcome.calls)
        assert "found" not in outcome.calls

    try:
        searching(transport, story)
    finally:
        founding.GIVE_UP_SECONDS = before


def test_a_search_that_was_stopped_says_nothing() -> None:
    def cloned() -> Standing:
        raise SameIdentity("that is us", Standing(PeerInfo(ME.node, 0, "", (), b""), *NOBODY_REST))

    transport = Transport(cloned, seconds=0.1)

    async def story(search: Search, outcome: Outcome) -> None:
        await until(lambda: transport.asked == 1)
        await search.stop()
        await asyncio.sleep(0.2)

    assert searching(transport, story).calls == []


NOBODY_REST = ("founding", 0, 0, b"", b"", ())
