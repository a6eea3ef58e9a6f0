"""Real agents in an emulated network: pulls and the tree follow what the links carry.

`scripts/adapt` measures the same in detail; here only larger and smaller are compared.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testbed.calibrate import TCP_SHARE
from tests.testbed.lab import Lab
from tests.testbed.namespaces import missing
from tests.testbed.network import MBIT, Link, Network, both

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.alone]

MBIT_S = {"a": 20.0, "b": 40.0, "c": 60.0}
STATE_MB = 12.0
SLOW = ("a", "b")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if why := missing():
        pytest.skip(why)
    return tmp_path


def test_a_joiner_takes_from_each_what_its_link_brings(folder: Path) -> None:
    links = both({(n, "d"): Link(rate=rate * MBIT) for n, rate in MBIT_S.items()})
    job = ("--state-mb", str(STATE_MB), "--gradient-mb", "0.1", "--compute-ms", "5")
    net = Network((*MBIT_S, "d"), links, default=Link(rate=100 * MBIT))
    with net, Lab(net, folder, job) as lab:
        lab.start_all(*MBIT_S)
        joined = lab.start("d").wait("joined", 120.0)
    parts = {s["node"]: s["bytes"] for s in joined["sources"]}
    total = sum(parts.values())
    assert total >= STATE_MB * 1e6
    for node, rate in MBIT_S.items():
        fair = rate / sum(MBIT_S.values())
        assert 0.6 * fair < parts[node] / total < 1.4 * fair, parts
    bound = total / (sum(MBIT_S.values()) * MBIT * TCP_SHARE)
    assert bound * 0.95 < joined["seconds"] < 2 * bound
    assert bound / 2 < joined["lower_bound_s"] < 2 * bound


@pytest.mark.long
def test_the_tree_avoids_a_slow_link_and_the_status_says_so(folder: Path) -> None:
    net = Network(tuple(MBIT_S), both({SLOW: Link(rate=5 * MBIT)}), default=Link(rate=50 * MBIT))
    with net, Lab(net, folder, ("--gradient-mb", "0.5", "--compute-ms", "5")) as lab:
        lab.start_all(*MBIT_S)

        def avoided() -> bool:
            pairs = {frozenset((p["a"], p["b"])): p for p in lab.status("a")["mesh"]}
            slow = pairs.get(frozenset(SLOW))  # this link opens a little after the last join
            return bool(slow and slow["there_mbit_s"] and not slow["in_tree"])

        lab.wait("tree without the slow link", avoided)
        status = lab.status("a")
    rates = {frozenset((p["a"], p["b"])): p["there_mbit_s"] for p in status["mesh"]}
    slow = rates.pop(frozenset(SLOW))
    assert slow is not None
    assert all(rate is None or slow < rate for rate in rates.values())
    assert status["reason"]
