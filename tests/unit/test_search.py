"""The search for a cluster, with a transport that answers as the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from edgeagent import search as searching_module
from edgeagent.search import (
    EXPLAIN_SECONDS,
    TICK_SECONDS,
    UNANSWERED_OFTEN,
    Search,
    heard_from,
)
from edgeagent.transport.api import PeerInfo, Standing
from edgeagent.transport.errors import SameIdentity, Unreachable
from protocols import limits
from protocols.cluster import founding

if TYPE_CHECKING:
    import pytest

    from edgeagent.errors import JobMismatch, JoinRefused
    from edgeagent.transport.tcp import TcpTransport
    from protocols.cluster.founding import Heard

ME = PeerInfo(b"m" * 32, 1, "me", (), b"")
OTHER = PeerInfo(b"o" * 32, 1, "other", (), b"")
CLUSTER = Standing(OTHER, "member", 10, 2, b"l", OTHER.node, ())
NOBODY = Standing(ME, "founding", 0, 0, b"", ME.node, ())


class Transport:
    """A transport that answers after a while."""

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
    """Notes what the search reports."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.found_at: list[PeerInfo] = []
        self.lines: list[str] = []
        self.standing = NOBODY
        self.is_in = False
        self.founds = True
        self.links: list[bytes] = []

    def linked(self) -> tuple[bytes, ...]:
        return tuple(self.links)

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

    def may_found(self) -> bool:
        return self.founds

    def located(self, peer: PeerInfo, lineage: bytes) -> None:
        self.found_at.append(peer)

    def given_up(self) -> None:
        self.calls.append("given up")

    def other_job(self, error: JobMismatch) -> bool:
        return False

    def not_let_in(self, error: JoinRefused) -> bool:
        return False

    def same_identity(self, standing: Standing, address: str) -> None:
        self.calls.append("same identity")


def searching(
    transport: Transport,
    story: Callable[[Search, Outcome], Coroutine[None, None, None]],
    named: tuple[str, ...] = ("h:1",),
) -> Outcome:
    """Play a story with a search that has named peers; return what it reported."""
    outcome = Outcome()

    async def play() -> None:
        loop = asyncio.get_running_loop()
        search = Search(
            cast("TcpTransport", transport),
            named,
            False,
            outcome,
            outcome.lines.append,
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
    """Wait until `done()`."""
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
        assert outcome.found_at[-1] == OTHER

    searching(transport, story)


def test_a_member_does_not_ask_whom_it_is_linked_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching_module, "SETTLED_TICK_SECONDS", 0.01)
    monkeypatch.setattr(founding, "ASK_KIN_SECONDS", 0.02)
    transport = Transport(lambda: CLUSTER)

    async def story(search: Search, outcome: Outcome) -> None:
        await until(lambda: outcome.calls == ["join"])
        outcome.links.append(OTHER.node)
        outcome.standing = replace(CLUSTER, me=ME)
        outcome.is_in = True
        await until(lambda: not search.joining)
        await asyncio.sleep(0.3)
        assert transport.asked == 2, "the second answer showed that it is in the same cluster"
        outcome.links.clear()
        await until(lambda: transport.asked > 3)  # it may be in another cluster now

    searching(transport, story)


def test_who_founds_without_a_named_peer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(founding, "NAMED_PEER_SECONDS", 0.2)

    def nobody() -> Standing:
        raise Unreachable("timed out")

    async def story(search: Search, outcome: Outcome) -> None:
        await until(lambda: "found" in outcome.calls)

    warned = [
        "warning: no agent has answered at pi.local:7430 and [fd00::7]:7430 (--peer): this device"
        " founds a cluster of its own; if one answers later, the two clusters become one"
    ]
    asking = [
        "no port is given for the peer pi.local: asking pi.local:7430",
        "no port is given for the peer [fd00::7]: asking [fd00::7]:7430",
    ]
    outcome = searching(Transport(nobody), story, ("pi.local", "[fd00::7]"))
    assert outcome.lines == asking + warned
    outcome = searching(Transport(lambda: NOBODY), story, ("pi.local:7430",))
    assert outcome.lines == []
    outcome = searching(Transport(nobody), story, ())
    assert outcome.lines == []


def test_a_search_says_whether_it_may_found() -> None:
    async def story(search: Search, outcome: Outcome) -> None:
        assert not search.must_join
        outcome.founds = False
        await until(lambda: outcome.calls == ["join"])
        search.refused()
        assert search.must_join

    searching(Transport(lambda: CLUSTER), story)


def test_an_agent_that_is_announced_and_answers_nowhere_may_be_behind_a_firewall() -> None:
    def nobody() -> Standing:
        raise Unreachable("10.0.0.7:7430: timed out")

    async def story(search: Search, outcome: Outcome) -> None:
        search.hint(("10.0.0.7:7430", "[fd00::7]:7430"))
        await until(lambda: any("firewall" in line for line in outcome.lines))

    said = [line for line in searching(Transport(nobody), story).lines if "announced" in line]
    assert said[0].startswith("an agent of this cluster is announced at ")
    assert "but TCP 7430 does not answer there (10.0.0.7:7430: timed out)" in said[0]


def test_who_has_answered_and_is_gone_is_not_behind_a_firewall(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(founding, "ASK_AGAIN_SECONDS", 0.02)
    monkeypatch.setattr(founding, "ASK_STRANGERS_SECONDS", 0.02)
    gone: list[str] = []

    class Hint(Transport):
        async def ask(self, address: str) -> Standing:
            if gone and address != "h:1":
                gone.append(address)
            return await super().ask(address)

    def answer() -> Standing:
        if gone:
            raise Unreachable("10.0.0.7:7430: Connection refused")
        return CLUSTER

    transport = Hint(answer)

    async def story(search: Search, outcome: Outcome) -> None:
        outcome.standing = Standing(ME, "member", 20, 1, b"l", ME.node, ())
        search.hint(("10.0.0.7:7430", "[fd00::7]:7430"))
        await until(lambda: transport.asked >= 3)
        gone.append("left")
        await until(lambda: len(gone) > 2 * UNANSWERED_OFTEN + 2)

    lines = searching(transport, story).lines
    assert not [line for line in lines if "announced" in line]


def test_after_a_move_everybody_is_asked_again_at_once() -> None:
    def nobody() -> Standing:
        raise Unreachable("10.0.0.7:7430: timed out")

    transport = Transport(nobody)

    async def story(search: Search, outcome: Outcome) -> None:
        for number in range(limits.MAX_HINTS + 5):
            search.hint((f"10.0.{number // 250}.{number % 250}:1",))
        assert len(search._groups) == limits.MAX_HINTS
        await until(lambda: transport.asked > 10)
        search.moved()
        before = transport.asked
        await until(lambda: transport.asked > before)

    searching(transport, story)


def test_a_cluster_whose_view_has_us_counts_us() -> None:
    ours = Standing(OTHER, "member", 10, 2, b"l", OTHER.node, (ME, OTHER))
    before = replace(ME, incarnation=ME.incarnation + 1)
    counts = [heard_from(ours, us).counts_us for us in (ME, before, None)]
    assert counts == [True, False, False]
    assert not heard_from(CLUSTER, ME).counts_us


def test_who_may_not_found_gives_up() -> None:
    transport = Transport(lambda: CLUSTER)
    before, founding.GIVE_UP_SECONDS = founding.GIVE_UP_SECONDS, 0.2

    async def story(search: Search, outcome: Outcome) -> None:
        await until(lambda: outcome.calls == ["join"])
        outcome.founds = False
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


def test_who_waits_for_a_slow_founder_says_so_and_nothing_that_alarms() -> None:
    """This holds also for a device that must not found, as long as another one is about to."""
    for founds in (True, False):
        slow = Standing(OTHER, "founding", 0, 0, b"", min(ME.node, OTHER.node, bytes(32)), ())

        async def story(search: Search, outcome: Outcome, founds: bool = founds) -> None:
            if not founds:
                outcome.founds = False
                search.refused()
            await until(lambda: search._heard_anybody)
            search._begun -= EXPLAIN_SECONDS
            search._heard_at -= EXPLAIN_SECONDS
            await until(lambda: any("waiting" in line for line in outcome.lines))
            await asyncio.sleep(3 * TICK_SECONDS)

        lines = searching(Transport(lambda slow=slow: slow), story).lines  # type: ignore[misc]
        assert lines == ["waiting for another agent, which founds the cluster once it is ready"]


def test_a_named_peer_that_is_not_there_yet_is_told_of_after_a_moment() -> None:
    def nobody() -> Standing:
        raise Unreachable("10.0.0.7:7430 cannot be reached: Connection refused")

    async def story(search: Search, outcome: Outcome) -> None:
        await until(lambda: bool(search._unreachable))
        await asyncio.sleep(3 * TICK_SECONDS)
        assert not outcome.lines
        search._unreachable = {a: t - 3.0 for a, t in search._unreachable.items()}
        await until(lambda: bool(outcome.lines))

    lines = searching(Transport(nobody), story).lines
    assert lines[0] == "10.0.0.7:7430 cannot be reached: Connection refused (trying again)"
