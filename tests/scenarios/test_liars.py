"""One of three real agents sends impossible things: the other two go on, with equal models."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.scenarios.cluster import SCRIPTS, TOKEN, Cluster
from tests.scenarios.test_story import same_digests
from tests.variants import variants

STEPS = 120


@pytest.mark.parametrize("lie", variants(["bitmap"], long=["buffers", "term"]))
def test_the_others_go_on(tmp_path: Path, lie: str) -> None:
    with Cluster(tmp_path, options=("--steps", str(STEPS))) as cluster:
        alice = cluster.start("alice")
        alice.wait("joined")
        with alice.held():
            bob = cluster.start("bob", peers=[alice])
            bob.wait_ready()
            command = [sys.executable, str(SCRIPTS / "lying_agent.py"), lie, "run", "digits"]
            command += ["--name", "mallory", "--no-mdns", "--listen", "127.0.0.1:0"]
            command += ["--threads", "1", "--peer", alice.address, *cluster.options]
            command += ["--save", str(tmp_path / "mallory.safetensors")]
            command += ["--events", str(tmp_path / "mallory.events")]
            cluster.launch("mallory", command, {"EDGEAGENT_TOKEN": TOKEN}).wait_ready()
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
