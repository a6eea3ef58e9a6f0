"""Agents of other releases: those that share a protocol version train together, others are told."""

from __future__ import annotations

import sys
from pathlib import Path

from edgeagent.transport import join_wire
from tests.scenarios.cluster import SCRIPTS, SMALL, TOKEN, Agent, Cluster
from tests.scenarios.test_story import same_digests

ODD = str(SCRIPTS / "odd_agent.py")
(OURS,) = join_wire.VERSIONS


def odd(cluster: Cluster, name: str, how: str, peer: Agent) -> Agent:
    """Start an agent that differs from this build in the way that `odd_agent.py` offers."""
    command = [sys.executable, "-P", ODD, how, "run", SMALL, "--name", name, "--no-mdns"]
    command += ["--listen", "127.0.0.1:0", "--threads", "1", "--peer", peer.address]
    command += ["--events", str(cluster.folder / f"{name}.events")]
    command += ["--save", str(cluster.folder / f"{name}.safetensors")]
    return cluster.launch(name, command, {"EDGEAGENT_TOKEN": TOKEN}, fresh=True)


def test_other_releases_with_a_version_in_common_train_together(tmp_path: Path) -> None:
    with Cluster(tmp_path, job=SMALL) as cluster:
        alice = cluster.start("alice")
        alice.wait("joined")
        others = [
            odd(cluster, "bob", "release=0.9.3", alice),  # another release, the same protocol
            odd(cluster, "carol", f"version={OURS + 1},{OURS}", alice),  # speaks the next one, too
        ]
        for agent in (alice, *others):
            agent.wait_members("alice", "bob", "carol")
            agent.wait_steps(20)
        for agent in (alice, *others):
            assert agent.interrupt()[0] == 0, agent.describe()
        assert same_digests([alice, *others]) > 0


def test_a_release_with_no_version_in_common_is_refused_in_one_line_at_both_ends(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, job=SMALL) as cluster:
        alice = cluster.start("alice")
        alice.wait("joined")
        newer = odd(cluster, "newer", f"version={OURS + 1}", alice)
        assert newer.wait_exit() == 1
        (line,) = newer.said("protocol version")
        assert line == (
            f"edgeagent: {alice.address} speaks protocol version {OURS} and this agent {OURS + 1}: "
            "install the same edgeagent on both"
        )
        (line,) = alice.said("protocol version")
        assert line.endswith(
            f"it speaks only protocol version {OURS + 1} and this agent {OURS}: "
            "install the same edgeagent on both"
        )
        assert not newer.all("joined")
        alice.wait_steps(10)
