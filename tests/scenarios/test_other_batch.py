"""A newcomer with another batch takes that of the cluster, unless its user named one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.scenarios.cluster import SMALL, Cluster
from tests.variants import variants

if TYPE_CHECKING:
    from pathlib import Path

TWO_STARTS_S = 120.0  # its trainer starts twice
OTHER = ("--global-batch", "64", "--micro-batch", "16", "--steps", "100000")  # for ever


ROUNDS = ("--local-steps", "4")  # rounds of four global batches
CASES = variants([("digits",)], long=[(SMALL,), ("digits", *ROUNDS)])


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_a_newcomer_takes_the_batch_of_the_cluster(tmp_path: Path, case: tuple[str, ...]) -> None:
    job, *options = case
    with Cluster(tmp_path, job=job) as cluster:
        alice = cluster.start("alice", *OTHER, *options)
        alice.wait("joined")
        bob = cluster.start("bob", *options, peers=[alice])
        text = "the cluster's global batch is 64 samples, in micro-batches of 16 samples"
        said = bob.wait_said(text, TWO_STARTS_S)
        assert said.endswith("beginning again with that")
        bob.wait_until("members", lambda: bob.members == ["alice", "bob"], TWO_STARTS_S)
        bob.wait_until("a digest of both", lambda: alice.digests.keys() & bob.digests.keys())
        both = alice.digests.keys() & bob.digests.keys()
        assert all(alice.digests[at] == bob.digests[at] for at in both)
        assert not bob.all("error")
        assert [bob.interrupt()[0], alice.interrupt()[0]] == [0, 0]


@pytest.mark.long
def test_a_newcomer_to_rounds_of_subnets_takes_the_global_batch(tmp_path: Path) -> None:
    options = ("--local-steps", "4", "--mode", "subnets")
    with Cluster(tmp_path, job="digits") as cluster:
        alice = cluster.start("alice", "--global-batch", "48", "--steps", "100000", *options)
        alice.wait("joined")
        bob = cluster.start("bob", *options, peers=[alice])
        said = bob.wait_said("the cluster's global batch is 48 samples", TWO_STARTS_S)
        assert said.endswith("48 samples: beginning again with that")
        bob.wait_until("members", lambda: bob.members == ["alice", "bob"], TWO_STARTS_S)
        assert not bob.all("error")
        assert [bob.interrupt()[0], alice.interrupt()[0]] == [0, 0]


@pytest.mark.long
def test_who_names_another_batch_is_refused(tmp_path: Path) -> None:
    with Cluster(tmp_path, job=SMALL) as cluster:
        alice = cluster.start("alice", *OTHER)
        alice.wait("joined")
        bob = cluster.start("bob", "--global-batch", "32", peers=[alice])
        assert bob.wait_exit() == 1
        assert bob.said("global batch is 64 there and 32 here")
        assert alice.interrupt()[0] == 0
