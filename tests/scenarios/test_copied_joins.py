"""Devices that join beside the training: the others go on, and all have the same bits afterwards.

The joiner has the state of an earlier iteration and has applied every update since then itself, so
whatever keeps a state has to come along: the optimizer, batch norm, clipping, schedules, scales.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.cluster import SCRIPTS, Agent, Cluster
from tests.variants import variants

SCRIPT = str(SCRIPTS / "optimizers.py")
NAMES = ("alice", "bob", "carol")
JOIN_AT = 10
TOGETHER = 100  # steps
OTHERS = ["SGD", "Adam", "Adagrad", "RMSprop", "NAdam"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Yield a cluster in which joiners copy beside the training."""
    with Cluster(tmp_path, job=SCRIPT, options=("--join", "log")) as cluster:
        yield cluster


def two_members(cluster: Cluster, optimizer: str) -> tuple[list[Agent], dict[str, str]]:
    """Start two members; return them, and the environment in which others start."""
    steps = {"STEPS": "100000"}
    agents = cluster.together("alice", "bob", script=[optimizer], environment=steps)
    agents[0].wait_steps(JOIN_AT)
    return agents, steps


def check_equal(agents: list[Agent]) -> None:
    """Check that all have had the same state whenever they compared it, after the last join, too,
    and that they end with the same."""
    for agent in agents:
        assert agent.interrupt()[0] == 0, agent.describe()
        assert not agent.all("diverged")
    one, *others = agents
    for other in others:
        both = sorted(set(one.digests) & set(other.digests))
        assert len(both) > 3
        assert [one.digests[i] for i in both] == [other.digests[i] for i in both]


@pytest.mark.parametrize("optimizer", variants(["AdamW"], long=OTHERS))
def test_equal_bits_after_a_join_that_nobody_waited_for(cluster: Cluster, optimizer: str) -> None:
    agents, steps = two_members(cluster, optimizer)
    carol = cluster.start("carol", script=[optimizer], peers=[agents[0]], environment=steps)
    joined = carol.wait("joined")
    assert joined["updates"] > 0, "the others went on"
    carol.wait_members(*NAMES)
    carol.wait_steps(TOGETHER)
    check_equal([*agents, carol])
    for agent in (*agents, carol):
        assert not agent.said("skipped 0"), "no step was skipped: choose a larger scale"


@pytest.mark.long
def test_a_source_is_killed_while_a_device_copies(cluster: Cluster) -> None:
    agents, steps = two_members(cluster, "AdamW")
    carol = cluster.start("carol", script=["AdamW"], peers=agents, environment=steps)
    carol.wait_ready()
    carol.wait_until("link", lambda: len(carol.all("link_up")) == 2)
    agents[1].signal(signal.SIGKILL)
    carol.wait("joined")
    carol.wait_members("alice", "carol")
    carol.wait_steps(TOGETHER)
    check_equal([agents[0], carol])


@pytest.mark.long
def test_a_device_leaves_while_it_copies(cluster: Cluster) -> None:
    agents, steps = two_members(cluster, "AdamW")
    carol = cluster.start("carol", script=["AdamW"], peers=[agents[0]], environment=steps)
    carol.wait_ready()
    carol.wait("link_up")
    assert carol.interrupt()[0] == 0
    dave = cluster.start("dave", script=["AdamW"], peers=[agents[0]], environment=steps)
    dave.wait_members("alice", "bob", "dave")
    dave.wait_steps(TOGETHER)
    check_equal([*agents, dave])


@pytest.mark.long
def test_a_device_is_suspended_while_it_copies(cluster: Cluster) -> None:
    """Nobody waits for it, and what it missed is still there when it wakes up."""
    agents, steps = two_members(cluster, "AdamW")
    carol = cluster.start("carol", script=["AdamW"], peers=[agents[0]], environment=steps)
    carol.wait_ready()
    carol.wait("link_up")
    os.kill(carol.process.pid, signal.SIGSTOP)
    agents[0].wait_steps(20)
    os.kill(carol.process.pid, signal.SIGCONT)
    carol.wait_members(*NAMES)
    carol.wait_steps(TOGETHER)
    check_equal([*agents, carol])
