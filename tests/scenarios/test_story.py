"""Three agents train, a fourth joins, a worker leaves, the scheduler leaves, the rest finish."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.cluster import Agent, Cluster

STEPS = 400
OPTIONS = ("--steps", str(STEPS), "--global-batch", "64")  # half of what is usual
LEAVE_S = 2.0  # Ctrl+C to the end of both processes


def same_digests(agents: list[Agent]) -> int:
    """Check that agents agree wherever two of them have a digest; return how often that was."""
    seen: dict[int, list[str]] = {}
    for agent in agents:
        for iteration, digest in agent.digests.items():
            seen.setdefault(iteration, []).append(digest)
    different = {i: d for i, d in seen.items() if len(set(d)) > 1}
    assert not different, f"replicas differ: {different}"
    return sum(len(digests) > 1 for digests in seen.values())


def every_step_once(agents: list[Agent]) -> None:
    """Check that each agent has done every step from its first to its last, and none twice."""
    for agent in agents:
        done = [e["iteration"] for e in agent.all("step")]
        assert done == list(range(done[0], done[-1] + 1)), "a step was lost or done twice"


@pytest.mark.slow
def test_join_and_leave_in_mid_training(tmp_path: Path) -> None:
    with Cluster(tmp_path, options=OPTIONS) as cluster:
        scheduler, worker, stayer = cluster.together("alice", "bob", "carol")
        with scheduler.held():  # the others wait for its part of the iteration
            dave = cluster.start("dave", peers=[stayer])
            dave.wait_ready()
        joined = dave.wait("joined")
        assert sorted(joined["members"]) == ["alice", "bob", "carol", "dave"]
        sources = {source["node"]: source["bytes"] for source in joined["sources"]}
        assert len(sources) >= 2
        assert sum(sources.values()) == joined["bytes"] > 0
        print(f"dave pulled {sources} bytes in {joined['seconds']} s")
        for agent in (scheduler, worker, stayer):
            agent.wait("member_joined", node="dave")
        dave.wait_steps(5)

        finishers = [stayer, dave]
        for leaver, stay in ((worker, [scheduler, *finishers]), (scheduler, finishers)):
            status, seconds = leaver.interrupt()
            print(f"{leaver.name} left in {seconds:.2f} s")
            assert status == 0, leaver.describe()
            assert seconds < LEAVE_S
            assert leaver.said("leaving: ")
            assert leaver.all("left")[0]["iteration"] < STEPS
            assert leaver.save_path.exists()
            for agent in stay:
                assert agent.wait("member_left", node=leaver.name)["reason"] == "leave"
                agent.wait_steps(5)
        assert [e["node"] for e in stayer.all("scheduler")][-1] in (stayer.name, "dave")

        for agent in finishers:
            assert agent.wait_exit() == 0, agent.describe()
            assert [e["iteration"] for e in agent.all("left")] == [STEPS]
            assert agent.all("evaluated")[0]["value"] > 0.95
        assert stayer.save_path.read_bytes() == dave.save_path.read_bytes()
        assert same_digests(cluster.agents) >= STEPS // 20
        assert stayer.digests[STEPS] == dave.digests[STEPS]
        steps = [e for agent in (scheduler, *finishers) for e in agent.all("step")]
        assert sorted({e["iteration"] for e in steps}) == list(range(1, STEPS + 1))
        assert not any(agent.all("error") for agent in cluster.agents)
