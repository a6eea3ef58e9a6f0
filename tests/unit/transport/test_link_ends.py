"""How links end, and what each end is told of the reason (`protocols.network.link_end`).

A process that is killed is a real process here, so that the packets of its system are real, too.
"""

from __future__ import annotations

import asyncio
import errno
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edgeagent.transport import bounds
from edgeagent.transport.framing import reset_on_close
from edgeagent.transport.identity import load_identity
from edgeagent.transport.links import TcpLink, how_it_ended
from protocols.network.link_end import LinkEnd

from .helpers import LOOPS, agent, header, pair_by_id, run, until, until_count, with_agents

if TYPE_CHECKING:
    from edgeagent.transport.framing import Connection

    from .helpers import Agent

loops = pytest.mark.parametrize("loop_name", LOOPS)
ROOT = Path(__file__).resolve().parents[3]
PEER = """
import asyncio, os, sys
from edgeagent.transport.api import PeerInfo
from edgeagent.transport.identity import load_identity
from tests.unit.transport.helpers import Agent

async def main(home, address, node, certificate):
    me = Agent("peer", load_identity(home))
    await me.start()
    other = PeerInfo(bytes.fromhex(node), 1, "other", (address,), bytes.fromhex(certificate))
    me.transport.trust(other.certificate)
    link = await me.transport.dial(other)
    print("up", flush=True)
    if sys.argv[5:]:
        for connection in link._connections:
            connection.transport.pause_reading()
        print("paused", flush=True)
    await asyncio.sleep(60)

asyncio.run(main(*sys.argv[1:5]))
"""


def two() -> tuple[Agent, Agent]:
    small, large = pair_by_id()
    return agent(small), agent(large)


def linked_process(here: Agent, home: Path, *options: str) -> subprocess.Popen[str]:
    """Start a process that opens a link to `here`."""
    me = here.me
    where = [str(home), me.addresses[0], me.node.hex(), me.certificate.hex(), *options]
    command = [sys.executable, "-c", PEER, *where]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@loops
def test_the_end_of_a_killed_process_is_known_for_what_it_is(
    loop_name: str, tmp_path: Path
) -> None:
    async def body(here: Agent) -> None:
        here.transport.trust(load_identity(str(tmp_path)).certificate)
        with linked_process(here, tmp_path) as process:
            await until_count(here.ups, 1, "the link is up")
            process.kill()
            await until_count(here.downs, 1, "the link is down")
        assert [why for _, _, why in here.downs] == [LinkEnd.PROCESS_ENDED]

    run(lambda: with_agents(body, agent("anna")), loop_name)


async def end_of_a_kill(here: Agent, home: Path, unread: str, *, lifeline: bool) -> LinkEnd:
    """Return what the end of a link is taken for if the process at the other end is killed before
    it has read what was sent on its `unread` connections."""
    here.transport.trust(load_identity(str(home)).certificate)
    with linked_process(here, home, "pause") as process:
        await until_count(here.ups, 1, "the link is up")
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        if not lifeline:
            life = here.ups[0]._life  # type: ignore[attr-defined]
            life.reset()
            await until(lambda: life.has_ended, "the lifeline has ended")
            assert here.downs == []  # the link goes on without
            life._ended_at -= bounds.TOGETHER_SECONDS  # this was long ago
        if unread != "bulk":
            here.ups[0].send_control(b"not read any more")
        if unread != "control":
            here.ups[0].send_bulk(header(4), memoryview(b"data"))
            bulk = here.ups[0]._bulk  # type: ignore[attr-defined]
            await until(lambda: bulk.idle, "the bulk frame is on its way")
        process.kill()
        await until_count(here.downs, 1, "the link is down")
    return here.downs[0][2]


@loops
@pytest.mark.parametrize("unread", ["control", "bulk", "both"])
def test_a_process_killed_with_bytes_unread(loop_name: str, unread: str, tmp_path: Path) -> None:
    """The lifeline proves the death, although connections with unread bytes are reset."""

    async def body(here: Agent) -> None:
        end = await end_of_a_kill(here, tmp_path, unread, lifeline=True)
        assert end is LinkEnd.PROCESS_ENDED

    run(lambda: with_agents(body, agent("anna")), loop_name)


@loops
@pytest.mark.parametrize("unread", ["control", "bulk", "both"])
def test_a_process_killed_after_its_lifeline_was_reset(
    loop_name: str, unread: str, tmp_path: Path
) -> None:
    """One connection on which everything was read proves the death; resets on both prove
    nothing."""

    async def body(here: Agent) -> None:
        end = await end_of_a_kill(here, tmp_path, unread, lifeline=False)
        assert end is (LinkEnd.RESET if unread == "both" else LinkEnd.PROCESS_ENDED)

    run(lambda: with_agents(body, agent("anna")), loop_name)


@loops
def test_what_is_sent_on_a_lifeline_ends_the_link(loop_name: str) -> None:
    async def body(small: Agent, large: Agent) -> None:
        link = await small.transport.dial(large.me)
        await until_count(large.ups, 1, "the other end is up")
        link._life._connection.transport.write(b"x")  # type: ignore[attr-defined]
        await until_count(large.downs, 1, "the other end is down")
        assert large.downs[0][2] is LinkEnd.PROTOCOL_ERROR

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_a_link_outlives_its_lifeline_and_closes_with_a_goodbye(loop_name: str) -> None:
    async def body(small: Agent, large: Agent) -> None:
        link = await small.transport.dial(large.me)
        await until_count(large.ups, 1, "the other end is up")
        link._life.reset()  # type: ignore[attr-defined]
        life = large.ups[0]._life  # type: ignore[attr-defined]
        await until(lambda: life.has_ended, "the other end knows")
        link.send_control(b"still here")
        await until_count(large.frames, 1, "a frame has come")
        await link.close(flush=True)
        await until_count(large.downs, 1, "the other end is down")
        assert [x[2] for x in (*small.downs, *large.downs)] == [LinkEnd.GOODBYE] * 2

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_a_living_agent_that_cuts_a_link_is_not_taken_for_dead(loop_name: str) -> None:
    async def body(small: Agent, large: Agent) -> None:
        link = await small.transport.dial(large.me)
        await until_count(large.ups, 1, "the other end is up")
        link.cut("in this test", LinkEnd.PROTOCOL_ERROR)
        link.cut("again", LinkEnd.CUT)
        assert [x[1:] for x in small.downs] == [("in this test", LinkEnd.PROTOCOL_ERROR)]
        await until_count(large.downs, 1, "the other end is down")
        assert large.downs[0][2] is LinkEnd.RESET
        assert not large.downs[0][2].proves_departure

    run(lambda: with_agents(body, *two()), loop_name)


def close_in_order(connection: Connection) -> None:
    """Close a connection as a TLS library does after damaged bytes: at once, but in order."""
    connection.transport.abort()


@loops
@pytest.mark.parametrize("number", [0, 1])
def test_a_living_agent_whose_connection_was_closed_in_order_is_not_taken_for_dead(
    loop_name: str, number: int
) -> None:
    async def body(small: Agent, large: Agent) -> None:
        link = await small.transport.dial(large.me)
        await until_count(large.ups, 1, "the other end is up")
        close_in_order(link._connections[number])  # type: ignore[attr-defined]
        await until_count(large.downs, 1, "the other end is down")
        assert large.downs[0][2] is LinkEnd.RESET

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_a_lifeline_that_a_proxy_closes_ends_no_link_and_proves_nothing_later(
    loop_name: str,
) -> None:
    async def body(small: Agent, large: Agent) -> None:
        link = await small.transport.dial(large.me)
        await until_count(large.ups, 1, "the other end is up")
        close_in_order(link._life._connection)  # type: ignore[attr-defined]
        life = large.ups[0]._life  # type: ignore[attr-defined]
        await until(lambda: life.has_ended, "the other end knows")
        link.send_control(b"still here")
        await until_count(large.frames, 1, "a frame has come")
        life._ended_at -= 2 * bounds.TOGETHER_SECONDS  # this was long ago
        close_in_order(link._connections[0])  # type: ignore[attr-defined]
        await until_count(large.downs, 1, "the other end is down")
        assert large.downs[0][2] is LinkEnd.RESET

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_a_close_goes_on_if_whoever_waits_for_it_is_cancelled(loop_name: str) -> None:
    async def body(small: Agent, large: Agent) -> None:
        link = await small.transport.dial(large.me)
        await until_count(large.ups, 1, "the other end is up")
        waits = asyncio.create_task(link.close(flush=True))
        await asyncio.sleep(0)
        waits.cancel()
        await until_count(large.downs, 1, "the other end is down")
        await until_count(small.downs, 1, "this end is down")
        assert [x[2] for x in (*small.downs, *large.downs)] == [LinkEnd.GOODBYE] * 2

    run(lambda: with_agents(body, *two()), loop_name)


@loops
@pytest.mark.parametrize(("unsent", "end"), [((9, 8, 7, 6, 5), LinkEnd.GOODBYE), ((9, 9), None)])
def test_a_close_waits_as_long_as_a_slow_link_takes_what_was_written(
    loop_name: str,
    unsent: tuple[int, ...],
    end: LinkEnd | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "CLOSE_SECONDS", 0.1)
    left = [*unsent]
    monkeypatch.setattr(
        TcpLink, "_unsent", property(lambda _: left.pop(0) if left[1:] else left[0])
    )

    async def body(small: Agent, large: Agent) -> None:
        link = await small.transport.dial(large.me)
        await until_count(large.ups, 1, "the other end is up")
        control, _ = large.ups[0]._connections  # type: ignore[attr-defined]
        control.pause_reading()
        closing = asyncio.create_task(link.close(flush=True))
        await asyncio.sleep(0.25)
        control.resume_reading()
        await closing
        await until_count(large.downs, 1, "the other end is down")
        assert (large.downs[0][2] is LinkEnd.GOODBYE) is (end is LinkEnd.GOODBYE)

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_half_a_goodbye_ends_the_link_in_time(
    loop_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "FLUSH_SECONDS", 0.1)
    monkeypatch.setattr(bounds, "CLOSE_SECONDS", 0.1)

    async def body(small: Agent, large: Agent) -> None:
        link = await small.transport.dial(large.me)
        await until_count(large.ups, 1, "the other end is up")
        link._control.send(b"")  # type: ignore[attr-defined]
        await until(
            lambda: large.transport._links.get(small.me.node) is None, "nothing is sent to it"
        )
        await until_count(large.downs, 1, "the other end is down")
        assert large.downs[0][2] is LinkEnd.GOODBYE

    run(lambda: with_agents(body, *two()), loop_name)


@loops
@pytest.mark.parametrize("broken", ["control", "bulk"])
def test_who_closed_while_we_slept_is_not_taken_for_dead(loop_name: str, broken: str) -> None:
    """A device that wakes may write before it reads: then the other's last words on that connection
    are lost. On the other connection a TLS transport that finds the end reads only one buffer."""

    async def body(small: Agent, large: Agent) -> None:
        link = await small.transport.dial(large.me)
        await until_count(large.ups, 1, "the other end is up")
        asleep = large.ups[0]
        for connection in asleep._connections:  # type: ignore[attr-defined]
            connection.pause_reading()
        link.send_control(b"not read any more")
        for number in range(3):
            link.send_bulk(header(4, number), memoryview(b"data"))
        await link.close(flush=False)
        closed = link._connections  # type: ignore[attr-defined]
        await until(lambda: all(c._lost for c in closed), "the system ends both connections")
        assert [why for _, _, why in small.downs] == [LinkEnd.GOODBYE]
        first, second = asleep._connections  # type: ignore[attr-defined]
        if broken == "bulk":
            first, second = second, first
        first.connection_lost(BrokenPipeError(errno.EPIPE, "broken pipe"))
        second.resume_reading()
        await until_count(large.downs, 1, "the sleeper's end is down")
        assert (large.downs[0][2], large.frames) == (LinkEnd.RESET, [])

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_nothing_is_delivered_or_sent_between_the_ends_of_two_connections(loop_name: str) -> None:
    async def body(small: Agent, large: Agent) -> None:
        link = await small.transport.dial(large.me)
        await until_count(large.ups, 1, "the other end is up")
        _control, bulk = large.ups[0]._connections  # type: ignore[attr-defined]
        bulk.abort()
        lasting = small.transport._links.get
        await until(lambda: lasting(large.me.node) is None, "another may take its place")
        assert small.downs == []
        large.ups[0].send_control(b"too late")
        link.send_control(b"too late")
        await until_count(small.downs, 1, "the link is down")
        assert (small.downs[0][2], small.frames) == (LinkEnd.RESET, [])

    run(lambda: with_agents(body, *two()), loop_name)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (None, LinkEnd.PROCESS_ENDED),
        (ConnectionResetError(errno.ECONNRESET, "reset"), LinkEnd.RESET),
        (BrokenPipeError(errno.EPIPE, "broken pipe"), LinkEnd.RESET),
        (ConnectionAbortedError("closed here"), LinkEnd.RESET),
        (TimeoutError(errno.ETIMEDOUT, "timed out"), LinkEnd.SOCKET_ERROR),
        (OSError(errno.EHOSTUNREACH, "no route"), LinkEnd.SOCKET_ERROR),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), LinkEnd.SOCKET_ERROR),
    ],
)
def test_what_an_error_says(error: Exception | None, why: LinkEnd) -> None:
    assert how_it_ended(error) is why
    assert not how_it_ended(error, said_goodbye=True).proves_departure


def test_a_connection_that_has_no_socket_any_more_is_left_alone() -> None:
    class Closed:
        def get_extra_info(self, name: str) -> None:
            return None

    reset_on_close(Closed())  # type: ignore[arg-type]
