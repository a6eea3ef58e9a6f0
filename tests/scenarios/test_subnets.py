"""Rounds of independent subnets with real agents: devices of unequal speed; one joins, one is
killed, one leaves, each in the middle of a round."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.scenarios.cluster import SCRIPTS, Agent, Cluster

SCRIPT = str(SCRIPTS / "subnets.py")
CELLS = 64
SEEN = 3  # rounds between two events
LEARNED = 60  # rounds, after which a small model tells most digits
WAIT_S = 180.0


def wait_middle(agent: Agent) -> None:
    """Wait until the agent is in the middle of another round."""
    before = len(agent.said(" steps"))
    agent.wait_until("middle of a round", lambda: agent.said(" steps")[before:])


def cells(agent: Agent) -> dict[int, int]:
    """Return how many cells the agent had, by round."""
    return {step["iteration"] - 1: step["cells"] for step in agent.all("step")}


def test_devices_come_and_go_and_the_whole_model_learns(tmp_path: Path) -> None:
    end = tmp_path / "end"
    with Cluster(tmp_path, job=SCRIPT, options=("--standby", "never")) as cluster:

        def start(name: str, slow: float, *peers: Agent) -> Agent:
            settings = {"SLOW": str(slow), "BASE": "0.03"}
            return cluster.start(name, peers=peers, script=[str(end)], environment=settings)

        alice = start("alice", 1)
        alice.wait("joined")
        bob, carol = start("bob", 3, alice), start("carol", 1.5, alice)
        for agent in (alice, bob, carol):
            agent.wait_members("alice", "bob", "carol")
        alice.wait_steps(10)
        share = {m["name"]: m["share"] for m in cluster.status(alice)["members"]}
        assert sum(share.values()) == CELLS
        assert share["alice"] > share["carol"] > share["bob"], "a slower device has a smaller part"

        wait_middle(alice)
        dave = start("dave", 1, alice, bob)
        dave.wait("joined")
        dave.wait_steps(SEEN)
        wait_middle(carol)
        carol.signal(signal.SIGKILL)
        alice.wait("member_left", node="carol")
        alice.wait_steps(SEEN)
        wait_middle(bob)
        assert bob.interrupt()[0] == 0, bob.describe()
        alice.wait_members("alice", "dave")
        alice.wait_steps(10)
        end.touch()
        for agent in (alice, dave):
            assert agent.wait_exit() == 0, agent.describe()
            assert not agent.all("diverged")

        equal = cluster.command("verify", str(alice.save_path), str(dave.save_path))
        assert equal.returncode == 0, equal.stdout
        for agent in (alice, dave):
            (said,) = agent.said("accuracy ")
            found = re.search(r"accuracy ([0-9.]+)", said)
            assert found is not None
            assert float(found[1]) > 0.8
        counts = [cells(agent) for agent in (alice, dave)]
        last = max(counts[0])
        assert counts[0][last] + counts[1][last] == CELLS


@pytest.mark.long
def test_options_of_the_command_line_hold_for_a_script(tmp_path: Path) -> None:
    """A slow device has the smallest part that was asked for, and one that would draw the parts
    anew at other times is refused."""
    end = tmp_path / "end"
    options = ["--standby", "never", "--subnet-minimum", "0.25"]
    with Cluster(tmp_path, job=SCRIPT, options=options) as cluster:

        def start(name: str, slow: float, period: int, *peers: Agent) -> Agent:
            settings = {"SLOW": str(slow), "BASE": "0.01"}
            own = ["--subnet-period", str(period)]
            return cluster.start(name, *own, peers=peers, script=[str(end)], environment=settings)

        alice = start("alice", 1, 3)
        alice.wait("joined")
        bob = start("bob", 20, 3, alice)
        bob.wait("joined")
        carol = start("carol", 1, 2, alice)
        assert carol.wait_exit() == 1, carol.describe()
        assert carol.said("subnet period"), carol.describe()
        alice.wait_members("alice", "bob")
        alice.wait_until(
            "shares by speed", lambda: cells(bob) and list(cells(bob).values())[-1] == CELLS // 4
        )
        alice.wait_steps(SEEN)
        end.touch()
        for agent in (alice, bob):
            assert agent.wait_exit() == 0, agent.describe()
            assert not agent.all("diverged")
        had = [count for count in cells(bob).values() if count]  # none in the first two rounds
        assert min(had) == CELLS // 4, "never less"
        equal = cluster.command("verify", str(alice.save_path), str(bob.save_path))
        assert equal.returncode == 0, equal.stdout


@pytest.mark.long
@pytest.mark.parametrize("net", ["resnet", "transformer"])
def test_blocks_and_perceptrons_of_a_transformer_are_divided(tmp_path: Path, net: str) -> None:
    end = tmp_path / "end"
    with Cluster(tmp_path, job=SCRIPT, options=["--standby", "never"]) as cluster:

        def start(name: str, slow: float, *peers: Agent) -> Agent:
            settings = {"SLOW": str(slow), "BASE": "0.005", "NET": net, "RATE": "0.003"}
            return cluster.start(name, peers=peers, script=[str(end)], environment=settings)

        alice = start("alice", 1)
        alice.wait("joined")
        bob = start("bob", 2, alice)
        bob.wait("joined")
        alice.wait_until("rounds of both", lambda: len(cells(bob)) >= LEARNED, WAIT_S)
        end.touch()
        for agent in (alice, bob):
            assert agent.wait_exit() == 0, agent.describe()
            assert not agent.all("diverged")
            (said,) = agent.said("accuracy ")
            assert float(said.split()[-1]) > 0.8
        had = list(cells(bob).values())[-1]
        assert 0 < had < CELLS / 2, "it is the slower one"
        equal = cluster.command("verify", str(alice.save_path), str(bob.save_path))
        assert equal.returncode == 0, equal.stdout


@pytest.mark.long
def test_a_built_in_job_by_parts(tmp_path: Path) -> None:
    options = ("--local-steps", "3", "--steps", "120", "--mode", "subnets")
    with Cluster(tmp_path, job="digits", options=options) as cluster:
        alice, bob = cluster.together("alice", "bob")
        for agent in (alice, bob):
            assert agent.wait_exit() == 0, agent.describe()
        equal = cluster.command("verify", str(alice.save_path), str(bob.save_path))
        assert equal.returncode == 0, equal.stdout
        assert alice.said("accuracy")
