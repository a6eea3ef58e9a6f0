"""Real agents in an emulated network: a device whose link is slow stands by until it is good.

`scripts/bench standby` measures what that is worth. Its table is tested here, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testbed.bench.standby import Outcome, table
from tests.testbed.lab import Lab
from tests.testbed.namespaces import missing
from tests.testbed.network import MBIT, Link, Network, both

OTHERS = ("a", "b", "c")
SLOW = "d"
GOOD, BAD = Link(50 * MBIT, 0.001), Link(1 * MBIT, 0.02)
JOB = ("--gradient-mb", "1", "--state-mb", "1", "--compute-ms", "10")
AUTO = ("--standby", "auto")


def links(link: Link) -> dict[tuple[str, str], Link]:
    """Return all links of the device."""
    return both({(name, SLOW): link for name in OTHERS})


@pytest.mark.netns
@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.long
def test_a_device_stands_by_while_its_link_is_slow(tmp_path: Path) -> None:
    """It comes with a slow link, enters when the link is good, and goes when it is slow again."""
    if why := missing():
        pytest.skip(why)
    net = Network((*OTHERS, SLOW), links(BAD), default=GOOD)
    with net, Lab(net, tmp_path, JOB) as lab:
        first, *_ = [lab.start(name, *AUTO) for name in OTHERS]
        lab.wait_together(*OTHERS)
        device = lab.start(SLOW, *AUTO)
        why_not = device.wait("standby")["reason"]
        assert "with it a step would take about" in why_not
        assert device.wait_said("this device stands by: with it a step")
        lab.wait("status of standby", lambda: lab.status(SLOW)["phase"] == "standby")
        assert lab.status(SLOW)["standby"].startswith("with it a step")
        assert SLOW not in first.members
        told = first.wait("member_standby", node=SLOW)
        assert told["reason"] == why_not
        first.wait_steps(20)

        net.set_links(links(GOOD))
        device.wait("joined")
        first.wait_members(*OTHERS, SLOW)
        assert lab.status(SLOW)["standby"] == ""
        first.wait_steps(5)

        net.set_links(links(BAD))
        first.wait_until("the departure", lambda: first.members == [*OTHERS])
        device.wait_until("to stand by again", lambda: len(device.all("standby")) == 2)
        first.wait_steps(20)
    assert device.all("left") == []
    assert device.all("error") == []


def test_the_table_has_medians_and_ranges_and_says_what_failed() -> None:
    runs = [
        Outcome("auto", 2000.0, 0.95, 1.0, 7.0, 0.9, 4.0, 6.0),
        Outcome("never", 2100.0, 0.3, 0.05, None, 0.04, 30.0, None),
        Outcome("auto", 2100.0, 0.85, 1.0, 9.0, 0.8, 5.0, 8.0),
        Outcome("never", why="it broke"),
    ]
    rows = table(runs).splitlines()
    assert "| their samples/s then | 1.00 x (1.00 x to 1.00 x) | 0.05 x |" in rows
    assert "| its link becomes good: a member after | 8.0 s (7.0 s to 9.0 s) | - |" in rows
    assert "| back at nine tenths after | 7.0 s (6.0 s to 8.0 s) | - |" in rows
    assert rows[-1] == "- never: failed: it broke"
