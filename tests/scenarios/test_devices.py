"""Agents whose trainers keep their state on another device than the CPU, among others.

No GPU is needed: the script keeps its state on the CPU, but apart from the shared memory, as it
would on a GPU.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from edgeagent.checkpoint_file import LENGTH
from tests.scenarios.cluster import SCRIPTS, Cluster

JOB = str(SCRIPTS / "apart.py")


def test_a_state_on_a_device_is_pulled_and_hashed_like_any_other(tmp_path: Path) -> None:
    """The states of alice and carol are apart. Bob pulls from alice, and carol from both."""
    with Cluster(tmp_path, job=JOB, options=("--device", "cpu")) as cluster:
        alice = cluster.start("alice", script=["apart"])
        alice.wait_said("trains on cpu")
        alice.wait("joined")
        with alice.held():
            bob = cluster.start("bob", peers=[alice])
            carol = cluster.start("carol", script=["apart"], peers=[alice])
            bob.wait_ready()
            carol.wait_ready()
        agents = (alice, bob, carol)
        assert [agent.wait_exit() for agent in agents] == [0, 0, 0]
        digests = [{e["iteration"]: e["state"] for e in a.all("digest")} for a in agents]
        assert len(digests[2]) > 5
        for joiner in digests[1:]:
            assert joiner == {i: digests[0][i] for i in joiner}
        files = [agent.save_path.read_bytes() for agent in agents]
        assert files[0] == files[1] == files[2]


def test_of_a_trainer_that_hangs_the_copy_of_its_state_is_saved(tmp_path: Path) -> None:
    with Cluster(tmp_path, job=JOB, options=("--device", "cpu")) as cluster:
        alice = cluster.start("alice", script=["apart"])
        alice.wait_iteration(25)
        os.kill(alice.trainer, signal.SIGSTOP)
        alice.signal(signal.SIGINT)
        alice.wait_said("leaving")  # two signals at once might arrive as one
        alice.signal(signal.SIGINT)
        alice.wait_exit()
        assert alice.said("the agent has saved its model")
        assert int.from_bytes(alice.save_path.read_bytes()[: LENGTH.size], "little") > 100
