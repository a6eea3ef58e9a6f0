"""Adapters beside a frozen base: joiners pull the base only if they lack it.

The base is most of the state. A device that starts with the same base as the cluster pulls the
rest; one that starts with another base pulls all of it. Both must end with the cluster's state.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.cluster import SCRIPTS, Cluster
from tests.variants import variants

STEPS = 240  # some seconds, in which a joiner that has to ask again is let in
# Bytes of the base: the linear layers of `frozen_base.py`.
BASE = 4 * (4096 * 65 + 256 * 4097 + 10 * 257)
# A shard is at most this large, and one may hold the end of the base and the beginning of the rest.
SHARD = 512 << 10


@pytest.mark.parametrize("own", variants(["3"], long=["4"]))
def test_a_joiner_pulls_the_base_only_if_it_lacks_it(tmp_path: Path, own: str) -> None:
    had = own == "3"
    with Cluster(tmp_path, job=str(SCRIPTS / "frozen_base.py")) as cluster:
        founder = cluster.start("alice", script=("3",))
        founder.wait("joined")
        with founder.held():
            joiner = cluster.start("bob", "--join-only", peers=[founder], script=(own,))
            joiner.wait_ready()
            joiner.wait("link_up")
        joined = joiner.wait("joined")
        for agent in (founder, joiner):
            assert agent.wait_exit() == 0, agent.describe()
        whole = joined["bytes"] + joined["spared_bytes"]
        assert whole > BASE
        if had:
            assert BASE - SHARD < joined["spared_bytes"] <= BASE
            assert joined["bytes"] < whole / 5
            assert joiner.said("were here already")
        else:
            assert joined["spared_bytes"] == 0
        assert joiner.digests[STEPS] == founder.digests[STEPS]
        assert joiner.save_path.read_bytes() == founder.save_path.read_bytes()
