"""Gradients that leave during `backward()` of real processes, which come, go and die meanwhile."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.scenarios.cluster import SCRIPTS, Agent, Cluster

SCRIPT = str(SCRIPTS / "layered.py")
SIZES = ("8", "4096", "0.002")  # layers, elements, seconds of a layer


def announced(agent: Agent) -> int:
    """Return how often the agent's trainer announced chunks."""
    (line,) = agent.said("announced ")
    return int(line.split()[-1])


@pytest.mark.long
def test_files_are_the_same_with_joins_leaves_and_deaths(tmp_path: Path) -> None:
    end = tmp_path / "end"
    script = [str(end), *SIZES]
    with Cluster(tmp_path, job=SCRIPT) as cluster:
        alice, bob, carol = cluster.together(
            "alice", "bob", "carol", script=script, options=("--overlap",)
        )
        alice.wait_steps(3)
        dave = cluster.start("dave", "--overlap", peers=[alice], script=script)
        dave.wait("joined")
        dave.wait_steps(3)
        bob.signal(signal.SIGKILL)  # most of the time its trainer is in backward()
        assert alice.wait("member_left", node="bob")["reason"] == "failure"
        alice.wait_steps(3)
        assert carol.interrupt()[0] == 0, carol.describe()
        alice.wait_steps(3)
        end.touch()
        for agent in (alice, dave):
            assert agent.wait_exit() == 0, agent.describe()
        steps = ("--steps", str(alice.iteration))
        alone = cluster.start("alone", "--no-overlap", *steps, script=["-", *SIZES[:2], "0"])
        assert alone.wait_exit() == 0, alone.describe()
        expected = alone.save_path.read_bytes()
        assert alice.save_path.read_bytes() == dave.save_path.read_bytes() == expected
        assert announced(alone) == 0 < min(announced(alice), announced(dave))
