"""Devices whose processors have other instructions: gradients differ, states do not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.scenarios.cluster import SCRIPTS, Cluster

SIMPLE = {"ATEN_CPU_CAPABILITY": "default"}  # no vector instructions but the oldest


def test_devices_of_two_kinds_train_together(tmp_path: Path) -> None:
    with Cluster(tmp_path, options=("--steps", "200")) as cluster:
        alice = cluster.start("alice")
        alice.wait("joined")
        with alice.held():
            bob = cluster.start("bob", peers=[alice], environment=SIMPLE)
            bob.wait_ready()
        bob.wait_members("alice", "bob")
        assert [agent.wait_exit() for agent in (alice, bob)] == [0, 0]
        assert len(bob.digests) > 1
        assert bob.digests == {i: alice.digests[i] for i in bob.digests}
        assert alice.save_path.read_bytes() == bob.save_path.read_bytes()
        assert not alice.all("diverged")
        assert not bob.said("round differently")


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="needs a torch with Muon")
@pytest.mark.long
def test_an_update_that_cannot_be_made_alike_is_refused_in_words(tmp_path: Path) -> None:
    with Cluster(tmp_path, job=str(SCRIPTS / "matrices.py")) as cluster:
        alice = cluster.start("alice")
        alice.wait("joined")
        bob = cluster.start("bob", peers=[alice], environment=SIMPLE)
        assert bob.wait_exit() == 1
        (line,) = bob.said("cannot train with this device: its updates round differently")
        there, _, here = line.partition("; here: ")
        assert "; there: x86-64 with " in there or "; there: aarch64" in there
        assert here
        assert "(" not in line.partition("; there: ")[0]  # no single operation differs
        assert alice.running
