"""Two agents whose link ends although both live, and one that dies: which goes on, and with what.

Real agents run in two namespaces of the testbed with `--on-partition pause`. What was cut is mended
while the other agent still waits, so both must go on together in the same history, and no state may
be set aside in a file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from edgeagent.launch import module_command
from tests.scenarios.cluster import SMALL, TOKEN, Agent, Cluster
from tests.testbed.namespaces import unusable
from tests.testbed.network import Link, Network

NAMES = ("alice", "bob")
RESETS = "-p tcp ! --tcp-flags RST RST -j REJECT --reject-with tcp-reset"
SLEEP_SECONDS = 4.0  # longer than a silence time-out, shorter than the other agent waits


@pytest.fixture
def net() -> Iterator[Network]:
    if why := unusable():
        pytest.skip(why)
    with Network(NAMES, default=Link()) as network:
        yield network


def start(cluster: Cluster, net: Network, name: str) -> Agent:
    folder = cluster.folder / name
    folder.mkdir()
    command = net.command(name, [*module_command("edgeagent"), "run", SMALL, "--name", name])
    command += ["--threads", "1", "--on-partition", "pause"]
    command += ["--events", str(cluster.folder / f"{name}.events")]
    command += ["--save", str(cluster.folder / f"{name}.safetensors")]
    settings = {"EDGEAGENT_TOKEN": TOKEN, "EDGEAGENT_HOME": str(folder / "home")}
    return cluster.launch(name, command, settings, folder=folder)


def pair(cluster: Cluster, net: Network) -> tuple[Agent, Agent]:
    alice, bob = (start(cluster, net, name) for name in NAMES)
    for agent in (alice, bob):
        agent.wait_members(*NAMES)
        agent.wait_steps(5)
    return alice, bob


def go_on_together(alice: Agent, bob: Agent) -> None:
    """Check that both go on as the members that they were, with equal states."""
    for agent in (alice, bob):
        agent.wait_until("the link again", partial(is_linked_again, agent))
        agent.wait_steps(25)
        assert agent.members == sorted(NAMES)
        assert not agent.all("member_left")
        assert not agent.all("error")
        assert not list(agent.save_path.parent.glob("*before-joining*"))
    common = alice.digests.keys() & bob.digests.keys()
    assert common
    assert all(alice.digests[i] == bob.digests[i] for i in common)


def is_linked_again(agent: Agent) -> bool:
    ends = [e["event"] for e in agent.update() if e["event"] in ("link_up", "link_down")]
    return "link_down" in ends and ends[-1] == "link_up"


def filter_packets(net: Network, name: str, rule: str) -> None:
    command = net.command(name, ["iptables", *rule.split()])
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.netns
@pytest.mark.slow
def test_resets_from_something_on_the_way_cost_a_pause(tmp_path: Path, net: Network) -> None:
    with Cluster(tmp_path) as cluster:
        alice, bob = pair(cluster, net)
        for name in NAMES:
            filter_packets(net, name, f"-I INPUT {RESETS}")
        for agent in (alice, bob):
            agent.wait("link_down")
        for name in NAMES:
            filter_packets(net, name, f"-D INPUT {RESETS}")
        go_on_together(alice, bob)


@pytest.mark.netns
@pytest.mark.slow
@pytest.mark.long
def test_a_short_sleep_of_one_of_two_costs_a_pause(tmp_path: Path, net: Network) -> None:
    with Cluster(tmp_path) as cluster:
        alice, bob = pair(cluster, net)
        os.killpg(bob.process.pid, signal.SIGSTOP)
        try:
            alice.wait("link_down")
            time.sleep(SLEEP_SECONDS / 2)  # the agent sleeps on, which is what is tested
        finally:
            os.killpg(bob.process.pid, signal.SIGCONT)
        go_on_together(alice, bob)


@pytest.mark.netns
@pytest.mark.slow
def test_one_that_pauses_goes_on_at_once_when_the_other_is_killed(
    tmp_path: Path, net: Network
) -> None:
    with Cluster(tmp_path) as cluster:
        alice, bob = pair(cluster, net)
        os.killpg(bob.process.pid, signal.SIGKILL)
        left = alice.wait("member_left", node="bob")
        down = alice.wait("link_down", node="bob")
        restarted = alice.wait("restarted")
        assert left["reason"] == "failure"
        assert restarted["t"] - down["t"] < 1.0, "it waited, although the end proved the death"
        alice.wait_steps(5)
