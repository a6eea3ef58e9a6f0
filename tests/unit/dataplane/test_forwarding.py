"""Chunks are forwarded to joiners behind the shards, in order, and never too many at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from edgeagent.dataplane.forwarding import Forwarding
from edgeagent.transport.api import PeerInfo

if TYPE_CHECKING:
    from edgeagent.transport.api import Link
    from protocols.wire.bulk import BulkHeader

JOINER = b"j" * 32
MOST = 450


class Wire:
    """A link that sends when the test says so."""

    def __init__(self) -> None:
        self.peer = PeerInfo(JOINER, 1, "j", (), b"")
        self.bulk_bytes_sent = 0
        self.bulk_queued = 0
        self.frames: list[int] = []

    def send_bulk(self, header: Any, payload: memoryview) -> None:
        self.frames.append(header)
        self.bulk_queued += len(payload)

    def carry(self, size: int) -> None:
        self.bulk_queued -= size
        self.bulk_bytes_sent += size


def chunk(number: int) -> tuple[BulkHeader, memoryview]:
    return cast("BulkHeader", number), memoryview(bytes(100))


def nobody(_: bytes) -> bool:
    return False


def set_up() -> tuple[Forwarding, Wire, Link]:
    wire = Wire()
    return Forwarding(), wire, cast("Link", wire)


def test_chunks_wait_while_the_joiner_pulls_and_keep_their_order() -> None:
    forwarding, wire, link = set_up()
    for number in range(3):
        forwarding.send(link, *chunk(number), hold=True)
    assert wire.frames == []
    assert forwarding.waiting(link) == 300
    forwarding.release(lambda node: True, {JOINER: link})
    assert wire.frames == []
    forwarding.release(lambda node: False, {JOINER: link})
    forwarding.send(link, *chunk(3), hold=False)
    assert wire.frames == [0, 1, 2, 3]


def test_what_comes_later_does_not_overtake() -> None:
    forwarding, wire, link = set_up()
    forwarding.send(link, *chunk(0), hold=True)
    forwarding.send(link, *chunk(1), hold=False)
    assert wire.frames == [0, 1]


def test_what_the_link_has_sent_waits_no_more() -> None:
    forwarding, wire, link = set_up()
    for number in range(4):
        forwarding.send(link, *chunk(number), hold=False)
    assert forwarding.waiting(link) == 400
    wire.carry(250)
    assert forwarding.waiting(link) == 200


def test_nobody_runs_far_ahead_of_a_joiner() -> None:
    forwarding, wire, link = set_up()
    links = {JOINER: link}
    while forwarding.waiting(link) <= MOST:
        assert forwarding.behind(links, MOST, nobody) == []
        forwarding.send(link, *chunk(0), hold=False)
    assert forwarding.behind(links, MOST, nobody) == [link]
    assert forwarding.behind(links, MOST, lambda joiner: joiner == JOINER) == []
    assert forwarding.behind({}, MOST, nobody) == []
    wire.carry(100)
    assert forwarding.behind(links, MOST, nobody) == []


def test_what_is_held_back_keeps_nobody_from_going_on() -> None:
    forwarding, _, link = set_up()
    payload = memoryview(bytes(MOST + 300))
    forwarding.send(link, chunk(0)[0], payload, hold=True)
    assert forwarding.behind({JOINER: link}, MOST, nobody) == []


def test_nothing_is_kept_for_who_is_gone() -> None:
    forwarding, wire, link = set_up()
    forwarding.send(link, *chunk(0), hold=True)
    forwarding.release(lambda node: False, {})
    assert forwarding.waiting(link) == 0
    forwarding.send(link, *chunk(1), hold=True)
    forwarding.send(link, *chunk(2), hold=False)
    forwarding.forget(JOINER)
    assert forwarding.waiting(link) == 0
    assert wire.frames == [1, 2]
