"""Links that carry nothing large: when and for how long they are given up, what ends that."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.stripes import Stripe
from protocols.recovery.standstill import Standstill
from tests.unit.protocols.clusters import cluster, node_of, policy_of

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy

OFTEN = limits.MOST_STALLS
WITHIN = limits.STALLS_WITHIN_SECONDS


class Bench:
    """A member of three, of which each is linked to each, and what it knows of its links."""

    def __init__(self) -> None:
        _, hosts = cluster(0)
        self.context = node_of(hosts[0]).context
        self.one, self.two = (h.me.node for h in hosts[1:])
        self.context.now = 1000.0
        self.links = Standstill(self.context)
        self.policy = policy_of(hosts[0])
        self.version = self.policy.version
        self.links.switched()

    def stalls(self, node: bytes, times: int = OFTEN) -> None:
        for _ in range(times):
            self.links.stalled(node)

    def names(self, *nodes: bytes) -> None:
        """A policy comes into force in which this member is linked to `nodes`."""
        view, me = self.policy.view, self.context.node
        edges = tuple(
            e for e in view.edges if me not in (e.low, e.high) or {e.low, e.high} & {*nodes}
        )
        parents = tuple(b"" if n == nodes[0] else nodes[0] for n in view.nodes)
        self.version += 1
        view = replace(view, edges=edges)
        policy = replace(self.policy, version=self.version, view=view, parents=parents)
        self.context.store(policy)
        self.context.policy = policy
        self.links.switched()


def test_a_link_that_stands_still_often_counts_no_more_until_that_is_long_ago() -> None:
    bench = Bench()
    bench.stalls(bench.one, OFTEN - 1)
    assert bench.one in bench.links.near
    assert bench.links.unlinked == []
    bench.stalls(bench.one, 1)
    assert bench.one in bench.links
    assert bench.links.near == (bench.two,)
    assert bench.links.unlinked == [bench.one]
    bench.context.now += WITHIN
    assert bench.one in bench.links.near
    bench.links.switched()
    bench.stalls(bench.one, OFTEN - 1)
    assert bench.one in bench.links.near


def test_a_link_that_a_fence_leaves_out_stays_given_up() -> None:
    """Otherwise fences would choose two such links one after the other, again and again."""
    bench = Bench()
    bench.stalls(bench.one)
    bench.names(bench.two)
    assert bench.links.near == (bench.two,)
    assert bench.links.unlinked == []
    bench.stalls(bench.two)
    bench.names(bench.two)
    assert not bench.links.near


def test_a_link_that_is_named_again_counts_again_until_it_stands_still_once_more() -> None:
    bench = Bench()
    bench.stalls(bench.one)
    bench.names(bench.two)
    bench.names(bench.one, bench.two)
    assert bench.one in bench.links.near
    bench.stalls(bench.one, 1)
    assert bench.one not in bench.links.near


def test_a_link_counts_on_which_a_part_of_a_divided_state_depends() -> None:
    bench = Bench()
    one, two = (bench.policy.view.nodes.index(n) for n in (bench.one, bench.two))
    mine = bench.policy.view.nodes.index(bench.context.node)

    def held(*holders: list[int]) -> None:
        stripes = tuple(Stripe(bytes(h)) for h in holders)
        bench.context.policy = replace(policy_of_bench(bench), stripes=stripes)

    bench.stalls(bench.one)
    bench.stalls(bench.two)
    held([mine, one], [two, mine])
    assert bench.one in bench.links
    held([mine, one], [two])  # only there is the second part, and both links stand still
    assert set(bench.links.near) == {bench.one, bench.two}
    assert bench.links.unlinked == []
    bench.links._given_up.pop(bench.two)
    held([mine, one], [one])  # it is reached by way of the other one
    assert bench.one in bench.links
    bench.names(bench.one, bench.two)
    bench.context.policy = None
    bench.stalls(bench.one)
    assert bench.one in bench.links


def policy_of_bench(bench: Bench) -> Policy:
    """Return the policy in force at a bench."""
    policy = bench.context.policy
    assert policy is not None
    return policy
