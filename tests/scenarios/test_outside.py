"""Real agents that follow the others from outside: they end with them, or go on without them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.cluster import SCRIPTS, Agent, Cluster

SCRIPT = str(SCRIPTS / "optimizers.py")
OPTIMIZER = ["AdamW"]
FOLLOWED = 40  # steps of the others while a device follows
BEHIND = 10  # updates at most that a device lacks which follows


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Yield a cluster in which joiners copy beside the training."""
    with Cluster(tmp_path, job=SCRIPT, options=("--join", "log")) as cluster:
        yield cluster


def followed(cluster: Cluster, steps: int) -> tuple[Agent, Agent, Agent]:
    """Start two members that train for so many steps, and a device that follows them."""
    environment = {"STEPS": str(steps)}
    alice, bob = cluster.together("alice", "bob", script=OPTIMIZER, environment=environment)
    carol = cluster.start(
        "carol", "--standby", "always", script=OPTIMIZER, peers=[alice], environment=environment
    )
    assert carol.wait("standby")["reason"] == "it was started with --standby always"
    carol.wait_until("to follow", lambda: "follows" in cluster.status(carol)["standby"])
    return alice, bob, carol


def test_who_follows_goes_on_if_all_others_are_lost(cluster: Cluster) -> None:
    alice, bob, carol = followed(cluster, 1_000_000)
    alice.wait_steps(FOLLOWED)
    assert alice.members == ["alice", "bob"]
    assert cluster.status(carol)["phase"] == "standby"
    for agent in (alice, bob):
        agent.signal(signal.SIGKILL)
    at = alice.iteration
    carol.wait("scheduler", node="carol", why="founded")
    carol.wait_steps(FOLLOWED)
    first = carol.all("step")[0]["iteration"]
    assert at - BEHIND <= first <= at + BEHIND, "it has begun where the others were lost"
    assert carol.members == ["carol"]
    assert carol.interrupt()[0] == 0, carol.describe()
    assert carol.save_path.exists()


def test_who_follows_ends_with_the_others_and_the_same_model(cluster: Cluster) -> None:
    alice, bob, carol = followed(cluster, 300)
    for agent in (alice, bob, carol):
        assert agent.process.wait(120) == 0, agent.describe()
    assert not carol.all("joined")
    assert not carol.all("scheduler") or carol.all("scheduler")[-1]["node"] != "carol"
    models = {agent.save_path.read_bytes() for agent in (alice, bob, carol)}
    assert len(models) == 1, "all have the same model"
