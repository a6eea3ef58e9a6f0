"""A mishap on one device disturbs no other device, and its user gets one clear line."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.cluster import SCRIPTS, SMALL, Cluster, free_ports

FAILS = str(SCRIPTS / "fails.py")


@contextlib.contextmanager
def relay(port: int, address: str) -> Iterator[None]:
    """Forward all connections to `port` to the agent at `address` while the block runs."""
    host, _, to = address.rpartition(":")

    def pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection((host, int(to)))
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=ends, daemon=True).start()

    with socket.create_server(("127.0.0.1", port)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield
        listener.shutdown(socket.SHUT_RDWR)


def test_a_mistake_in_one_script_ends_that_device_only(tmp_path: Path) -> None:
    with Cluster(tmp_path, job=FAILS) as cluster:
        alice = cluster.start("alice", script=["0"])
        alice.wait("joined")
        with alice.held():
            bob = cluster.start("bob", peers=[alice], script=["400"])
            carol = cluster.start("carol", peers=[alice], script=["0"])
            for agent in (bob, carol):
                agent.wait_ready()
        assert bob.wait_exit() == 1
        assert bob.said("ValueError: a mistake")
        (error,) = bob.all("error")
        assert error["message"] == "the script failed with ValueError"
        (line,) = bob.said("edgeagent: the script failed with ValueError")
        assert "no model is saved here, but the 2 others go on" in line
        for agent in (alice, carol):
            assert agent.wait_exit() == 0, agent.describe()
            assert agent.iteration == 600
            (left,) = agent.all("member_left")
            assert (left["node"], left["reason"]) == ("bob", "leave")
            assert left["stall_s"] >= 0
        assert alice.save_path.read_bytes() == carol.save_path.read_bytes()


def test_a_script_that_dies_before_training(tmp_path: Path) -> None:
    with Cluster(tmp_path, job=FAILS) as cluster:
        agent = cluster.start("alice", script=["at once"])
        assert agent.wait_exit() == 1
        line = "fails ended with exit status 3 before training began"
        assert agent.said("fails ended") == [f"edgeagent: {line}"]
        assert [e["message"] for e in agent.all("error")] == [line]


def test_ctrl_c_while_the_script_still_loads(tmp_path: Path) -> None:
    with Cluster(tmp_path, job=FAILS) as cluster:
        agent = cluster.start("alice", script=["0"])
        agent.wait("started")
        agent.signal(signal.SIGINT)
        assert agent.wait_exit() == 0, agent.describe()
        assert agent.said("before training begins")


@pytest.mark.long
def test_those_who_name_only_the_same_agent_become_one_cluster(tmp_path: Path) -> None:
    names = ["alice", "bob", "carol", "dave"]
    with Cluster(tmp_path, job=SMALL) as cluster:
        (port,) = free_ports(1)
        hub = f"127.0.0.1:{port}"
        agents = [cluster.start("alice", listen=hub)]
        agents += [cluster.start(name, peers=[hub]) for name in names[1:]]
        for agent in agents:
            agent.wait_members(*names)
        assert sum(not e["sources"] for a in agents for e in a.all("joined")) == 1


@pytest.mark.long
def test_a_founder_that_gives_way_keeps_what_it_has_trained(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with Cluster(tmp_path, job=SMALL) as cluster:
        alice = cluster.start("alice")
        bob = cluster.start("bob", peers=[f"127.0.0.1:{port}"])
        bob.wait_iteration(3)
        with bob.held(), relay(port, alice.address):
            alice.wait_iteration(bob.iteration + 50)
            os.kill(bob.trainer, signal.SIGCONT)
            bob.wait_members("alice", "bob")
        kept = tmp_path / "bob-before-joining.safetensors"
        assert kept.exists()
        assert bob.said(f"is kept in {kept}")
        bob.wait_steps(5)
        assert bob.interrupt()[0] == 0
        assert bob.save_path.exists()
