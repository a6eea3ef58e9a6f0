"""Data, checkpoints and the end of a run, as a script's user expects them, with real agents.

Which samples are trained, and with which random numbers, must be the same for any number of devices
and of workers. A script that calls `stop()` ends the training on all devices, at one iteration and
with one state.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.cluster import SCRIPTS, Agent, Cluster
from tests.scenarios.processes import children, living
from tests.variants import variants

SCRIPT = str(SCRIPTS / "data_habits.py")
STEPS = 60


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Yield a cluster whose agents run the script."""
    with Cluster(tmp_path, job=SCRIPT) as cluster:
        yield cluster


def ended(agent: Agent, iteration: int) -> dict[int, str]:
    """Check that the agent has trained to `iteration` and says so; return its digests."""
    assert agent.wait_exit() == 0, agent.describe()
    assert agent.iteration == iteration
    assert agent.said(f"the loader ended: steps {iteration}")
    return agent.digests


@pytest.mark.parametrize("order", variants([("--weighted",)], long=[()]))
def test_one_device_without_workers_and_two_with_two_each(
    cluster: Cluster, order: tuple[str, ...]
) -> None:
    alone = cluster.start("alone", script=[*order, "--workers", "0"])
    expected = ended(alone, STEPS)
    assert len(set(expected.values())) == STEPS // 10
    script = [*order, "--workers", "2", "--slow", "0.001"]
    for agent in cluster.together("alice", "bob", script=script):
        digests = ended(agent, STEPS)
        assert digests == {i: expected[i] for i in digests}
        assert list(digests)[-1] == STEPS
        assert max(e["members"] for e in agent.all("step")) == 2
        assert agent.save_path.read_bytes() == alone.save_path.read_bytes()
        assert not agent.said("Traceback")


def test_one_script_stops_all(cluster: Cluster) -> None:
    founder = cluster.start("alice", script=["--steps", "100000"])
    founder.wait("joined")
    with founder.held():  # the one that stops at step 200 has to join before that
        others = [
            cluster.start("bob", peers=[founder], script=["--steps", "100000", "--stop-at", "200"]),
            cluster.start("carol", peers=[founder], script=["--steps", "100000"]),
        ]
        for agent in others:
            agent.wait_ready()
    states = []
    for agent in (founder, *others):
        assert agent.wait_exit() == 0, agent.describe()
        digests = ended(agent, 201)
        states.append((digests[201], agent.save_path.read_bytes()))
        assert agent.said("a script has called stop(): step 201 is the last one")
        assert not agent.all("member_left")
    assert states[0] == states[1] == states[2]


def test_workers_end_with_a_trainer_that_is_killed(cluster: Cluster) -> None:
    script = ["--workers", "2", "--slow", "0.02", "--steps", "100000"]
    agent = cluster.start("alice", script=script)
    agent.wait_iteration(2)
    trainer = agent.trainer
    workers = children(trainer)
    assert len(workers) >= 2
    os.kill(trainer, signal.SIGKILL)
    assert agent.wait_exit(10.0) == 1, "nobody waits for workers that hold the agent's socket"
    assert not {process.pid for process in living()} & {trainer, *workers}


def test_ctrl_c_with_workers(cluster: Cluster) -> None:
    script = ["--workers", "2", "--slow", "0.02", "--steps", "100000"]
    agent = cluster.plain("alice", SCRIPT, *script)
    agent.wait_iteration(2)
    os.killpg(agent.process.pid, signal.SIGINT)  # as a terminal does
    assert agent.wait_exit() == 0, agent.describe()
    assert len(agent.said("leaving after this iteration")) == 1
    assert agent.said("the loader ended: left")
    assert not agent.said("Traceback"), agent.describe()


@pytest.mark.long
def test_states_are_saved_every_so_many_steps(cluster: Cluster) -> None:
    agent = cluster.start("alice", "--save-every", "10", "--keep", "2")
    ended(agent, STEPS)
    kept = sorted(path.name for path in cluster.folder.glob("alice-step-*"))
    assert kept == ["alice-step-000050.safetensors", "alice-step-000060.safetensors"]
    last = (cluster.folder / kept[1]).read_bytes()
    assert last == agent.save_path.read_bytes()
    again = cluster.start("carol", "--resume", str(cluster.folder / kept[0]))
    ended(again, STEPS)
    assert again.save_path.read_bytes() == last
