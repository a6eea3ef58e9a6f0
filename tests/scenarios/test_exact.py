"""`--exact`: a training has the same result on any number of devices, whatever happens to them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.scenarios.cluster import SCRIPTS, Cluster

SCRIPT = str(SCRIPTS / "optimizers.py")
STEPS = {"STEPS": "200"}
OPTIMIZER = ["AdamW"]
TRAINING_S = 240.0  # 200 steps, with tests beside, on a machine a quarter as fast as usual


@pytest.mark.long
def test_the_same_result_alone_and_with_joins_a_leave_and_a_kill(tmp_path: Path) -> None:
    with Cluster(tmp_path, job=SCRIPT, options=("--exact",)) as cluster:
        alone = cluster.start("alone", "--cluster", "other", script=OPTIMIZER, environment=STEPS)
        assert alone.wait_exit(TRAINING_S) == 0, alone.describe()

        alice, bob = cluster.together("alice", "bob", script=OPTIMIZER, environment=STEPS)
        alice.wait_steps(10)
        late = [
            cluster.start(name, script=OPTIMIZER, peers=[alice], environment=STEPS)
            for name in ("carol", "dave")
        ]
        carol, dave = late
        alice.wait_members("alice", "bob", "carol", "dave")
        alice.wait_steps(10)
        assert bob.interrupt()[0] == 0, bob.describe()
        alice.wait_members("alice", "carol", "dave")
        alice.wait_steps(5)
        dave.signal(signal.SIGKILL)
        for agent in (alice, carol):
            assert agent.wait_exit(TRAINING_S) == 0, agent.describe()
            assert not agent.all("diverged")
        counts = {event["members"] for event in alice.all("step")}
        assert counts >= {2, 3, 4}, "the room changed while it trained"

        for agent in (alice, carol):
            equal = cluster.command("verify", str(alone.save_path), str(agent.save_path))
            assert equal.returncode == 0, equal.stdout
        both = sorted(set(alone.digests) & set(alice.digests))
        assert len(both) > 3
        assert [alone.digests[i] for i in both] == [alice.digests[i] for i in both]


def test_a_device_that_rounds_gradients_otherwise_is_refused(tmp_path: Path) -> None:
    with Cluster(tmp_path, job=SCRIPT, options=("--exact",)) as cluster:
        steps = {"STEPS": "100000"}
        alice = cluster.start("alice", script=OPTIMIZER, environment=steps)
        alice.wait_steps(2)
        other = cluster.start(
            "bob", "--threads", "2", script=OPTIMIZER, peers=[alice], environment=steps
        )
        assert other.wait_exit() != 0
        assert other.said("gradient arithmetic"), other.log
        assert other.said("'2 "), other.log
