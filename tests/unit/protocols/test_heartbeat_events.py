"""Heartbeats are answered and measured, and no other part of a node looks at them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from protocols import effects, events
from protocols.wire import messages as m
from protocols.wire.envelope import Envelope, Tags
from tests.unit.protocols.clusters import cluster, node_of

if TYPE_CHECKING:
    from tests.simulation.world import Host

LINEAGE, US, PEER = b"our own lineage.", b"u" * 32, b"p" * 32
TAGS = Tags(LINEAGE, 1, 1, 1, 5, 0, PEER, 1, 9, US, 0)


def heard(message: m.Message, tags: Tags = TAGS) -> events.Received:
    return events.Received(PEER, Envelope(tags, message))


def message_of(sender: Host, to: Host, message: m.Message) -> events.Received:
    context = node_of(sender).context
    tags = (context.lineage, context.election.term, 0, 0, 0, 0)
    return events.Received(sender.me.node, context.router.stamp(tags, to.me.node, message))


def test_only_a_neighbours_ping_or_pong_in_the_own_lineage_is_a_heartbeat() -> None:
    for message in (m.Ping(1.0), m.Pong(1.0)):
        assert events.is_heartbeat(heard(message), LINEAGE)
        assert not events.is_heartbeat(heard(message), b"another lineage.")
        assert not events.is_heartbeat(heard(message, replace(TAGS, origin=b"r" * 32)), LINEAGE)
        assert not events.is_heartbeat(heard(message, replace(TAGS, lineage=bytes(16))), LINEAGE)
    assert not events.is_heartbeat(heard(m.LinkLost(PEER, reset=False)), LINEAGE)
    assert not events.is_heartbeat(events.Tick(), LINEAGE)


def test_a_heartbeat_leads_to_its_answer_alone_and_leaves_what_is_due_to_others() -> None:
    world, hosts = cluster(0)
    node = node_of(hosts[0])
    node.handle(world.now, events.LeaveWanted())  # asks again after a while if nobody answers
    late = world.now + 60.0
    assert node.deadline is not None
    assert node.deadline < late
    (answer,) = node.handle(late, message_of(hosts[1], hosts[0], m.Ping(1.0)))
    assert isinstance(answer, effects.Send)
    assert answer.envelope.message == m.Pong(1.0)
    (measured,) = node.handle(late, message_of(hosts[1], hosts[0], m.Pong(late - 0.5)))
    assert measured == effects.Report("delay", {"id": hosts[1].me.node, "seconds": 0.5})
    assert node.handle(late, events.Tick()), "which does what is due"
