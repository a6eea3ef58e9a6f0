"""Links: one for each pair however it was dialled, their end, and who may have one."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

import pytest

from edgeagent.transport import bounds, dialler, link_wire, tcp, tls
from edgeagent.transport.dialler import Dialler
from edgeagent.transport.errors import LinkRefused, Unreachable
from protocols import limits
from protocols.errors import LocalProtocolError
from protocols.network.link_end import LinkEnd
from protocols.wire.packing import encode_tagged

from .helpers import (
    LOOPS,
    Agent,
    agent,
    changed,
    header,
    identity,
    pair_by_id,
    run,
    until,
    with_agents,
)

if TYPE_CHECKING:
    from edgeagent.transport.api import Link, PeerInfo
    from edgeagent.transport.framing import Connection

loops = pytest.mark.parametrize("loop_name", LOOPS)
both_ways = pytest.mark.parametrize("small_dials", [True, False])


def two(**options: object) -> tuple[Agent, Agent]:
    """Return two agents, the one with the smaller id first."""
    small, large = pair_by_id()
    return agent(small, **options), agent(large, **options)


def the_link(one: Agent, other: Agent) -> tuple[Link, Link]:
    """Return the only link of each; fail if there are more, or they do not belong together."""
    assert len(one.live()) == 1
    assert len(other.live()) == 1
    ours, theirs = one.live()[0], other.live()[0]
    assert ours.peer == other.me
    assert theirs.peer == one.me
    return ours, theirs


async def answers(one: Agent, other: Agent, text: bytes = b"ping") -> None:
    """Check that the link carries frames both ways."""
    ours, theirs = the_link(one, other)
    before = len(one.frames), len(other.frames)
    ours.send_control(text)
    theirs.send_control(text)
    await until(
        lambda: (len(one.frames), len(other.frames)) == (before[0] + 1, before[1] + 1), "frames"
    )


@loops
@both_ways
def test_a_dialled_link_carries_frames_both_ways(loop_name: str, small_dials: bool) -> None:
    async def body(small: Agent, large: Agent) -> None:
        one, other = (small, large) if small_dials else (large, small)
        link = await one.transport.dial(other.me)
        assert one.live() == [link]
        assert await one.transport.dial(other.me) is link
        await until(lambda: len(other.ups) == 1, "the other end is up")
        await answers(one, other)
        ours, theirs = the_link(one, other)
        sizes = [1, 65531, 65532, 65533, 65536, 100_000, 5, limits.MAX_CONTROL_BYTES, 3]
        random.Random(1).shuffle(sizes)
        one.frames.clear()
        frames = [bytes([i + 1]) * size for i, size in enumerate(sizes)]
        for frame in frames:
            theirs.send_control(frame)
        await until(lambda: len(one.frames) == len(frames), "all frames")
        assert one.frames == frames
        for wrong in (b"", bytes(limits.MAX_CONTROL_BYTES + 1)):
            with pytest.raises(LocalProtocolError):
                ours.send_control(wrong)

    run(lambda: with_agents(body, *two()), loop_name)


@loops
@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0", "localhost:0"])
def test_links_over_ipv4_and_ipv6(loop_name: str, listen: str) -> None:
    async def body(small: Agent, large: Agent) -> None:
        standing = await small.transport.ask(large.join_addresses[0])
        await small.transport.dial(standing.me)
        await until(lambda: len(large.ups) == 1, "the other end is up")
        await answers(small, large)

    run(lambda: with_agents(body, *two(), listen=listen), loop_name)


@loops
def test_simultaneous_dialling_gives_one_link(loop_name: str) -> None:
    async def body(small: Agent, large: Agent) -> None:
        for round_number in range(30):
            dials = [small.transport.dial(large.me), large.transport.dial(small.me)]
            if round_number % 3 == 1:
                dials += [small.transport.dial(large.me), large.transport.dial(small.me)]
            links = await asyncio.gather(*dials)
            await until(lambda: len(small.live()) == len(large.live()) == 1, "one link each")
            assert set(links) == {small.live()[0], large.live()[0]}
            await answers(small, large)
            assert len(small.ups) == len(large.ups) == round_number + 1
            await links[round_number % 2].close(flush=True)
            await until(lambda: small.live() == large.live() == [], "closed")
        assert all(why is LinkEnd.GOODBYE for _, _, why in small.downs + large.downs)
        assert small.lines == large.lines == []

    run(lambda: with_agents(body, *two()), loop_name)


@loops
@pytest.mark.parametrize("others_wait", [False, True])
def test_a_dial_that_is_cancelled_opens_no_link_unless_others_wait_for_it(
    loop_name: str, others_wait: bool
) -> None:
    async def body(small: Agent, large: Agent) -> None:
        dialler, may_reach = small.transport._dialler, asyncio.Event()
        reach = dialler._first_reached

        async def slowly(peer: PeerInfo) -> tuple[str, Connection]:
            await may_reach.wait()
            return await reach(peer)

        dialler._first_reached = slowly  # type: ignore[method-assign]
        dials = [
            asyncio.create_task(small.transport.dial(large.me)) for _ in range(1 + others_wait)
        ]
        await until(lambda: dialler._waiting.total() == len(dials), "it is dialled")
        dials[0].cancel()
        await asyncio.wait(dials[:1])
        if others_wait:
            may_reach.set()
            assert await dials[1] in small.ups
            await until(lambda: len(large.ups) == 1, "the other end is up")
        else:
            await until(lambda: not dialler._dialling, "it is given up")
            may_reach.set()
            assert not small.ups
            await small.transport.dial(large.me)
            await until(lambda: len(small.ups) == len(large.ups) == 1, "the next dial is another")
        assert not dialler._waiting

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_twelve_agents_dialling_everybody_at_once(loop_name: str) -> None:
    async def body(*agents: Agent) -> None:
        await asyncio.gather(
            *(one.transport.dial(two.me) for one in agents for two in agents if one is not two)
        )
        await until(lambda: all(len(one.live()) == 11 for one in agents), "all links are up")
        for one in agents:
            assert len({link.peer.node for link in one.live()}) == 11
            assert one.lines == []

    run(lambda: with_agents(body, *(agent(f"node {i}") for i in range(12))), loop_name)


@loops
def test_who_has_moved_tells_its_new_addresses(
    loop_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(small: Agent, large: Agent) -> None:
        before = large.me.addresses
        monkeypatch.setattr(tcp, "told_addresses", lambda _sockets, _interface: ("192.0.2.7:1",))
        assert small.transport.renew_addresses() == ("192.0.2.7:1",)
        await small.transport.dial(large.me)
        await until(lambda: len(large.ups) == 1, "the link is up")
        assert large.ups[0].peer.addresses == ("192.0.2.7:1",)
        assert large.me.addresses == before
        small.transport.shorten(large.me.node, 1220)

    run(lambda: with_agents(body, *two()), loop_name)


@loops
@both_ways
def test_an_end_that_lost_the_link_gets_a_new_one(loop_name: str, small_dials: bool) -> None:
    """One end forgets the link without the other noticing, and it dials again."""

    async def body(small: Agent, large: Agent) -> None:
        one, other = (small, large) if small_dials else (large, small)
        first = await one.transport.dial(other.me)
        await until(lambda: len(other.ups) == 1, "the other end is up")
        held = other.ups[0]
        one.transport._links._link_gone(first)  # type: ignore[arg-type]
        second = await one.transport.dial(other.me)
        assert second is not first
        await until(lambda: len(other.live()) == 1 and len(other.ups) == 2, "the new link is up")
        assert other.downs[0][0] is held
        assert other.downs[0][2] is LinkEnd.REPLACED
        await until(lambda: len(one.live()) == 1, "the old link is down here, too")
        await answers(one, other)

    run(lambda: with_agents(body, *two()), loop_name)


@loops
@both_ways
def test_a_newer_start_of_a_node_replaces_the_older(loop_name: str, small_dials: bool) -> None:
    names = pair_by_id()
    first, other = (agent(n) for n in (names if small_dials else names[::-1]))
    newer = agent(first.name, incarnation=2)

    async def body(first: Agent, other: Agent, newer: Agent) -> None:
        await first.transport.dial(other.me)
        await until(lambda: len(other.ups) == 1, "the first link is up")
        await newer.transport.dial(other.me)
        await until(lambda: len(other.ups) == 2, "the new link is up")
        assert [(reason, why) for _, reason, why in other.downs] == [
            ("the peer started anew", LinkEnd.STARTED_ANEW)
        ]
        assert other.live()[0].peer.incarnation == 2
        await until(lambda: len(first.downs) == 1, "the old one knows")
        with pytest.raises(LinkRefused, match="newer start"):
            await first.transport.dial(other.me)
        await answers(newer, other)

    run(lambda: with_agents(body, first, other, newer), loop_name)


@loops
def test_closing_is_clean_at_both_ends_and_delivers_what_was_queued(loop_name: str) -> None:
    async def body(small: Agent, large: Agent) -> None:
        link = await small.transport.dial(large.me)
        for number in range(100):
            link.send_control(b"frame %d" % number)
        await asyncio.gather(link.close(flush=True), link.close(flush=True))
        await link.close(flush=False)
        assert [(reason, why) for _, reason, why in small.downs] == [
            ("closed by us", LinkEnd.GOODBYE)
        ]
        await until(lambda: len(large.downs) == 1, "the other end is down")
        assert large.downs[0][1:] == ("closed by the peer", LinkEnd.GOODBYE)
        assert large.frames == [b"frame %d" % number for number in range(100)]
        link.send_control(b"too late")

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_both_ends_may_close_at_once(loop_name: str) -> None:
    async def body(small: Agent, large: Agent) -> None:
        link = await small.transport.dial(large.me)
        await until(lambda: len(large.ups) == 1, "the other end is up")
        await asyncio.gather(link.close(flush=True), large.ups[0].close(flush=False))
        assert [why for _, _, why in small.downs + large.downs] == [LinkEnd.GOODBYE] * 2

    run(lambda: with_agents(body, *two()), loop_name)


@loops
@pytest.mark.parametrize("which", [0, 1])
def test_a_lost_connection_is_unclean_at_both_ends(loop_name: str, which: int) -> None:
    async def body(small: Agent, large: Agent) -> None:
        link = await small.transport.dial(large.me)
        await until(lambda: len(large.ups) == 1, "the other end is up")
        link._connections[which].abort()  # type: ignore[attr-defined]
        await until(lambda: len(small.downs) == len(large.downs) == 1, "both ends are down")
        assert [why for _, _, why in small.downs + large.downs] == [LinkEnd.RESET] * 2
        assert large.downs[0][1].startswith("connection lost")
        await small.transport.dial(large.me)
        await until(lambda: len(large.ups) == 2, "a new link is up")
        await answers(small, large)

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_a_hung_peer_does_not_hold_up_a_close(
    loop_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "CLOSE_SECONDS", 0.1)

    async def body(small: Agent, large: Agent) -> None:
        link = await small.transport.dial(large.me)
        await until(lambda: len(large.ups) == 1, "the other end is up")
        for connection in large.ups[0]._connections:  # type: ignore[attr-defined]
            connection.transport.pause_reading()
        await link.close(flush=True)
        assert small.downs[0][1:] == ("closed by us", LinkEnd.GOODBYE)
        for connection in large.ups[0]._connections:  # type: ignore[attr-defined]
            connection.transport.resume_reading()
        await until(lambda: len(large.downs) == 1, "the other end is down")

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_stopping_cuts_links_that_do_not_end_in_time(loop_name: str) -> None:
    async def body(small: Agent, large: Agent) -> None:
        link = await small.transport.dial(large.me)
        await until(lambda: len(large.ups) == 1, "the other end is up")
        large.ups[0].pause_bulk()
        payload = bytes(4 << 20)
        for _ in range(8):
            link.send_bulk(header(len(payload)), memoryview(payload))
        before = asyncio.get_running_loop().time()
        await small.transport.stop(seconds=0.2)
        assert asyncio.get_running_loop().time() - before < bounds.FLUSH_SECONDS / 2
        assert small.downs[0][1:] == ("closed by us", LinkEnd.CUT)
        large.ups[0].resume_bulk()
        await until(lambda: len(large.downs) == 1, "the other end is down")
        assert large.downs[0][2] is LinkEnd.RESET

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_a_frame_the_agent_rejects_closes_that_link_with_one_line(loop_name: str) -> None:
    async def body(small: Agent, large: Agent) -> None:
        link = await small.transport.dial(large.me)
        link.send_control(b"fine")
        link.send_control(large.refuse_frame)
        link.send_control(b"never seen")
        await until(lambda: len(small.downs) == len(large.downs) == 1, "both ends are down")
        assert large.frames == [b"fine"]
        assert large.lines == [f"closed the link to {small.name}: a frame nobody understands"]
        assert large.downs[0][1:] == ("a frame nobody understands", LinkEnd.PROTOCOL_ERROR)

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_an_oversized_control_frame_closes_the_link(loop_name: str) -> None:
    async def body(small: Agent, large: Agent) -> None:
        link = await small.transport.dial(large.me)
        link._connections[0].transport.write(b"\x7f\xff\xff\xff")  # type: ignore[attr-defined]
        await until(lambda: len(large.downs) == 1, "the other end is down")
        assert "over the limit" in large.lines[0]

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_a_peer_that_does_not_read_is_cut_off(
    loop_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MAX_CONTROL_QUEUE_BYTES", 1 << 20)

    async def body(small: Agent, large: Agent) -> None:
        link = await small.transport.dial(large.me)
        await until(lambda: len(large.ups) == 1, "the other end is up")
        large.ups[0]._connections[0].transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(400):
            link.send_control(bytes(1 << 20))
            await asyncio.sleep(0)
        why = ("it does not read its control connection", LinkEnd.PROTOCOL_ERROR)
        assert small.downs[0][1:] == why
        large.ups[0]._connections[0].transport.resume_reading()  # type: ignore[attr-defined]

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_an_expelled_node_loses_its_link_and_gets_no_other(loop_name: str) -> None:
    async def body(small: Agent, large: Agent) -> None:
        await large.transport.dial(small.me)
        await until(lambda: len(small.ups) == 1, "the link is up")
        small.transport.distrust(large.me.node)
        assert small.downs[0][1:] == ("not trusted any more", LinkEnd.CUT)
        await until(lambda: len(large.downs) == 1, "the other end is down")
        with pytest.raises(Unreachable):
            await large.transport.dial(small.me)
        with pytest.raises(Unreachable):
            await small.transport.dial(large.me)
        small.transport.trust(large.me.certificate)
        await small.transport.dial(large.me)
        await until(lambda: len(large.ups) == 2, "a new link is up")

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_dialling_somebody_else_or_nobody_fails_clearly(loop_name: str) -> None:
    async def body(small: Agent, large: Agent, third: Agent) -> None:
        with pytest.raises(Unreachable, match=f"is not {large.name}"):
            await small.transport.dial(changed(large.me, addresses=third.me.addresses))
        with pytest.raises(Unreachable, match="no address"):
            await small.transport.dial(changed(large.me, addresses=()))
        with pytest.raises(Unreachable, match="cannot be reached"):
            await small.transport.dial(changed(large.me, addresses=("127.0.0.1:1", "[::1]:1")))
        addresses = ("127.0.0.1:1", *third.me.addresses, *large.me.addresses)
        await small.transport.dial(changed(large.me, addresses=addresses))
        await until(lambda: len(large.ups) == 1, "the link is up")
        assert third.ups == []

    run(lambda: with_agents(body, *two(), agent("cleo")), loop_name)


@loops
def test_an_address_that_refuses_is_not_waited_for(
    loop_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "DIAL_STAGGER_SECONDS", 1000.0)

    async def body(small: Agent, large: Agent) -> None:
        addresses = ("127.0.0.1:1", "127.0.0.1:2", *large.me.addresses)
        await small.transport.dial(changed(large.me, addresses=addresses))
        await until(lambda: len(large.ups) == 1, "the link is up")

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_an_agent_refuses_more_links_than_it_may_have(
    loop_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_LINKS_PER_NODE", 1)

    async def body(small: Agent, large: Agent, third: Agent) -> None:
        await small.transport.dial(large.me)
        with pytest.raises(LinkRefused, match="as many links"):
            await third.transport.dial(small.me)

    run(lambda: with_agents(body, *two(), agent("cleo")), loop_name)


@loops
@both_ways
def test_an_opening_that_gets_stuck_ends_in_time(
    loop_name: str, small_dials: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dialling end stops after its first hello; both ends give up, nothing is left."""
    monkeypatch.setattr(limits, "LINK_OPEN_SECONDS", 0.3)
    connect = Dialler._connect

    async def stuck(
        self: Dialler, address: str, peer: object, channel: link_wire.Channel
    ) -> Connection:
        if channel is link_wire.Channel.BULK:
            await asyncio.Event().wait()
        return await connect(self, address, peer, channel)  # type: ignore[arg-type]

    monkeypatch.setattr(Dialler, "_connect", stuck)

    async def body(small: Agent, large: Agent) -> None:
        one, other = (small, large) if small_dials else (large, small)
        with pytest.raises(Unreachable, match="within"):
            await one.transport.dial(other.me)
        assert one.ups == other.ups == []
        monkeypatch.setattr(Dialler, "_connect", connect)
        await one.transport.dial(other.me)
        await until(lambda: len(other.ups) == 1, "the link is up")

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_connections_on_which_a_peer_says_nothing_are_bounded(loop_name: str) -> None:
    async def body(small: Agent, large: Agent) -> None:
        trust = large.transport._trust
        host, port = small.me.addresses[0].rsplit(":", 1)
        streams = [
            await asyncio.open_connection(host, int(port), ssl=trust.client, server_hostname="")
            for _ in range(bounds.MAX_SILENT_PER_PEER + 5)
        ]
        first, _ = streams[4]
        with contextlib.suppress(ConnectionResetError):
            assert await first.read(1) == b""
        assert small.transport._listeners is not None
        silent = small.transport._listeners[1]._silent
        await until(lambda: len(silent[large.me.node]) == bounds.MAX_SILENT_PER_PEER, "the rest")
        await large.transport.dial(small.me)
        for _, writer in streams:
            writer.close()
        await until(lambda: not silent, "nothing is kept")

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_half_open_links_of_one_peer_are_bounded(loop_name: str) -> None:
    async def body(small: Agent, large: Agent) -> None:
        trust = large.transport._trust
        host, port = small.me.addresses[0].rsplit(":", 1)
        streams = []
        for number in range(10):
            reader, writer = await asyncio.open_connection(
                host, int(port), ssl=trust.client, server_hostname=""
            )
            hello = large.transport._links.hello(link_wire.Channel.CONTROL, bytes([number]) * 16)
            body_bytes = encode_tagged(hello)
            writer.write(len(body_bytes).to_bytes(4, "big") + body_bytes)
            streams.append((reader, writer))
            await reader.readexactly(4)
        openings = small.transport._links._openings[large.me.node]
        assert len(openings) == bounds.MAX_OPENINGS_PER_PEER
        for reader, writer in streams:
            writer.close()
            with contextlib.suppress(OSError):
                while await reader.read(1 << 16):
                    pass
        await until(lambda: not small.transport._links.is_opening(large.me.node), "all are over")
        await large.transport.dial(small.me)

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_stopping_in_the_middle_of_dialling_leaves_nothing(loop_name: str) -> None:
    async def body(small: Agent, large: Agent) -> None:
        for steps in range(0, 40, 3):
            one, other = agent("eve", incarnation=steps + 2), agent("finn", incarnation=steps + 2)
            await one.start()
            await other.start()
            one.transport.trust(identity("finn").certificate)
            other.transport.trust(identity("eve").certificate)
            dial = asyncio.create_task(one.transport.dial(other.me))
            for _ in range(steps):
                await asyncio.sleep(0)
            await asyncio.gather(one.transport.stop(), other.transport.stop())
            with contextlib.suppress(Unreachable, LinkRefused):
                await dial
            assert one.live() == other.live() == []

    run(lambda: with_agents(body, *two()), loop_name)


@loops
@both_ways
def test_a_newer_start_is_let_in_while_its_node_is_about_to_be_distrusted(
    loop_name: str, small_dials: bool
) -> None:
    """The agent distrusts a node when its old link ends: the one that replaces it stays."""
    names = pair_by_id()
    first, other = (agent(n) for n in (names if small_dials else names[::-1]))
    newer = agent(first.name, incarnation=2)

    async def body(first: Agent, other: Agent, newer: Agent) -> None:
        await first.transport.dial(other.me)
        await until(lambda: len(other.ups) == 1, "the first link is up")
        down = other.link_down

        def link_down(link: Link, reason: str, why: LinkEnd) -> None:
            down(link, reason, why)
            if link.peer.incarnation == 1:
                other.transport.distrust(link.peer.node)

        other.link_down = link_down  # type: ignore[method-assign]
        await newer.transport.dial(other.me)
        await until(lambda: len(other.ups) == 2, "the new link is up")
        await answers(newer, other)
        assert other.transport._trust.certificate(newer.me.node) is not None

    run(lambda: with_agents(body, first, other, newer), loop_name)


def test_trust_is_bounded_and_forgets_who_was_trusted_longest_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_TRUSTED_NODES", 3)
    trust = tls.Trust(identity("anna"))
    names = ("ben", "cleo", "dora", "eve")
    for name in (*names[:3], "ben"):
        trust.add(identity(name).certificate)
    trust.add(identity("eve").certificate)
    known = [name for name in names if trust.certificate(identity(name).node) is not None]
    assert known == ["ben", "dora", "eve"]


@loops
def test_dialling_an_address_that_no_resolver_takes_fails_clearly(
    loop_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(small: Agent, large: Agent) -> None:
        monkeypatch.setattr(dialler, "split_address", lambda address: ("a..b", 1))
        with pytest.raises(Unreachable, match="cannot be reached"):
            await small.transport.dial(large.me)

    run(lambda: with_agents(body, *two()), loop_name)
