"""Three `edgeagent run digits` with nothing but the token find each other by multicast DNS.

Law: they run in a network namespace that the test makes and removes; the host's interfaces never
see a packet.
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


def ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run iproute2."""
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def namespace() -> Iterator[str]:
    """A network namespace with one interface that carries multicast, as a room's network does."""
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


def start(cluster: Cluster, namespace: str, number: int) -> Agent:
    """Start one agent in its own folder, as in a terminal of its own."""
    folder = cluster.folder / str(number)
    folder.mkdir()
    command = ["ip", "netns", "exec", namespace, *module_command("edgeagent"), "run", "digits"]
    settings = {"EDGEAGENT_TOKEN": TOKEN}
    return cluster.launch(str(number), command, settings, folder=folder)


@pytest.mark.netns
@pytest.mark.slow
def test_three_find_each_other(tmp_path: Path, namespace: str) -> None:
    with Cluster(tmp_path) as cluster:
        agents = [start(cluster, namespace, number) for number in (1, 2, 3)]

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
