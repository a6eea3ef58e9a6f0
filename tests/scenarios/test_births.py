"""Agents that start at the same moment, each naming the others, become one cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.cluster import SMALL, Agent, Cluster, free_ports
from tests.variants import variants

NAMES = ("alice", "bob", "carol")


def born_together(cluster: Cluster, count: int) -> list[Agent]:
    """Start `count` agents at once, each with all the others as peers."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
    return [
        cluster.start(name, listen=address, peers=[a for a in addresses if a != address])
        for name, address in zip(NAMES[:count], addresses, strict=True)
    ]


@pytest.mark.parametrize("count", variants([3], long=[2]))
def test_one_cluster(tmp_path: Path, count: int) -> None:
    with Cluster(tmp_path, job=SMALL) as cluster:
        agents = born_together(cluster, count)
        for agent in agents:
            agent.wait_members(*NAMES[:count])
        founders = [agent for agent in agents if not agent.all("joined")[-1]["sources"]]
        assert len(founders) == 1
        for agent in agents:
            status = cluster.status(agent)
            assert status["scheduler"] == founders[0].name
            assert sorted(m["name"] for m in status["members"]) == list(NAMES[:count])
            agent.wait_steps(5)
            assert not agent.all("error")
