"""`edgeagent doctor` on a healthy set-up and on unhealthy ones, made in network namespaces.

Two devices with a cable between them; on one runs an agent, on the other the doctor. Both also have
the bridge of a container, whose address is the same on both and lower than that of the cable.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edgeagent.launch import module_command
from tests.scenarios import forking
from tests.scenarios.cluster import OTHER_TOKEN, SCRIPTS, SMALL, TOKEN, Agent, Cluster

HERE, THERE = "10.84.0.1", "10.84.0.2"
PEER = f"{THERE}:7430"
ODD = str(SCRIPTS / "odd_agent.py")
DOCTOR_S = 60.0

pytestmark = [pytest.mark.netns, pytest.mark.slow]


@dataclass
class Seen:
    """What the doctor has printed, and its exit status."""

    status: int
    report: dict[str, Any]

    def __getitem__(self, check: str) -> dict[str, str]:
        """Return the finding about `check`."""
        found = {finding["check"]: finding for finding in self.report["findings"]}
        assert check in found, self.report["findings"]
        finding: dict[str, str] = found[check]
        return finding

    def worse_than_ok(self) -> dict[str, str]:
        """Return the checks that are not ok, with their verdicts."""
        findings = self.report["findings"]
        return {f["check"]: f["verdict"] for f in findings if f["verdict"] != "ok"}


class Room:
    """The two devices: `near` has the doctor, `far` the agent."""

    def __init__(self, cluster: Cluster, near: str, far: str) -> None:
        self.cluster = cluster
        self.near = near
        self.far = far

    def agent(self, name: str, *odd: str) -> Agent:
        """Start an agent on the far device; `odd` are arguments of `odd_agent.py`."""
        program = [sys.executable, ODD, *odd] if odd else list(module_command("edgeagent"))
        command = ["ip", "netns", "exec", self.far, *program, "run", SMALL, "--name", name]
        command += ["--no-save", "--threads", "1"]
        agent = self.cluster.launch(name, command, {"EDGEAGENT_TOKEN": TOKEN}, fresh=bool(odd))
        agent.wait_said("founded cluster")
        return agent

    def doctor(self, *options: str, odd: str = "", token: str = TOKEN) -> Seen:
        """Run the doctor on the near device."""
        program = [sys.executable, ODD, odd] if odd else list(module_command("edgeagent"))
        command = ["ip", "netns", "exec", self.near, *program, "doctor", "--json", *options]
        settings = {"OMP_NUM_THREADS": "1", **({"EDGEAGENT_TOKEN": token} if token else {})}
        with contextlib.nullcontext() if odd else forking.starts(spare=False):
            ended = subprocess.run(
                command,
                cwd=self.cluster.folder,
                env=self.cluster.environment(settings),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=DOCTOR_S,
                check=False,
            )
        assert ended.stdout, ended.stderr
        assert TOKEN not in ended.stdout
        return Seen(ended.returncode, json.loads(ended.stdout))


def run(*command: str) -> None:
    """Run a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


@contextlib.contextmanager
def rule(namespace: str, *words: str) -> Iterator[None]:
    """Have a rule of iptables on a device."""
    tables = ("ip", "netns", "exec", namespace, "iptables", "-w")
    run(*tables, "-I", *words)
    try:
        yield
    finally:
        run(*tables, "-D", *words)


def connect(near: str, far: str) -> None:
    """Join the two devices by a cable, and give each a bridge with a container on it."""
    run("ip", "-n", near, *["link", "add", "lan0", "type", "veth", "peer", "lan0", "netns"], far)
    for name, host in ((near, HERE), (far, THERE)):
        for line in (
            "link set lo up",
            f"addr add {host}/24 dev lan0",
            "link set lan0 up",
            "link add br-0a1b2c type bridge",
            "link add in0 type veth peer out0",
            "link set in0 master br-0a1b2c up",
            "link set out0 up",
            "addr add 10.0.3.1/24 dev br-0a1b2c",
            "link set br-0a1b2c up",
        ):
            run("ip", "-n", name, *line.split())


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    """Two devices, without agents."""
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("iptables")):
        pytest.skip("needs root, iproute2 and iptables to make network namespaces")
    names = f"edgeagent-doctor-{os.getpid()}-a", f"edgeagent-doctor-{os.getpid()}-b"
    made = subprocess.run(["ip", "netns", "add", names[0]], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"cannot make a network namespace here: {made.stderr.decode().strip()}")
    try:
        run("ip", "netns", "add", names[1])
        connect(*names)
        folder: Path = tmp_path_factory.mktemp("doctor")
        with Cluster(folder) as cluster:
            yield Room(cluster, *names)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@pytest.fixture(scope="module")
def agent(room: Room) -> Agent:
    """An agent on the far device."""
    return room.agent("alice")


def test_healthy(room: Room, agent: Agent) -> None:
    seen = room.doctor(SMALL, "--peer", PEER)
    assert seen.status == 0
    assert seen.worse_than_ok() == {"peer: rates": "not known"}
    assert f"{HERE} on lan0 is told first" in seen["interfaces"]["seen"]
    assert "then 10.0.3.1 on br-0a1b2c (bridge of" in seen["interfaces"]["seen"]
    assert seen["peer: agent"]["seen"] == "alice answers, in a cluster of 1 member"
    assert "1500 bytes pass both ways" in seen["peer: large packets"]["seen"]
    assert not agent.said("refused"), "the agent that was looked at is not bothered"


def test_no_multicast(room: Room, agent: Agent) -> None:
    multicast = ("-d", "224.0.0.0/4", "-j", "DROP")
    # The agent announces itself for some seconds after its start, which may be just now.
    with rule(room.far, "INPUT", *multicast), rule(room.far, "OUTPUT", *multicast):
        seen = room.doctor("--peer", PEER)
    assert seen.worse_than_ok().keys() == {"multicast", "peer: multicast", "peer: rates"}
    assert seen["peer: multicast"]["verdict"] == "warning"
    assert f"--peer {PEER}" in seen["peer: multicast"]["advice"]
    with rule(room.near, "OUTPUT", "-d", "224.0.0.0/4", "-j", "DROP"):
        seen = room.doctor()
    assert seen.status == 1
    assert seen["multicast"]["verdict"] == "failed"
    assert "UDP 5353" in seen["multicast"]["advice"]


def test_a_firewall_there_and_here(room: Room, agent: Agent) -> None:
    port = ("INPUT", "-p", "tcp", "--dport", "7430:7431", "-j", "DROP")
    with rule(room.far, *port):
        seen = room.doctor("--peer", PEER)
    assert seen.status == 1
    assert seen["peer: reached"]["verdict"] == "failed"
    assert "Open TCP 7430 and 7431 in the firewall there" in seen["peer: reached"]["advice"]
    with rule(room.near, *port):
        seen = room.doctor("--peer", PEER)
    assert seen.status == 1
    assert seen["firewall"]["verdict"] == seen["peer: way back"]["verdict"] == "failed"
    assert "iptables -I INPUT -p tcp --dport 7430:7431" in seen["firewall"]["advice"]


def test_the_bridge_of_a_container_first(room: Room, agent: Agent) -> None:
    """Where only the bridge is to be used, that is named; nothing else is reached through it."""
    seen = room.doctor("--peer", PEER, "--interface", "br-0a1b2c")
    assert seen.status == 1
    assert seen["interfaces"]["verdict"] == "warning"
    assert "leave --interface away" in seen["interfaces"]["advice"]
    assert seen["peer: reached"]["verdict"] == "failed"


def test_a_clock_that_is_behind(room: Room, agent: Agent) -> None:
    seen = room.doctor("--peer", PEER, odd="clock=-7200")
    assert seen.status == 0, "training works all the same"
    assert seen["peer: clock"]["verdict"] == "warning"
    assert "Set both clocks" in seen["peer: clock"]["advice"]


@pytest.mark.long
def test_packets_that_are_swallowed(room: Room, agent: Agent) -> None:
    with rule(room.far, "INPUT", "-i", "lan0", "-m", "length", "--length", "1300:", "-j", "DROP"):
        seen = room.doctor("--peer", PEER)
    assert seen.status == 1
    assert seen["peer: large packets"]["verdict"] == "failed"
    assert "lan0 mtu 1280" in seen["peer: large packets"]["advice"]
    assert seen["peer: token"]["verdict"] == "ok", "shorter packets have shown the rest"


def test_another_token(room: Room, agent: Agent) -> None:
    seen = room.doctor("--peer", PEER, token=OTHER_TOKEN)
    assert (seen.status, seen["peer: token"]["verdict"]) == (1, "failed")


def test_another_version(room: Room) -> None:
    """This one is last, because its agent takes the next ports."""
    odd = room.agent("oddly", "version=2")
    port = odd.wait_said("listens at").split(THERE)[1].split(",")[0]
    seen = room.doctor("--peer", f"{THERE}{port}")
    assert seen.status == 1
    assert seen["peer: version"]["verdict"] == "failed"
    assert seen["peer: version"]["seen"] == ("it speaks protocol version 2, and this edgeagent 1")
