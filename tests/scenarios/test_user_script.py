"""A ten-line script on one node, on two, and on three of which one loses its trainer.

Whatever happens to the cluster, its losses must be those of `python ten_lines.py`, up to rounding.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from safetensors.torch import load_file

from tests.scenarios.cluster import SCRIPTS, Agent, Cluster

SCRIPT = str(SCRIPTS / "ten_lines.py")
STEPS = 120
GLOBAL_BATCH = 128
ROUNDING = 1e-5  # relative, of a float32 loss that sums in another order


def check_losses(agent: Agent, reference: dict[int, float]) -> float:
    """Compare every loss with that of the run on one device; return the largest relative
    difference."""
    losses = agent.losses
    assert list(losses)[-1] == STEPS
    return max(abs(losses[i] / reference[i] - 1) for i in losses)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """Yield a run of `python ten_lines.py` without a token, which has ended."""
    with Cluster(tmp_path_factory.mktemp("alone")) as cluster:
        agent = cluster.plain("alone", SCRIPT)
        assert agent.wait_exit() == 0, agent.describe()
        yield agent


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield a cluster whose agents run the script."""
    with Cluster(tmp_path_factory.mktemp("cluster"), job=SCRIPT) as cluster:
        yield cluster


def test_plain_python(alone: Agent) -> None:
    printed = [line.split() for line in alone.log.splitlines() if line[:1].isdigit()]
    assert [int(iteration) for iteration, _ in printed] == list(range(1, STEPS + 1))
    for iteration, loss in printed:
        assert float(loss) == alone.losses[int(iteration)]
    assert alone.losses[STEPS] < 0.9 * alone.losses[1]


@pytest.mark.long
def test_two_nodes(alone: Agent, cluster: Cluster) -> None:
    founder, other = cluster.together("alice", "bob")
    for agent in (founder, other):
        assert agent.wait_exit() == 0, agent.describe()
        difference = check_losses(agent, alone.losses)
        print(f"{agent.name}: largest relative difference of a loss {difference:.1e}")
        assert difference <= ROUNDING
    assert max(e["members"] for e in other.all("step")) == 2
    assert founder.save_path.read_bytes() == other.save_path.read_bytes()


def test_a_trainer_is_killed(alone: Agent, cluster: Cluster) -> None:
    founder, victim, other = cluster.together("alice", "bob", "carol")
    victim.wait_steps(2)
    os.kill(victim.trainer, signal.SIGKILL)

    assert victim.wait_exit() == 1
    (line,) = victim.said("the trainer ended in mid-training")
    assert line.startswith("edgeagent: ")
    (end,) = victim.said("the trainer has ended")
    if "in the middle of an update" not in end:  # a trainer may be killed at any moment
        assert end.endswith(f"the agent has saved its model in ./{victim.save_path.name}")
        assert load_file(victim.save_path)
    assert [e["message"] for e in victim.all("error")] == [line.removeprefix("edgeagent: ")]
    for agent in (founder, other):
        assert agent.wait_exit() == 0, agent.describe()
        (left,) = agent.all("member_left")
        assert (left["node"], left["reason"]) == (victim.name, "leave")
        assert check_losses(agent, alone.losses) <= ROUNDING
    steps = founder.all("step")
    assert [e["iteration"] for e in steps] == list(range(1, STEPS + 1))
    assert sum(e["samples"] for e in steps) == STEPS * GLOBAL_BATCH
    assert founder.save_path.read_bytes() == other.save_path.read_bytes()


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"EDGEAGENT_TOKEN": "secret"}, "this is no token"),
        ({"EDGEAGENT_TOKEN": "", "EDGEAGENT_POLICY": "none"}, "no installed package has a policy"),
    ],
)
def test_a_wrong_setting_of_a_plain_script_is_one_line(
    cluster: Cluster, settings: dict[str, str], line: str
) -> None:
    agent = cluster.plain("alone", SCRIPT, environment=settings)
    assert agent.wait_exit() == 2, agent.describe()
    (said,) = [text for text in agent.log.splitlines() if "token: training" not in text][1:]
    assert said.startswith(f"edgeagent: {line}")
