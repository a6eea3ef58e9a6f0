"""Training loops that people bring along, on two agents: equal bits on both, or a clear refusal.

Whatever a script does to the optimizer, the schedule or the parameters, no two members of one
cluster may go on with different states. The second device joins in mid-training, so that it can
know the state only from the first one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.cluster import SCRIPTS, Agent, Cluster
from tests.variants import variants

SCRIPT = str(SCRIPTS / "habits.py")
STEPS = 300
JOIN_AT = 10
ROUNDING = 1e-3  # relative, of a loss after hundreds of steps that sum in another order


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Yield a cluster whose agents run the script."""
    with Cluster(tmp_path, job=SCRIPT) as cluster:
        yield cluster


def in_mid_training(cluster: Cluster, *habit: str) -> tuple[Agent, Agent]:
    """Start one agent, and another one when the first has made some steps; return both."""
    founder = cluster.start("alice", script=habit)
    founder.wait_iteration(JOIN_AT)
    with founder.held():
        joiner = cluster.start("bob", script=habit, peers=[founder])
        joiner.wait_ready()
    joiner.wait("joined")
    assert joiner.members == ["alice", "bob"]
    return founder, joiner


def check_equal(*agents: Agent) -> None:
    """Check that both trained together to the end, with equal states at each digest and in the
    file."""
    for agent in agents:
        assert agent.wait_exit() == 0, agent.describe()
        assert list(agent.losses)[-1] == STEPS
    one, other = agents
    both = sorted(set(one.digests) & set(other.digests))
    assert len(both) > 10
    assert [one.digests[i] for i in both] == [other.digests[i] for i in both]
    assert one.save_path.read_bytes() == other.save_path.read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("habit", ["rates", "rates after update()"])
def test_rates_set_by_hand_are_the_same_everywhere(cluster: Cluster, habit: str) -> None:
    alone = cluster.start("carol", script=[habit])
    assert alone.wait_exit() == 0, alone.describe()
    founder, joiner = in_mid_training(cluster, habit)
    check_equal(founder, joiner)
    for iteration in (20, 40):
        assert founder.losses[iteration] == pytest.approx(alone.losses[iteration], rel=ROUNDING)


@pytest.mark.long
def test_a_scaler_that_the_trainer_knows(cluster: Cluster) -> None:
    founder, joiner = in_mid_training(cluster, "a declared scaler")
    check_equal(founder, joiner)
    assert founder.losses[STEPS] < 0.1 * founder.losses[1]


def test_a_replicated_copy_is_the_same_everywhere(cluster: Cluster) -> None:
    founder, joiner = in_mid_training(cluster, "a replicated copy")
    check_equal(founder, joiner)
    assert founder.said("the copy:") == joiner.said("the copy:")
    assert founder.said(f"of {STEPS}")


@pytest.mark.long
def test_a_copy_that_is_not_replicated_is_worth_a_warning(cluster: Cluster) -> None:
    agent = cluster.start("alice", script=["a copy"])
    assert agent.wait_exit() == 0, agent.describe()
    assert agent.said("UserWarning: an AveragedModel is not part of the training state")


@pytest.mark.long
def test_a_schedule_that_will_differ_is_another_job(cluster: Cluster) -> None:
    founder = cluster.start("alice", script=["a schedule", "0"])
    founder.wait("joined")
    with founder.held():
        other = cluster.start("bob", script=["a schedule", "0.01"], peers=[founder])
        assert other.wait_exit() == 1
    assert other.said("trains another job: learning rate after step 1 is 0.01 there and 0.0099")
    assert founder.wait_exit() == 0


def test_rates_that_differ_between_devices_are_applied_nowhere(cluster: Cluster) -> None:
    founder, joiner = in_mid_training(cluster, "rates by a count")
    for agent in (founder, joiner):
        assert agent.wait_exit() == 1, agent.describe()
        assert agent.said("the script set lr of parameter group 0 to different values")


REFUSED = {
    "optimizer.step()": "the script called optimizer.step()",
    "scheduler.step()": "the script stepped or changed the lr_scheduler",
    "rates beside a schedule": "which the lr_scheduler sets",
    "add_param_group()": "parameter groups were changed after Trainer() was made",
    "load_state_dict()": "0.weight was changed by the script while training",
    "optimizer.load_state_dict()": "the optimizer's state was replaced while training",
    "in place": "0.weight was changed by the script while training",
    ".data": "changed by the script through .data or numpy",
    "a constant copy": "ema.n_averaged was changed by the script while training",
    "no backward()": "in 3 iterations in a row no parameter had a gradient",
    "zero_grad()": "in 3 iterations in a row no parameter had a gradient",
    "scaler.scale()": "a GradScaler that Trainer() does not know",
    "scaler.step()": "the script called optimizer.step()",
}


@pytest.mark.parametrize("habit", variants([*REFUSED][:1], long=REFUSED))
def test_what_would_make_replicas_differ_is_refused_by_name(cluster: Cluster, habit: str) -> None:
    agent = cluster.start("alice", script=[habit])
    assert agent.wait_exit() == 1, agent.describe()
    (line,) = agent.said(REFUSED[habit])
    assert line.startswith("edgeagent: ")
    assert [e["message"] for e in agent.all("error")] == [line.removeprefix("edgeagent: ")]
    assert "Traceback" not in agent.log
    assert agent.iteration < STEPS
