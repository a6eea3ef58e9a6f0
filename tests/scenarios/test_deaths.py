"""Real processes that die without a goodbye, or stop and come back; the others go on."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest

from tests.scenarios.cluster import SMALL, Agent, Cluster
from tests.scenarios.test_story import same_digests
from tests.variants import variants

BOTH = ("scheduler", "worker")


def has_members(agent: Agent, count: int) -> bool:
    """Whether `count` members took part in the agent's last step."""
    steps = agent.all("step")
    return bool(steps) and steps[-1]["members"] == count


def check_finishers(end: Path, finishers: list[Agent]) -> None:
    """Make the file at which the training ends. Check that they end at one step, with equal files
    and equal digests, and did every step exactly once."""
    for agent in finishers:
        agent.wait_steps(25)  # two digests of the rest, which are written every ten steps
    end.touch()
    for agent in finishers:
        assert agent.wait_exit() == 0, agent.describe()
    contents = {agent.save_path.read_bytes() for agent in finishers}
    assert len(contents) == 1
    assert same_digests(finishers) > 0 or len(finishers) == 1
    last = finishers[0].iteration
    for agent in finishers:
        done = [e["iteration"] for e in agent.all("step")]
        assert done == list(range(done[0], last + 1)), "a step was lost or done twice"
        assert not agent.all("error"), agent.describe()


@pytest.mark.slow
@pytest.mark.parametrize(
    "victims", variants([("scheduler", "worker")], long=[("worker",), ("scheduler",)])
)
def test_killed(tmp_path: Path, victims: tuple[str, ...]) -> None:
    end = tmp_path / "end"
    with Cluster(tmp_path, job=SMALL) as cluster:
        names = ("alice", "bob", "carol", "dave")
        scheduler, worker, *others = cluster.together(*names, script=[str(end)])
        dead = [{"scheduler": scheduler, "worker": worker}[v] for v in victims]
        stay = [a for a in (scheduler, worker, *others) if a not in dead]
        for agent in stay:
            agent.wait_until("all members", partial(has_members, agent, 4))
        for victim in dead:
            victim.signal(signal.SIGKILL)
        for agent in stay:
            for victim in dead:
                left = agent.wait("member_left", node=victim.name)
                assert left["reason"] == "failure"
            agent.wait_steps(5)
        check_finishers(end, stay)


@pytest.mark.parametrize("victim", variants([0], long=[1]))
def test_one_of_two_is_killed(tmp_path: Path, victim: int) -> None:
    end = tmp_path / "end"
    with Cluster(tmp_path, job=SMALL) as cluster:
        agents = cluster.together("alice", "bob", script=[str(end)])
        for agent in agents:
            agent.wait_until("both members", partial(has_members, agent, 2))
        agents[victim].signal(signal.SIGKILL)
        check_finishers(end, [agents[1 - victim]])


@pytest.mark.slow
def test_stopped_for_a_while_and_back(tmp_path: Path) -> None:
    with Cluster(tmp_path, job=SMALL) as cluster:
        agents = cluster.together("alice", "bob", "carol")
        sleeper, awake = agents[2], agents[:2]
        for agent in agents:
            agent.wait_until("all members", partial(has_members, agent, 3))
        before = len(sleeper.all("joined"))
        sleeper.signal(signal.SIGSTOP)
        try:
            for agent in awake:
                agent.wait("member_left", node=sleeper.name)
                agent.wait_steps(5)
        finally:
            sleeper.signal(signal.SIGCONT)
        sleeper.wait_until("joined again", lambda: len(sleeper.all("joined")) > before)
        for agent in awake:
            agent.wait_until("all are back", partial(has_members, agent, 3))
        for agent in agents:
            assert agent.interrupt()[0] == 0, agent.describe()
