"""What a joiner takes its sources for: as fast as they sent last, and slower if they are quiet."""

from __future__ import annotations

import pytest

from protocols.member.source_rates import QUIET_TIMES, SourceRates
from tests.unit.protocols.clusters import cluster, node_of

SIZE = 1000


def test_a_source_that_owes_something_and_is_quiet_is_taken_for_slower() -> None:
    _, hosts = cluster(0, 2)
    context, source = node_of(hosts[0]).context, hosts[1].me.node
    rates = SourceRates(context)
    rates.arrived(source, 1e4, SIZE)  # a piece in 0.1 s
    begun = context.now
    for passed, rate in ((0.1, 1e4), (0.1 * QUIET_TIMES, 1e4), (2.0, 1e3), (20.0, 1e2)):
        context.now = begun + passed
        assert rates.offer(source, 1).rate == pytest.approx(rate)
        assert rates.offer(source, 0).rate == 1e4, "it owes nothing, so it may well be quiet"
    rates.arrived(source, None, SIZE)
    assert rates.offer(source, 1).rate == 1e4


def test_a_source_of_which_nothing_has_come_is_as_fast_as_its_link() -> None:
    _, hosts = cluster(0, 2)
    context, source = node_of(hosts[0]).context, hosts[1].me.node
    known = context.incoming(source)
    assert SourceRates(context).offer(source, 1).rate == (known.rate if known else None)
