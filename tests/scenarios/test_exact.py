"""`--exact`: a training has the same result on any number of devices, whatever happens to them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.cluster import SCRIPTS, Agent, Cluster

SCRIPT = str(SCRIPTS / "optimizers.py")
# A step has eight micro-batches, so that each of seven devices has one, and lasts so long that
# others start meanwhile.
STEPS = {"STEPS": "200", "BATCH": "128", "SECONDS": "0.03"}
OPTIMIZER = ["AdamW"]
TRAINING_S = 300.0  # 200 steps, with tests beside, on a machine a quarter as fast as usual
NAMES = ("ada", "bob", "carol", "dave", "erin", "finn", "gwen")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """A device that has trained for all steps without any other."""
    with Cluster(tmp_path_factory.mktemp("alone"), job=SCRIPT, options=("--exact",)) as cluster:
        agent = cluster.start("alone", script=OPTIMIZER, environment=STEPS)
        assert agent.wait_exit(TRAINING_S) == 0, agent.describe()
        yield agent


@pytest.mark.long
@pytest.mark.parametrize(("together", "joins"), [(1, 1), (2, 2), (4, 3)])
def test_the_same_result_alone_and_with_joins_a_leave_and_a_kill(
    alone: Agent, tmp_path: Path, together: int, joins: int
) -> None:
    """`together` devices begin and so many join later. One is killed, and where there are more than
    two, another one leaves."""
    names = NAMES[: together + joins]
    with Cluster(tmp_path, job=SCRIPT, options=("--exact",)) as cluster:
        agents = cluster.together(*names[:together], script=OPTIMIZER, environment=STEPS)
        first = agents[0]
        first.wait_steps(10)
        for name in names[together:]:
            late = cluster.start(name, script=OPTIMIZER, peers=[first], environment=STEPS)
            agents.append(late)
        first.wait_members(*names)
        first.wait_steps(10)
        if len(agents) > 2:
            assert agents[1].interrupt()[0] == 0, agents[1].describe()
            first.wait_members(names[0], *names[2:])
            first.wait_steps(5)
        agents[-1].signal(signal.SIGKILL)
        stay = [first, *agents[2:-1]]
        for agent in stay:
            assert agent.wait_exit(TRAINING_S) == 0, agent.describe()
            assert not agent.all("diverged")
        counts = [event["members"] for event in first.all("step")]
        assert set(counts) >= {together, len(agents)}, "devices joined while it trained"
        assert counts[-1] == len(stay), "and one was killed"
        assert len(agents) == 2 or len(agents) - 1 in counts, "after another one had left"

        for agent in stay:
            equal = cluster.command("verify", str(alone.save_path), str(agent.save_path))
            assert equal.returncode == 0, equal.stdout
        both = sorted(set(alone.digests) & set(first.digests))
        assert len(both) > 3
        assert [alone.digests[i] for i in both] == [first.digests[i] for i in both]


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
