"""Real agents in an emulated network: all of them name the slow member as the one to wait for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testbed.lab import Lab
from tests.testbed.namespaces import missing
from tests.testbed.network import MBIT, Link, Network, both

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.alone]

MEMBERS = ("alice", "bob", "laptop3")
SLOW = Link(rate=2 * MBIT, delay_s=0.08)


@pytest.mark.long
def test_a_badly_connected_device_is_named_with_its_link(tmp_path: Path) -> None:
    if why := missing():
        pytest.skip(why)
    links = both({("alice", "laptop3"): SLOW, ("bob", "laptop3"): SLOW})
    net = Network(MEMBERS, links, default=Link(rate=200 * MBIT))
    with net, Lab(net, tmp_path, ("--gradient-mb", "0.1", "--compute-ms", "2")) as lab:
        alice, bob = lab.start_all("alice", "bob")
        laptop3 = lab.start("laptop3")
        laptop3.wait("joined", 120.0)

        def named() -> bool:
            waiting = lab.status("alice")["waiting"]
            return waiting is not None and (waiting["cause"], waiting["node"]) == (
                "link",
                "laptop3",
            )

        lab.wait("line on the slow link", named)
        for agent, who in ((alice, "laptop3"), (bob, "laptop3"), (laptop3, "this device")):
            agent.wait_said(f"for {who}: its link carries", 60.0)
            agent.wait_said("laptop3 costs more than it gives", 60.0)
        status = lab.status("bob")
    waiting, advice = status["waiting"], status["advice"]
    assert waiting is not None
    assert waiting["mbit_s"] is not None
    assert waiting["mbit_s"] < 2.5
    assert advice is not None
    assert advice["left_out"] == ["laptop3"]
    assert advice["without_s"] < advice["step_s"] / 2
