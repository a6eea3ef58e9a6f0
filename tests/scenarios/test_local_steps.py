"""Rounds of local steps with real agents: one joins, one is killed, one leaves, each in the middle
of a round. All that are left end with equal states, and of each round every micro-batch counts."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.cluster import SCRIPTS, Agent, Cluster

SCRIPT = str(SCRIPTS / "rounds.py")
PER_ROUND = 400  # micro-batches of a round of the script
SEEN = 3  # rounds between two events


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Yield a cluster that trains in rounds of local steps."""
    with Cluster(tmp_path, job=SCRIPT) as cluster:
        yield cluster


def wait_middle(agent: Agent) -> int:
    """Wait until the agent is in the middle of another round; return that round's number."""
    last = len(agent.said(" steps"))

    def told() -> list[str]:
        return [line for line in agent.said(" steps")[last:] if line.startswith("round ")]

    line: str = agent.wait_until("middle of a round", told)[-1]
    found = re.match(r"round (\d+): (\d+) steps", line)
    assert found is not None
    return int(found[1])


def taken(agent: Agent) -> dict[int, int]:
    """Return how many local steps the agent has taken, by round."""
    return {step["iteration"] - 1: step["local_steps"] for step in agent.all("step")}


def test_one_joins_one_is_killed_one_leaves_in_the_middle_of_a_round(
    cluster: Cluster, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    alice, bob, carol = cluster.together("alice", "bob", "carol", script=[str(end)])
    alice.wait_steps(SEEN)
    wait_middle(alice)
    dave = cluster.start("dave", peers=[alice, bob], script=[str(end)])
    dave.wait("joined")
    dave.wait_steps(SEEN)
    status = cluster.status(alice)
    assert status["local_steps"] == 200
    assert sum(member["share"] for member in status["members"]) == PER_ROUND

    lost = wait_middle(carol)
    carol.signal(signal.SIGKILL)
    alice.wait("member_left", node="carol")
    alice.wait_steps(SEEN)
    left = wait_middle(bob)
    assert bob.interrupt()[0] == 0, bob.describe()
    alice.wait_members("alice", "dave")
    alice.wait_steps(SEEN)
    end.touch()
    for agent in (alice, dave):
        assert agent.wait_exit() == 0, agent.describe()

    agents = [alice, bob, dave]
    by_round = [taken(agent) for agent in agents]
    whole = range(dave.all("step")[0]["iteration"], left)
    assert lost in whole
    for number in whole:
        three = sum(steps[number] for steps in by_round)
        steps = three + taken(carol).get(number, 0)
        assert steps == PER_ROUND, f"round {number}, in which {lost} lost a member"
    assert taken(alice)[lost] > PER_ROUND // 4, "what carol had is done by those who are left"
    for number in range(left, max(taken(alice)) + 1):
        assert sum(steps.get(number, 0) for steps in by_round) == PER_ROUND, f"round {number}"
    assert taken(bob)[left] > 0, "what bob has computed counts"

    for agent in agents:
        assert not agent.all("diverged")
        assert not agent.all("error")
    assert alice.save_path.read_bytes() == dave.save_path.read_bytes()
    both = set(alice.digests) & set(dave.digests)
    assert both
    assert {i: alice.digests[i] for i in both} == {i: dave.digests[i] for i in both}
    assert alice.losses[max(alice.losses)] < alice.losses[min(alice.losses)]


@pytest.mark.long
def test_the_scheduler_is_killed_and_a_trainer_hangs_in_the_middle_of_a_round(
    cluster: Cluster, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    options = ("--join", "log")
    alice, bob, carol = cluster.together(
        "alice", "bob", "carol", options=options, script=[str(end)]
    )
    bob.wait_steps(SEEN)
    lost = wait_middle(alice)
    alice.signal(signal.SIGKILL)
    bob.wait("scheduler", why="failed over")
    bob.wait_steps(SEEN)
    wait_middle(carol)
    with carol.held():
        bob.wait("member_late", node="carol")
        bob.wait_steps(1)
    bob.wait("member_back", node="carol")
    carol.wait_steps(SEEN)
    dave = cluster.start("dave", *options, peers=[bob, carol], script=[str(end)])
    assert dave.wait("joined")["updates"] >= 0
    dave.wait_steps(SEEN)
    end.touch()
    for agent in (bob, carol, dave):
        assert agent.wait_exit() == 0, agent.describe()
        assert not agent.all("diverged")
    both = taken(bob)[lost] + taken(carol)[lost]
    assert both == PER_ROUND - taken(alice).get(lost, 0), "alice may just have ended the round"
    saved = {agent.save_path.read_bytes() for agent in (bob, carol, dave)}
    assert len(saved) == 1


@pytest.mark.long
def test_a_built_in_job_trains_in_rounds(tmp_path: Path) -> None:
    options = ("--local-steps", "10", "--outer", "nesterov", "--wire", "bf16")
    with Cluster(tmp_path, options=options) as cluster:
        agents = cluster.together("alice", "bob")
        for agent in agents:
            assert agent.wait_exit() == 0, agent.describe()
            assert agent.iteration == 30, "the job's 300 steps are 30 rounds"
            assert agent.said("/30 of 10 local steps")
            (score,) = (e["value"] for e in agent.all("evaluated"))
            assert score > 0.9
        assert agents[0].save_path.read_bytes() == agents[1].save_path.read_bytes()
