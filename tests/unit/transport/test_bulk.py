"""Bulk frames: straight into the receiver's buffers, bounded at the sender, at full speed."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from edgeagent.transport import bounds
from edgeagent.transport.malloc import tune_malloc
from protocols import limits
from protocols.errors import LocalProtocolError, RemoteProtocolError
from protocols.network.link_end import LinkEnd
from protocols.wire.bulk import BulkHeader, BulkKind

from .helpers import LOOPS, Agent, agent, header, pair_by_id, run, until, until_count, with_agents

if TYPE_CHECKING:
    from edgeagent.transport.api import Link

loops = pytest.mark.parametrize("loop_name", LOOPS)
MIB = 1 << 20


def two() -> tuple[Agent, Agent]:
    small, large = pair_by_id()
    return agent(small), agent(large)


async def linked(one: Agent, other: Agent) -> tuple[Link, Link]:
    link = await one.transport.dial(other.me)
    await until(lambda: len(other.live()) == 1, "the other end is up")
    return link, other.live()[0]


class Region:
    """A preallocated buffer that bulk frames fill in pieces of `piece` bytes."""

    def __init__(self, owner: Agent, size: int, piece: int) -> None:
        self.data = bytearray(size)
        self.received = 0
        self._view = memoryview(self.data)
        self._piece = piece
        owner.on_arriving = self._arriving
        owner.on_bulk = self._received

    def _arriving(self, found: BulkHeader) -> memoryview:
        start = found.index * self._piece
        return self._view[start : start + found.length]

    async def has(self, count: int) -> None:
        """Wait until `count` bytes are there."""
        await until(lambda: self.received >= count, f"{count} bytes")

    def _received(self, _link: Link, found: BulkHeader) -> None:
        self.received += found.length


@loops
def test_64_mib_with_pauses_arrive_in_a_preallocated_buffer(loop_name: str) -> None:
    data = random.Random(3).randbytes(64 * MIB)

    async def body(one: Agent, other: Agent) -> None:
        link, theirs = await linked(one, other)
        region = Region(other, len(data), 4 * MIB)
        view = memoryview(data)
        theirs.pause_bulk()
        theirs.pause_bulk()
        for index in range(16):
            link.send_bulk(header(4 * MIB, index), view[index * 4 * MIB : (index + 1) * 4 * MIB])
        await until(lambda: settled(link), "the sender is stuck")
        assert region.received == 0
        assert link.bulk_queued > 32 * MIB
        assert unsent_below(link) < 4 * MIB
        link.send_control(b"not behind the bulk")
        await until(lambda: other.frames == [b"not behind the bulk"], "control passes")
        for stop in (8 * MIB, 24 * MIB, 40 * MIB):
            theirs.resume_bulk()
            await region.has(stop)
            theirs.pause_bulk()
            await asyncio.sleep(0)
            after = region.received
            link.send_control(b"barrier")
            await until_count(other.frames, len(other.frames) + 1, "a round trip")
            assert region.received - after <= 4 * MIB  # at most the frame being read
        theirs.resume_bulk()
        await until(lambda: region.received == len(data), "all")
        assert region.data == data
        assert link.bulk_queued == 0
        assert link.bulk_bytes_sent == theirs.bulk_bytes_received == len(data)

    run(lambda: with_agents(body, *two()), loop_name)


def unsent_below(link: Link) -> int:
    """Bytes that wait below the link in this process."""
    size: int = link._connections[1].transport.get_write_buffer_size()  # type: ignore[attr-defined]
    return size


def settled(link: Link) -> bool:
    """Whether the sender has stopped because nobody takes its bytes."""
    return bool(link._bulk._paused)  # type: ignore[attr-defined]


@loops
def test_frames_of_all_sizes_keep_their_order(loop_name: str) -> None:
    sizes = [0, 1, 79, 80, 81, 16384, 0, 65536, bounds.BULK_PIECE_BYTES, MIB, 0, 3, 999_999, 17]

    async def body(one: Agent, other: Agent) -> None:
        link, theirs = await linked(one, other)
        for sender, receiver in ((link, other), (theirs, one)):
            payloads = [random.Random(i).randbytes(size) for i, size in enumerate(sizes)]
            for index, payload in enumerate(payloads):
                sender.send_bulk(header(len(payload), index), memoryview(payload))
            await until_count(receiver.payloads, len(sizes), "all")
            assert [found.index for found, _ in receiver.payloads] == list(range(len(sizes)))
            assert [data for _, data in receiver.payloads] == payloads

    run(lambda: with_agents(body, *two()), loop_name)


@loops
@pytest.mark.parametrize("most", [200, 5_000, 200_000])
def test_who_pauses_gets_no_frame_of_those_that_came_with_the_last_one(
    loop_name: str, most: int
) -> None:
    """Many small frames are read at once; a pause holds those back that follow."""
    dice = random.Random(most)
    payloads = [dice.randbytes(dice.randint(0, most)) for _ in range(200)]

    async def body(one: Agent, other: Agent) -> None:
        link, theirs = await linked(one, other)
        paused_after: list[int] = []

        def received(_link: Link, found: BulkHeader) -> None:
            other.payloads.append((found, bytes(other._target)))
            if dice.random() < 0.2:
                theirs.pause_bulk()
                paused_after.append(len(other.payloads))

        other.on_bulk = received
        for index, payload in enumerate(payloads):
            link.send_bulk(header(len(payload), index), memoryview(payload))
        while len(other.payloads) < len(payloads):
            before = len(paused_after)
            await until(
                lambda seen=before: (
                    len(paused_after) > seen  # type: ignore[misc]
                    or len(other.payloads) == len(payloads)
                ),
                "a pause, or the end",
            )
            for _ in range(3):
                await asyncio.sleep(0.001)
            if len(paused_after) > before:
                assert len(other.payloads) == paused_after[-1]
            theirs.resume_bulk()
        assert [data for _, data in other.payloads] == payloads
        assert len(paused_after) > 10

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_dropped_payloads_are_read_and_forgotten(loop_name: str) -> None:
    async def body(one: Agent, other: Agent) -> None:
        link, theirs = await linked(one, other)
        other.drop_bulk = True
        payload = bytes(3 * MIB)
        link.send_bulk(header(len(payload)), memoryview(payload))
        await until(lambda: theirs.bulk_bytes_received == len(payload), "dropped")
        other.drop_bulk = False
        link.send_bulk(header(5), memoryview(b"final"))
        await until(lambda: [data for _, data in other.payloads] == [b"final"], "the next")

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_closing_with_flush_delivers_every_frame_first(loop_name: str) -> None:
    async def body(one: Agent, other: Agent) -> None:
        for round_number in range(5):
            link, _ = await linked(one, other)
            region = Region(other, 16 * MIB, MIB)
            data = memoryview(bytes([round_number + 1]) * 16 * MIB)
            for index in range(16):
                link.send_bulk(header(MIB, index), data[index * MIB : (index + 1) * MIB])
            await link.close(flush=True)
            assert region.received == 16 * MIB
            assert region.data == data
            await until_count(other.downs, round_number + 1, "the other end is down")
            assert other.downs[-1][1:] == ("closed by the peer", LinkEnd.GOODBYE)

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_closing_without_flush_drops_whole_frames_only(loop_name: str) -> None:
    async def body(one: Agent, other: Agent) -> None:
        link, theirs = await linked(one, other)
        theirs.pause_bulk()
        data = memoryview(bytes(4 * MIB))
        for index in range(16):
            link.send_bulk(header(4 * MIB, index), data)
        await until(lambda: settled(link), "the sender is stuck")
        closing = asyncio.create_task(link.close(flush=False))
        await asyncio.sleep(0)
        theirs.resume_bulk()
        await closing
        await until(lambda: len(other.downs) == 1, "the other end is down")
        assert other.downs[0][2] is LinkEnd.GOODBYE
        assert len(other.payloads) < 16

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_the_memory_of_partial_sums_that_were_dropped_can_be_used_again(loop_name: str) -> None:
    async def body(one: Agent, other: Agent) -> None:
        link, theirs = await linked(one, other)
        theirs.pause_bulk()
        count = 16
        region = Region(other, (count + 1) * MIB, MIB)
        sums, shard = bytearray(b"s" * MIB), memoryview(b"t" * MIB)
        for index in range(count):
            link.send_bulk(header(MIB, index, BulkKind.UP), memoryview(sums))
        link.send_bulk(header(MIB, count, BulkKind.SHARD), shard)
        await until(lambda: settled(link), "the sender is stuck")
        link.drop_sums()
        assert link.bulk_queued < 2 * MIB, "the shard and the rest of one sum"
        sums[:] = bytes(len(sums))
        theirs.resume_bulk()
        await until(lambda: region.data[-1:] == b"t", "the shard is there")
        sent = region.received // MIB - 1
        assert 0 < sent < count
        assert region.data[: sent * MIB] == b"s" * (sent * MIB)
        assert region.data[count * MIB :] == shard

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_a_link_lost_in_the_middle_of_a_frame_is_unclean(loop_name: str) -> None:
    async def body(one: Agent, other: Agent) -> None:
        link, _ = await linked(one, other)
        data = memoryview(bytes(4 * MIB))
        for _ in range(16):
            link.send_bulk(header(4 * MIB), data)
        await until(lambda: len(other.payloads) >= 1, "something arrived")
        link.cut("in this test", LinkEnd.CUT)
        await until(lambda: len(other.downs) == 1, "the other end is down")
        assert other.downs[0][2] is LinkEnd.RESET

    run(lambda: with_agents(body, *two()), loop_name)


@loops
@pytest.mark.parametrize("spoil", [b"\x00", b"\xea\x09", b"\xea\x01\x01\x00"])
def test_a_malformed_header_closes_the_link_with_one_line(loop_name: str, spoil: bytes) -> None:
    async def body(one: Agent, other: Agent) -> None:
        link, _ = await linked(one, other)
        data = spoil + b"\xff" * (limits.BULK_HEADER_BYTES - len(spoil))
        link._connections[1].transport.write(data)  # type: ignore[attr-defined]
        await until(lambda: len(other.downs) == 1, "the other end is down")
        assert len(other.lines) == 1
        assert other.lines[0].startswith(f"closed the link to {one.name}: ")

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_a_payload_the_agent_rejects_closes_the_link(loop_name: str) -> None:
    async def body(one: Agent, other: Agent) -> None:
        link, _ = await linked(one, other)

        def reject(_header: BulkHeader) -> memoryview:
            raise RemoteProtocolError("a chunk nobody asked for")

        other.on_arriving = reject
        link.send_bulk(header(4), memoryview(b"data"))
        await until(lambda: len(other.downs) == 1, "the other end is down")
        assert other.lines == [f"closed the link to {one.name}: a chunk nobody asked for"]

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_payloads_that_do_not_fit_their_header_are_our_bug(loop_name: str) -> None:
    async def body(one: Agent, other: Agent) -> None:
        link, _ = await linked(one, other)
        with pytest.raises(LocalProtocolError):
            link.send_bulk(header(3), memoryview(b"data"))
        floats: memoryview[Any] = memoryview(bytearray(64)).cast("f")
        link.send_bulk(header(64, kind=BulkKind.UP), floats)
        await until(lambda: len(other.payloads) == 1, "any flat view may be sent")
        await link.close(flush=True)
        link.send_bulk(header(4), memoryview(b"late"))
        assert link.bulk_queued == 0

    run(lambda: with_agents(body, *two()), loop_name)


@loops
def test_control_stays_quick_under_bulk_both_ways(loop_name: str) -> None:
    async def body(one: Agent, other: Agent) -> None:
        link, theirs = await linked(one, other)
        one.drop_bulk = other.drop_bulk = True
        data = memoryview(bytes(4 * MIB))
        for _ in range(32):
            link.send_bulk(header(4 * MIB), data)
            theirs.send_bulk(header(4 * MIB), data)
        for number in range(20):
            link.send_control(b"%d" % number)
            await until_count(other.frames, number + 1, "control")
        assert link.bulk_queued > 0
        await until(lambda: link.bulk_queued == theirs.bulk_queued == 0, "all sent")

    run(lambda: with_agents(body, *two()), loop_name)


def test_malloc_can_be_tuned() -> None:
    assert tune_malloc() in (True, False)
