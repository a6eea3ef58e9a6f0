"""Trainers that stop answering while their agents live: the others do not wait for them for ever.

A stopped process (SIGSTOP) stands for any trainer that hangs, because nothing in it can run.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.scenarios.cluster import SMALL, Agent, Cluster
from tests.scenarios.test_deaths import has_members
from tests.scenarios.test_story import every_step_once, same_digests


def pair(cluster: Cluster) -> tuple[Agent, Agent]:
    """Return two agents that train together and are past their first iterations, in which trainers
    are given more time."""
    alice, bob = cluster.together("alice", "bob")
    for agent in (alice, bob):
        agent.wait_until("both members", partial(has_members, agent, 2))
        agent.wait_steps(10)
    return alice, bob


def is_gone(pid: int) -> bool:
    """Whether the process has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_the_others_go_on_and_it_catches_up(tmp_path: Path) -> None:
    with Cluster(tmp_path, job=SMALL) as cluster:
        alice, bob = pair(cluster)
        os.kill(bob.trainer, signal.SIGSTOP)
        for agent in (alice, bob):
            assert agent.wait("member_late", node="bob")["away"] is False
        alice.wait_steps(20)
        trainers = {m["name"]: m["trainer"] for m in cluster.status(alice)["members"]}
        assert trainers == {"alice": "prompt", "bob": "late"}
        assert alice.said("the trainer of bob does not answer in time")
        os.kill(bob.trainer, signal.SIGCONT)
        for agent in (alice, bob):
            agent.wait("member_back", node="bob")
        bob.wait_iteration(alice.iteration)
        for agent in (alice, bob):
            agent.wait_steps(10)
        for agent in (bob, alice):
            assert agent.interrupt()[0] == 0, agent.describe()
        assert same_digests([alice, bob]) > 0
        every_step_once([alice, bob])


@pytest.mark.long
def test_it_leaves_although_its_trainer_hangs_and_its_agent_saves(tmp_path: Path) -> None:
    with Cluster(tmp_path, job=SMALL) as cluster:
        alice, bob = pair(cluster)
        trainer = bob.trainer
        os.kill(trainer, signal.SIGSTOP)
        alice.wait("member_late", node="bob")
        assert cluster.command("leave", "--name", "bob").returncode == 0
        assert alice.wait("member_left", node="bob")["reason"] == "leave"
        assert bob.wait_exit() == 0, bob.describe()
        assert bob.said("the agent has saved its model in")
        assert not bob.said("ended with signal")
        assert bob.save_path.stat().st_size > 0
        assert is_gone(trainer)
        alice.wait_steps(10)


def test_a_trainer_does_not_outlive_its_agent(tmp_path: Path) -> None:
    with Cluster(tmp_path, job=SMALL) as cluster:
        alice, bob = pair(cluster)
        trainer = bob.trainer
        os.kill(trainer, signal.SIGSTOP)
        bob.signal(signal.SIGKILL)
        bob.wait_exit()
        alice.wait_until("end of the trainer", partial(is_gone, trainer))
        alice.wait_steps(10)
