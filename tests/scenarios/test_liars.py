"""One of three real agents sends impossible things: the other two go on, with equal models. Or it
serves a joiner wrong bytes: the joiner names it, and enters with the right ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.scenarios.cluster import SCRIPTS, TOKEN, Agent, Cluster
from tests.scenarios.test_story import same_digests
from tests.testbed.lab import JOB
from tests.variants import variants

STEPS = 120
# Many shards, so that each source is asked for some.
LARGE = ("--state-mb", "8", "--gradient-mb", "0.1", "--compute-ms", "20", "--moving")


def liar(cluster: Cluster, lie: str, peer: Agent, *script: str) -> Agent:
    """Start an agent that lies."""
    command = [sys.executable, str(SCRIPTS / "lying_agent.py"), lie, "run", cluster.job]
    command += ["--name", "mallory", "--no-mdns", "--listen", "127.0.0.1:0"]
    command += ["--threads", "1", "--peer", peer.address, *cluster.options]
    command += ["--save", str(cluster.folder / "mallory.safetensors")]
    command += ["--events", str(cluster.folder / "mallory.events")]
    command += ["--", *script] if script else []
    return cluster.launch("mallory", command, {"EDGEAGENT_TOKEN": TOKEN})


@pytest.mark.parametrize("lie", variants(["bitmap"], long=["buffers", "term"]))
def test_the_others_go_on(tmp_path: Path, lie: str) -> None:
    with Cluster(tmp_path, options=("--steps", str(STEPS))) as cluster:
        alice = cluster.start("alice")
        alice.wait("joined")
        with alice.held():
            bob = cluster.start("bob", peers=[alice])
            bob.wait_ready()
            liar(cluster, lie, alice).wait_ready()
        honest = [alice, bob]
        for agent in honest:
            assert agent.wait_exit() == 0
            assert agent.iteration == STEPS
        assert same_digests(honest) > 0
        both = [(e["by"], e["node"]) for agent in honest for e in agent.all("accused")]
        assert not [pair for pair in both if sorted(pair) == ["alice", "bob"]]
        if lie != "term":
            assert both
            assert alice.said("mallory")


@pytest.mark.parametrize("way", variants(["log"], long=["pause"]))
def test_a_joiner_names_who_serves_wrong_bytes(tmp_path: Path, way: str) -> None:
    with Cluster(tmp_path, job=str(JOB), options=("--join", way)) as cluster:
        alice = cluster.start("alice", script=LARGE)
        alice.wait("joined")
        with alice.held():
            bob = cluster.start("bob", peers=[alice], script=LARGE)
            mallory = liar(cluster, "shards", alice, *LARGE)
            for agent in (bob, mallory):
                agent.wait_ready()
        alice.wait_members("alice", "bob", "mallory")
        carol = cluster.start("carol", peers=[alice, bob, mallory], script=LARGE)
        assert carol.wait("wrong_source")["node"] == "mallory"
        carol.wait_members("alice", "bob", "carol", "mallory")
        carol.wait_steps(20)
        assert same_digests([alice, bob, carol]) > 0
        assert not any(agent.all("diverged") for agent in (alice, bob, carol))
        assert carol.said("mallory has sent a state that others contradict")
