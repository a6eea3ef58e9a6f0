"""Several devices that join at once exchange what they have copied."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.testbed.bench.crowd import begin, bound, job
from tests.testbed.lab import Lab
from tests.testbed.namespaces import missing
from tests.testbed.network import MBIT, Limit, Link, Network

MEMBER, JOINERS = "m0", ("j0", "j1", "j2")
JOIN_S = 120.0


@pytest.mark.netns
@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.long
def test_a_crowd_needs_less_from_the_member_than_each_alone(tmp_path: Path) -> None:
    """What the member can send is the limit: three copies of the state would take three times as
    long as one. How long all of it takes here depends on the machine, so bytes are counted."""
    if why := missing():
        pytest.skip(why)
    every, rate = (MEMBER, *JOINERS), 16 * MBIT
    limits = dict.fromkeys(every, Limit(rate, rate))
    arguments = job(state_mb=8.0, gradient_mb=0.1, compute_ms=100.0)
    with (
        Network(every, default=Link(rate, 0.001), limits=limits) as net,
        Lab(net, tmp_path, arguments) as lab,
    ):
        begin([lab.start(MEMBER, "--join", "log")])
        lab.wait_together(MEMBER)
        joiners = [lab.start(name, "--join", "log") for name in JOINERS]
        begin(joiners)
        joined = [agent.wait("joined", JOIN_S) for agent in joiners]
        lab.wait_together(*every)
        assert not any(agent.all("diverged") for agent in joiners)
    sources = [source for event in joined for source in event["sources"]]
    from_member = sum(s["bytes"] for s in sources if s["node"] == MEMBER)
    assert from_member < 0.8 * sum(event["bytes"] for event in joined)


def test_the_bound_is_what_one_joiner_can_receive() -> None:
    assert bound(state_mb=0.956, limit_mbit_s=8.0) == pytest.approx(1.0)  # TCP leaves 95.6 %


def test_updates_that_reach_it_meanwhile_are_in_the_bound() -> None:
    #      1 MB/s of which updates take a half
    assert bound(state_mb=0.956, limit_mbit_s=8.0, updates_mb_s=0.478) == pytest.approx(2.0)
    assert bound(state_mb=0.956, limit_mbit_s=8.0, updates_mb_s=0.956) == math.inf
