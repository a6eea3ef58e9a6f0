"""Devices that run on battery, told by a tree like /sys, among devices that do not."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.cluster import SMALL, Agent, Cluster
from tests.scenarios.test_deaths import has_members
from tests.scenarios.test_story import every_step_once, same_digests
from tests.unit.pausing.test_facts import supply


def plugged(sysfs: Path, online: bool) -> None:
    """Plug a laptop in, or pull its plug."""
    supply(sysfs, "BAT0", type="Battery", status="Charging" if online else "Discharging")
    supply(sysfs, "AC", type="Mains", online="1" if online else "0")


def share(cluster: Cluster, agent: Agent, name: str) -> int:
    """Return the share of `name`, as `agent` knows it."""
    members = {m["name"]: m for m in cluster.status(agent)["members"]}
    return int(members[name]["share"])


def laptop(cluster: Cluster, name: str, sysfs: Path, peers: list[Agent]) -> Agent:
    """Start an agent that pauses on battery."""
    environment = {"EDGEAGENT_SYSFS": str(sysfs)}
    return cluster.start(name, "--pause-on-battery", peers=peers, environment=environment)


def test_on_battery_the_others_go_on_and_on_mains_it_trains_again(tmp_path: Path) -> None:
    plugged(tmp_path / "sys", True)
    with Cluster(tmp_path, job=SMALL) as cluster:
        alice = cluster.start("alice")
        alice.wait("joined")
        bob = laptop(cluster, "bob", tmp_path / "sys", [alice])
        for agent in (alice, bob):
            agent.wait_until("both members", partial(has_members, agent, 2))
        bob.wait_until("a share", lambda: share(cluster, bob, "bob") > 0)
        plugged(tmp_path / "sys", False)
        assert bob.wait("paused")["reasons"] == ["battery"]
        alice.wait("member_late", node="bob", away=True)
        bob.wait_until("share 0", lambda: share(cluster, alice, "bob") == 0)
        at = alice.iteration
        alice.wait_steps(20)
        bob.wait_iteration(at + 20)
        status: dict[str, Any] = cluster.status(bob)
        assert status["paused"] == "this device runs on battery"
        assert bob.said("paused: this device runs on battery")
        assert (
            "paused: this device runs on battery"
            in cluster.command("status", "--name", "bob").stdout
        )
        plugged(tmp_path / "sys", True)
        assert bob.wait("resumed")["seconds"] > 0
        alice.wait("member_back", node="bob")
        bob.wait_until("a share again", lambda: share(cluster, alice, "bob") > 0)
        assert cluster.status(bob)["paused"] == ""
        for agent in (alice, bob):
            agent.wait_steps(10)
        for agent in (bob, alice):
            assert agent.interrupt()[0] == 0, agent.describe()
        assert same_digests([alice, bob]) > 0
        every_step_once([alice, bob])
        for agent in (alice, bob):
            assert not [e for e in agent.all("member_left") if e["reason"] == "failure"]


def stands_still(agent: Agent) -> bool:
    """Whether it makes no more than a step within a second."""
    import time

    before = agent.iteration
    time.sleep(1.0)
    return agent.iteration <= before + 1


@pytest.mark.long
def test_alone_on_battery_it_stands_still_but_lets_a_newcomer_in(tmp_path: Path) -> None:
    plugged(tmp_path / "sys", True)
    with Cluster(tmp_path, job=SMALL) as cluster:
        alice = laptop(cluster, "alice", tmp_path / "sys", [])
        alice.wait_iteration(10)
        plugged(tmp_path / "sys", False)
        alice.wait("paused")
        alice.wait_until("a standstill", partial(stands_still, alice))
        bob = cluster.start("bob", peers=[alice])
        bob.wait("joined")
        bob.wait_steps(20)
        assert share(cluster, bob, "alice") == 0
        assert bob.interrupt()[0] == 0, bob.describe()
        alice.wait("member_left", node="bob")
        alice.wait_until("a standstill", partial(stands_still, alice))
        assert alice.interrupt()[0] == 0, "a device that pauses can leave"
        if alice.iteration == bob.iteration:  # a step may have been on its way when bob left
            same = cluster.command("verify", str(alice.save_path), str(bob.save_path))
            assert same.returncode == 0, same.stdout


@pytest.mark.long
def test_where_all_pause_training_stands_still_until_one_is_back(tmp_path: Path) -> None:
    for name in ("alice", "bob"):
        plugged(tmp_path / name, True)
    with Cluster(tmp_path, job=SMALL) as cluster:
        alice = laptop(cluster, "alice", tmp_path / "alice", [])
        alice.wait("joined")
        bob = laptop(cluster, "bob", tmp_path / "bob", [alice])
        for agent in (alice, bob):
            agent.wait_until("both members", partial(has_members, agent, 2))
            agent.wait_steps(5)
        for name in ("alice", "bob"):
            plugged(tmp_path / name, False)
        for agent in (alice, bob):
            agent.wait("paused")
        alice.wait_until("a standstill", partial(stands_still, alice))
        plugged(tmp_path / "bob", True)
        bob.wait("resumed")
        bob.wait_steps(20)
        plugged(tmp_path / "alice", True)
        alice.wait("resumed")
        alice.wait_steps(10)
        for agent in (alice, bob):
            assert agent.interrupt()[0] == 0, agent.describe()
        assert same_digests([alice, bob]) > 0
        assert json.dumps(alice.all("diverged")) == "[]"


@pytest.mark.long
def test_a_metered_device_leaves_and_joins_again(tmp_path: Path) -> None:
    answer = tmp_path / "metered"
    answer.write_text("u 2\n")
    programs = tmp_path / "bin"
    programs.mkdir()
    busctl = programs / "busctl"
    busctl.write_text(f"#!/bin/sh\nexec cat {answer}\n")
    busctl.chmod(0o755)
    with Cluster(tmp_path, job=SMALL) as cluster:
        alice = cluster.start("alice")
        alice.wait("joined")
        environment = {"PATH": f"{programs}:/usr/bin:/bin"}
        options = ("--pause-on-metered",)
        bob = cluster.start("bob", *options, peers=[alice], environment=environment)
        bob.wait("joined")
        answer.write_text("u 1\n")
        alice.wait("member_left", node="bob")
        bob.wait_said("has left the cluster for as long as it stands aside")
        assert cluster.status(bob)["paused"] == "its network connection is metered"
        at = alice.iteration
        alice.wait_steps(20)
        assert bob.iteration <= at + 5
        answer.write_text("u 2\n")
        bob.wait_said("stands aside no longer")
        bob.wait_until("a second membership", lambda: len(bob.all("joined")) == 2)
        bob.wait_steps(10)
        for agent in (bob, alice):
            assert agent.interrupt()[0] == 0, agent.describe()
        assert same_digests([alice, bob]) > 0
