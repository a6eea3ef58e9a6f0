"""Routing: floods over random graphs, doubled and out of order, compared with simple oracles."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from protocols import limits
from protocols.effects import Send
from protocols.member.joining_table import JoiningState
from protocols.network.routing import Router, Seen
from protocols.wire.envelope import Envelope
from protocols.wire.messages import EVERYONE, LeaveRequest, Measured

from .clusters import cluster, node_of, policy_of, reach
from .records import LINEAGE, node, tags

if TYPE_CHECKING:
    import pytest

IDENTITIES = (LINEAGE, 1, 2, 3, 4, 5)
BODY = LeaveRequest(1)


class Network:
    """Routers on a graph; messages on the way are delivered in any order."""

    def __init__(self, count: int, pairs: list[tuple[int, int]]) -> None:
        names = [node(k) for k in range(count)]
        self.routers = {n: Router(n, 1) for n in names}
        self.links = {
            n: tuple(
                sorted(node(b) for a, b in [*pairs, *[(b, a) for a, b in pairs]] if node(a) == n)
            )
            for n in names
        }
        self.on_the_way: list[tuple[bytes, bytes, Envelope]] = []
        self.delivered: Counter[bytes] = Counter()
        self.crossed: Counter[tuple[bytes, bytes]] = Counter()

    def send(self, at: bytes, envelope: Envelope, via: bytes | None) -> None:
        for to in self.routers[at].ways(envelope, self.links[at], via):
            self.crossed[at, to] += 1
            self.on_the_way.append((at, to, envelope))

    def run(self, chance: random.Random, copies: int = 0) -> None:
        while self.on_the_way:
            k = chance.randrange(len(self.on_the_way))
            via, at, envelope = self.on_the_way[k]
            if copies > 0:
                copies -= 1
            else:
                del self.on_the_way[k]
            here, onward = self.routers[at].receive(envelope)
            self.delivered[at] += here
            if onward is not None:
                self.send(at, onward, via)

    def reached(self, start: bytes) -> set[bytes]:
        found = {start}
        for _ in self.routers:
            found |= {b for a in found for b in self.links[a]}
        return found


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Up to eight nodes and any links."""
    count = draw(st.integers(2, 8))
    pairs = list(combinations(range(count), 2))
    return Network(count, draw(st.lists(st.sampled_from(pairs), unique=True)))


@given(networks(), st.randoms(use_true_random=False), st.integers(0, 5))
def test_a_flood_reaches_every_connected_node_once(
    network: Network, chance: random.Random, copies: int
) -> None:
    start = node(0)
    network.send(start, network.routers[start].stamp(IDENTITIES, EVERYONE, BODY), None)
    network.run(chance, copies)
    assert set(network.delivered.elements()) == network.reached(start) - {start}
    assert max(network.delivered.values(), default=0) <= 1
    assert max(network.crossed.values(), default=0) <= 1


@given(networks(), st.randoms(use_true_random=False))
def test_a_message_reaches_its_destination_and_nobody_else(
    network: Network, chance: random.Random
) -> None:
    start, goal = node(0), node(1)
    network.send(start, network.routers[start].stamp(IDENTITIES, goal, BODY), None)
    if goal in network.links[start]:
        assert [(a, b) for a, b, _ in network.on_the_way] == [(start, goal)]
    network.run(chance)
    assert +network.delivered == Counter({goal} & network.reached(start))


def test_stamped_messages_are_named_once_and_for_all() -> None:
    router = Router(node(1), 7)
    first, second = (router.stamp(IDENTITIES, node(2), BODY) for _ in range(2))
    assert first.message == BODY
    assert first.tags.destination == node(2)
    assert (first.tags.origin, first.tags.incarnation, first.tags.hops) == (node(1), 7, 0)
    assert first.tags.sequence < second.tags.sequence
    named = first.tags
    carried = (named.lineage, named.term, named.view, named.policy, named.iteration, named.attempt)
    assert carried == IDENTITIES


def test_nobody_sends_to_itself_or_back_to_where_it_came_from() -> None:
    router = Router(node(1), 1)
    links = (node(2), node(3), node(4))
    own = router.stamp(IDENTITIES, node(1), BODY)
    assert router.ways(own, links, None) == ()
    passing = Envelope(tags(origin=node(2), destination=node(9)), BODY)
    assert router.ways(passing, links, node(3)) == (node(4),)
    assert router.receive(own) == (False, None)


def test_a_message_dies_after_its_last_hop_but_is_still_read() -> None:
    for hops, goes_on in ((limits.MAX_HOPS - 2, True), (limits.MAX_HOPS - 1, False)):
        envelope = Envelope(tags(origin=node(2), destination=EVERYONE, hops=hops), BODY)
        deliver, onward = Router(node(1), 1).receive(envelope)
        assert deliver
        assert (onward is not None) == goes_on
        assert onward is None or onward.tags.hops == hops + 1


def test_incarnations_count_apart() -> None:
    router = Router(node(1), 1)
    for incarnation in (1, 2):
        envelope = Envelope(
            tags(origin=node(2), destination=node(1), incarnation=incarnation, sequence=5), BODY
        )
        assert router.receive(envelope) == (True, None)
        assert router.receive(envelope) == (False, None)


def test_the_number_of_origins_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_ORIGINS", 2)
    router = Router(node(0), 1)

    def is_new(origin: int) -> bool:
        return router.receive(Envelope(tags(origin=node(origin), destination=node(0)), BODY))[0]

    assert [is_new(k) for k in (1, 2, 1, 2)] == [True, True, False, False]
    assert is_new(3)
    assert not is_new(2)  # still remembered
    assert is_new(1)  # the oldest origin was forgotten for the third


@given(
    st.lists(
        st.integers(0, 3 * limits.SEEN_WINDOW)
        | st.sampled_from([0, limits.SEEN_WINDOW - 1, limits.SEEN_WINDOW, limits.MAX_INTEGER]),
        max_size=40,
    )
)
def test_seen_remembers_a_window(sequence: list[int]) -> None:
    seen, known = Seen(), set[int]()
    for number in sequence:
        outside = bool(known) and number <= max(known) - limits.SEEN_WINDOW
        assert seen.add(number) == (number not in known and not outside)
        known.add(number)


def test_what_is_repeated_anyway_is_not_passed_on_to_its_origins_neighbours() -> None:
    router = Router(node(1), 1)
    links, near = (node(2), node(3), node(4), node(5)), (node(1), node(3), node(4))
    for body, passed_on in ((Measured((), 0, 0, 0, 0, 0), (node(5),)), (BODY, links[1:])):
        passing = Envelope(tags(origin=node(2), destination=EVERYONE), body)
        assert router.ways(passing, links, node(2), near) == passed_on
        own = router.stamp(IDENTITIES, EVERYONE, body)
        assert router.ways(own, links, None, links) == links


def test_a_joiner_receives_what_a_member_repeats_from_that_member_alone() -> None:
    world, hosts = cluster(1, 3, beside=True)
    joiner = world.join(3, hosts[0])
    reach(world, joiner, JoiningState.COPYING)
    world.run(lambda: all(policy_of(host).pulls for host in hosts))
    members = [h.me.node for h in hosts]
    assert all(n in node_of(joiner).context.links for n in members)
    assert sorted(policy_of(hosts[1]).pulls[0].sources) == sorted(members)
    router = Router(members[0], 2)
    for body, passed_on in ((Measured((), 0, 0, 0, 0, 0), False), (BODY, True)):
        for passing in (hosts[1], joiner):
            context = node_of(passing).context
            context.take_effects()
            context.relay(router.stamp(IDENTITIES, EVERYONE, body), members[0])
            assert all(isinstance(effect, Send) for effect in context.effects)
            assert bool(context.take_effects()) is passed_on
