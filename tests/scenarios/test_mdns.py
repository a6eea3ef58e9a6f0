"""Agents with nothing but the token find each other by multicast DNS, also after it has changed.

The agents run in a network namespace that the test makes and removes, so that the host's interfaces
never see a packet.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeagent.launch import module_command
from tests.scenarios.cluster import TOKEN, Agent, Cluster

ADDRESS = "10.83.0.1/24"
STEPS = ("--steps", "150", "--threads", "1")


def ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run iproute2."""
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def namespace() -> Iterator[str]:
    """Yield a network namespace with one interface that carries multicast, as a real network
    does."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2 to make a network namespace")
    name = f"edgeagent-mdns-{os.getpid()}"
    if (made := ip("netns", "add", name)).returncode:
        pytest.skip(f"cannot make a network namespace here: {made.stderr.strip()}")
    try:
        for line in (
            "link set lo up",
            "link add lan0 type veth peer name lan1",
            f"address add {ADDRESS} dev lan0",
            "link set lan0 up",
            "link set lan1 up",
        ):
            done = ip("-n", name, *line.split())
            assert done.returncode == 0, f"ip {line}: {done.stderr}"
        yield name
    finally:
        ip("netns", "delete", name)


def start(cluster: Cluster, namespace: str, name: str, *options: str, token: str = TOKEN) -> Agent:
    """Start one agent in a folder of its own, as a user does on each device."""
    folder = cluster.folder / name
    folder.mkdir()
    command = ["ip", "netns", "exec", namespace, *module_command("edgeagent"), "run", "digits"]
    settings = {"EDGEAGENT_TOKEN": token}
    return cluster.launch(name, [*command, *options], settings, folder=folder)


@pytest.mark.netns
@pytest.mark.slow
def test_three_find_each_other(tmp_path: Path, namespace: str) -> None:
    with Cluster(tmp_path) as cluster:
        agents = [start(cluster, namespace, name, *STEPS) for name in ("1", "2", "3")]

        def founders() -> list[Agent]:
            return [agent for agent in agents if agent.said("founded cluster")]

        founder: Agent = agents[0].wait_until("founder", founders)[0]
        with founder.held():
            for agent in agents:
                agent.wait_ready()
        for agent in agents:
            assert agent.wait_exit() == 0, agent.log
        assert founders() == [founder]
        joined = [line for agent in agents for line in agent.said("from ") if "joined" in line]
        assert len(joined) == 2
        assert len(founder.said("has joined")) == 2
        saved = {
            (cluster.folder / str(n) / "edgeagent-digits.safetensors").read_bytes()
            for n in (1, 2, 3)
        }
        assert len(saved) == 1


@pytest.mark.long
@pytest.mark.netns
@pytest.mark.slow
def test_a_new_token_is_what_is_announced(tmp_path: Path, namespace: str) -> None:
    """An agent with the new token finds the cluster, also through the member that did not make the
    token."""

    def named(name: str, token: str) -> Agent:
        options = ["--name", name, "--steps", "1000000", "--threads", "1"]
        options += ["--events", str(cluster.folder / f"{name}.events")]
        return start(cluster, namespace, name, *options, token=token)

    with Cluster(tmp_path) as cluster:
        alice = named("alice", TOKEN)
        alice.wait("joined")
        bob = named("bob", TOKEN)
        bob.wait("joined")
        rotated = cluster.command("token", "rotate", "--name", "bob")
        assert rotated.returncode == 0, rotated
        for agent in (alice, bob):
            agent.wait_said("the cluster has a new token")
        carol = named("carol", rotated.stdout.strip())
        assert sorted(carol.wait("joined")["members"]) == ["alice", "bob", "carol"]
        stranger = named("stranger", TOKEN)
        stranger.wait_said("an agent of another cluster or token is nearby")
        assert stranger.wait("joined")["members"] == ["stranger"]
        for agent in (alice, bob, carol):
            agent.wait_steps(5)
            assert agent.members == ["alice", "bob", "carol"]
            said = agent.said("an agent of another cluster or token is nearby")
            assert len(said) <= 1, "the stranger alone"
