"""A training state that silently changes: the cluster finds it, names it, and pulls it anew.

No check of the trainer can see this change: a number in the optimizer's memory changes as it would
in faulty memory, without any operation of PyTorch.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.cluster import SCRIPTS, Agent, Cluster
from tests.scenarios.test_story import every_step_once, same_digests

SCRIPT = str(SCRIPTS / "habits.py")
NAMES = ("alice", "bob", "carol")
END = "end"  # a file of this name ends the training


def room(cluster: Cluster, folder: Path) -> list[Agent]:
    """Return three agents in training. A file with the name of one makes a number wrong there."""
    scripts = {name: ("a wrong number", str(folder / name), str(folder / END)) for name in NAMES}
    founder = cluster.start(NAMES[0], script=scripts[NAMES[0]])
    founder.wait("joined")
    with founder.held():
        others = [cluster.start(n, script=scripts[n], peers=[founder]) for n in NAMES[1:]]
        for agent in others:
            agent.wait_ready()
    agents = [founder, *others]
    for agent in agents:
        agent.wait_members(*NAMES)
        agent.wait_steps(3)
    return agents


def slip(folder: Path, agent: Agent) -> None:
    """Make a number of the state wrong at `agent`."""
    (folder / agent.name).touch()
    agent.wait_until("a wrong number", lambda: not (folder / agent.name).exists())


def test_it_is_named_everywhere_and_the_device_pulls_anew(tmp_path: Path) -> None:
    with Cluster(tmp_path, job=SCRIPT) as cluster:
        agents = room(cluster, tmp_path)
        alice, bob, carol = agents
        slip(tmp_path, bob)
        for agent in agents:
            found = agent.wait("diverged", node="bob")
            agent.wait_said("the training state of")
        where = bob.wait("first_difference")
        assert where["iteration"] == found["iteration"]
        tensors = ("model.0.weight", "optimizer.0.weight.exp_avg")  # before or after an update
        assert where["where"] in [f"the tensor {name}" for name in tensors]
        bob.wait_until("back", lambda: len(bob.all("joined")) == 2)
        bob.wait_steps(15)  # with a digest, which is written every ten steps
        (tmp_path / END).touch()
        for agent in agents:
            assert agent.wait_exit() == 0, agent.describe()
        late = [i for i in bob.digests if i <= found["iteration"]]
        wrong = [i for i in late if bob.digests[i] != alice.digests.get(i, bob.digests[i])]
        assert len(wrong) <= 1  # one digest may be taken before the states are compared
        right = {i: d for i, d in bob.digests.items() if i not in wrong}
        assert right.items() <= alice.digests.items()
        assert same_digests([alice, carol]) > 0
        files = [agent.save_path.read_bytes() for agent in agents]
        assert files[0] == files[1] == files[2]
        every_step_once([alice, carol])
        for agent in (alice, carol):
            assert not agent.all("first_difference")


@pytest.mark.long
def test_a_device_whose_state_differs_again_ends_with_the_reason(tmp_path: Path) -> None:
    with Cluster(tmp_path, job=SCRIPT) as cluster:
        agents = room(cluster, tmp_path)
        bob = agents[1]
        slip(tmp_path, bob)
        bob.wait_until("back", lambda: len(bob.all("joined")) == 2)
        bob.wait_steps(3)
        slip(tmp_path, bob)
        assert bob.wait_exit() == 1
        assert bob.said("differed from that of the others again")
        for agent in (agents[0], agents[2]):
            agent.wait_steps(3)
            assert agent.interrupt()[0] == 0, agent.describe()
