"""A network that splits into two parts and heals: the parts go on apart, then become one cluster.

Four agents run in namespaces of their own on two bridges. The cable between the bridges is cut and
mended. The host's interfaces never see a packet.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from edgeagent.launch import module_command
from tests.scenarios.cluster import SMALL, TOKEN, Agent, Cluster
from tests.scenarios.test_deaths import has_members

NAMES = ("alice", "bob", "carol", "dave")


def ip(*arguments: str) -> None:
    """Run iproute2; it must succeed."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"


class Lan:
    """Two switches with two devices each, and a cable between the switches."""

    def __init__(self) -> None:
        self.prefix = f"edgeagent-{os.getpid()}"
        self.made: list[str] = []

    def build(self) -> None:
        switch = self.namespace("switches")
        for side in ("left", "right"):
            ip("-n", switch, "link", "add", side, "type", "bridge")
            ip("-n", switch, "link", "set", side, "up")
        ip("-n", switch, "link", "add", "trunk0", "type", "veth", "peer", "name", "trunk1")
        for end, side in (("trunk0", "left"), ("trunk1", "right")):
            ip("-n", switch, "link", "set", end, "master", side, "up")
        for k, name in enumerate(NAMES):
            inside = self.namespace(name)
            ip("-n", inside, "link", "set", "lo", "up")
            port = f"port{k}"
            ip(*f"-n {inside} link add lan0 type veth peer name {port} netns {switch}".split())
            ip("-n", inside, "address", "add", f"10.84.0.{k + 1}/24", "dev", "lan0")
            ip("-n", inside, "link", "set", "lan0", "up")
            ip("-n", switch, "link", "set", port, "master", "left" if k < 2 else "right", "up")

    def namespace(self, name: str) -> str:
        full = f"{self.prefix}-{name}"
        ip("netns", "add", full)
        self.made.append(full)
        return full

    def cable(self, state: str) -> None:
        """Cut ("down") or mend ("up") the cable between the switches."""
        ip("-n", f"{self.prefix}-switches", "link", "set", "trunk0", state)

    def remove(self) -> None:
        for name in self.made:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


@pytest.fixture
def lan() -> Iterator[Lan]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2 to make network namespaces")
    network = Lan()
    try:
        try:
            network.build()
        except AssertionError as error:
            pytest.skip(f"cannot make the network here: {error}")
        yield network
    finally:
        network.remove()


def start(cluster: Cluster, lan: Lan, name: str) -> Agent:
    folder = cluster.folder / name
    folder.mkdir()
    command = ["ip", "netns", "exec", f"{lan.prefix}-{name}", *module_command("edgeagent")]
    command += ["run", SMALL, "--name", name, "--threads", "1"]
    command += ["--events", str(cluster.folder / f"{name}.events")]
    command += ["--save", str(cluster.folder / f"{name}.safetensors")]
    settings = {"EDGEAGENT_TOKEN": TOKEN, "EDGEAGENT_HOME": str(folder / "home")}
    return cluster.launch(name, command, settings, folder=folder)


@pytest.mark.netns
@pytest.mark.slow
def test_two_halves_go_on_and_become_one_again(tmp_path: Path, lan: Lan) -> None:
    with Cluster(tmp_path) as cluster:
        agents = [start(cluster, lan, name) for name in NAMES]
        for agent in agents:
            agent.wait_until("four members", partial(has_members, agent, 4))
        for agent in agents:
            agent.wait_steps(12)  # a digest of all four
        lan.cable("down")
        for agent in agents:
            agent.wait_until("two members", partial(has_members, agent, 2))
        commits = [{e["iteration"]: e["commit"] for e in a.all("digest")} for a in agents]
        lan.cable("up")
        for agent in agents:
            agent.wait_until("four members again", partial(has_members, agent, 4))
            agent.wait_steps(12)
        assert commits[0].items() & commits[3].items(), "they had begun as one"
        digests = [{e["iteration"]: e["state"] for e in a.all("digest")[-2:]} for a in agents]
        together = digests[0].keys() & digests[1].keys() & digests[2].keys() & digests[3].keys()
        assert together
        for iteration in together:
            assert len({d[iteration] for d in digests}) == 1
        gave_way = [a for a in agents if a.said("another cluster of this name is ahead")]
        assert sorted(a.name for a in gave_way) in (["alice", "bob"], ["carol", "dave"])
        assert not any(agent.all("error") for agent in agents)
