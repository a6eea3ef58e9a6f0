"""Devices of a system of which no more than POSIX is known: whatever uses what only Linux has does
without it, so the protocol and the data plane need no change for another system.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.scenarios.cluster import SMALL, WAIT_S, Cluster
from tests.scenarios.processes import living
from tests.scenarios.test_data import SCRIPT as DATA_JOB
from tests.variants import variants

FOLDER = Path(__file__).parent / "plain_posix"
ENVIRONMENT = {"PYTHONPATH": str(FOLDER)}
DIVIDED = ("--shard-optimizer", "--copies", "1")


def wait_until_gone(pid: int) -> None:
    """Wait until a process has ended."""
    end = time.monotonic() + WAIT_S
    while any(process.pid == pid for process in living()):
        assert time.monotonic() < end, "the trainer outlives its agent"
        time.sleep(0.1)


def test_what_only_linux_has_is_gone() -> None:
    """Otherwise the other tests would show nothing."""
    asks = (
        "import edgeagent.lifetime as l, edgeagent.shared_memory as s, edgeagent.memory as m;"
        "print(l.dies_with_parent(), hasattr(s.os, 'memfd_create'), m.room().available)"
    )
    command = [sys.executable, "-c", asks]
    root = Path(__file__).resolve().parents[2]
    environment = {"PYTHONPATH": f"{FOLDER}:{root}"}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["None", "False", "None"]


@pytest.mark.parametrize("options", variants([DIVIDED], long=[()]))
def test_devices_train_join_die_and_leave(tmp_path: Path, options: tuple[str, ...]) -> None:
    with Cluster(tmp_path, job=SMALL, options=options) as cluster:
        alice, bob = cluster.together("alice", "bob", environment=ENVIRONMENT)
        carol = cluster.start("carol", peers=[alice])  # one of Linux among them
        carol.wait_members("alice", "bob", "carol")
        if options:
            alice.wait_until("copies", lambda: alice.all("copies")[-1]["survives"] == 1, 60)
        trainer = bob.trainer
        bob.signal(signal.SIGKILL)
        alice.wait_members("alice", "carol")
        alice.wait_steps(3)
        digests = alice.digests
        carol.wait_until("digests", lambda: max(carol.digests, default=0) >= max(digests))
        assert all(carol.digests[at] == d for at, d in digests.items() if at in carol.digests)
        assert carol.interrupt()[0] == 0
        assert alice.interrupt()[0] == 0
        wait_until_gone(trainer)  # nothing kills it: it has to notice by itself


def test_a_loader_with_workers(tmp_path: Path) -> None:
    with Cluster(tmp_path, job=DATA_JOB) as cluster:
        alice = cluster.start("alice", environment=ENVIRONMENT)
        alice.wait_steps(3)
        assert alice.interrupt()[0] == 0
