"""Agents with another token, cluster or job, and strangers that send rubbish: one clear line each.

Two agents train during the whole module, and every test checks that they were not disturbed.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.scenarios.cluster import OTHER_TOKEN, SMALL, Agent, Cluster

RUBBISH_BYTES = 1 << 20
IDLE_CONNECTIONS = 200
SEND_S = 20.0
QUIET_STEPS = 30  # steps to go on for after each disturbance
MOST_LINES = 6  # lines of output that one disturbance may cause


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield a cluster in which alice and bob train."""
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(folder, job=SMALL) as cluster:
        cluster.together("alice", "bob")
        yield cluster


@pytest.fixture
def members(cluster: Cluster) -> Iterator[list[Agent]]:
    """Yield alice and bob; after the test they must be the same members, some steps later."""
    members = cluster.agents[:2]
    yield members
    for agent in members:
        agent.wait_steps(QUIET_STEPS)
        assert all(e["reason"] == "leave" for e in agent.all("member_left"))
        assert not agent.all("error")
        seen = [e["iteration"] for e in agent.all("step")]
        assert seen == list(range(seen[0], seen[0] + len(seen)))


def test_other_token_or_cluster(cluster: Cluster, members: list[Agent]) -> None:
    alice = members[0]
    intruders = [
        cluster.start("stranger", peers=[alice], token=OTHER_TOKEN),
        cluster.start("foreigner", "--cluster", "other", peers=[alice]),
    ]
    for intruder in intruders:
        assert intruder.wait_exit() == 1
        (line,) = intruder.said("refused us")
        assert line.startswith("edgeagent: ")
        assert f"{alice.address} refused us: its token or its cluster name differs" in line
        # Where it listens, the refusal, and how its trainer cuts the batch if that is quick.
        assert len(intruder.log.splitlines()) <= 3
        assert not intruder.all("joined")
        assert intruder.all("error")
    alice.wait_said("its token or its cluster name is not ours")


def test_other_job(cluster: Cluster, members: list[Agent]) -> None:
    alice = members[0]
    intruders = {
        "seed is 0 there and 7 here": cluster.start("seven", "--seed", "7", peers=[alice]),
        "global batch is 32 there and 64 here": cluster.start(
            "half", "--global-batch", "64", peers=[alice]
        ),
    }
    for difference, intruder in intruders.items():
        assert intruder.wait_exit() == 1
        (line,) = intruder.said("trains another job")
        said = f"edgeagent: {alice.address} trains another job: {difference} ("
        assert line.startswith(said)
        assert line.endswith("or another --cluster here)")
        assert not intruder.all("joined")
    alice.wait_said("trains another job")


def send_rubbish(port: int, seed: int) -> None:
    """Send a MiB of random bytes, or as much of it as the other side takes."""
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection(("127.0.0.1", port), SEND_S) as connection,
    ):
        connection.sendall(random.Random(seed).randbytes(RUBBISH_BYTES))


def test_random_bytes_at_each_port(members: list[Agent]) -> None:
    alice = members[0]
    before = len(alice.said("refused"))
    ports = alice.ports
    assert len(ports) >= 2
    for number, port in enumerate(ports):
        send_rubbish(port, number)
    alice.wait_until("a line on the rubbish", lambda: len(alice.said("refused")) > before)
    alice.wait_steps(QUIET_STEPS)
    assert len(alice.said("refused")) - before <= MOST_LINES


def test_idle_connections_keep_nobody_out(cluster: Cluster, members: list[Agent]) -> None:
    alice, bob = members
    before = len(alice.said("refused"))
    ports = alice.ports
    with ExitStack() as stack:
        for number in range(IDLE_CONNECTIONS):
            address = ("127.0.0.1", ports[number % len(ports)])
            stack.enter_context(socket.create_connection(address, SEND_S))
        joiner = cluster.start("carol", peers=[alice])
        joined = joiner.wait("joined")
        assert len(joined["members"]) == 3
        bob.wait_steps(QUIET_STEPS)
        assert len(alice.said("refused")) - before <= MOST_LINES
    status, _ = joiner.interrupt()
    assert status == 0
