"""Real agents of which the founder waits for others before training begins (`--wait-for`)."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.scenarios.cluster import SMALL, Agent, Cluster
from tests.scenarios.processes import kill_session
from tests.scenarios.test_story import every_step_once, same_digests

# In so many steps that the founder makes at first, all others come in: usually in five, but a busy
# machine lets it make more while a newcomer says that it is ready.
FIRST_STEPS = 60
FOR_THREE = ("--wait-for", "3")


def waits(agent: Agent, here: int) -> None:
    """Wait until `agent` tells that `here` of three devices are there."""
    agent.wait("assembling", here=here, wanted=3)


def check_beginning(founder: Agent, *others: Agent) -> None:
    """Check that the founder began when three were there, and that all came in with its first
    steps."""
    assert [e["here"] for e in founder.all("assembling")] == [1, 2, 3]
    assert founder.said("3 devices are here: training begins")
    first = next(e["iteration"] for e in founder.all("step") if e["members"] == 3)
    assert 1 < first <= FIRST_STEPS, founder.describe()
    for agent in others:
        assert 1 < agent.all("step")[0]["iteration"] <= FIRST_STEPS, "it was no founder itself"
        assert not agent.said("its trainer has not answered"), "what is waited for is no mishap"


def test_training_begins_when_three_are_there_and_goes_on_with_fewer(tmp_path: Path) -> None:
    with Cluster(tmp_path, job=SMALL) as cluster:
        alice = cluster.start("alice", *FOR_THREE)
        waits(alice, 1)
        bob = cluster.start("bob", peers=[alice])
        waits(alice, 2)
        bob.wait_said("let in: this device copies the state")
        status = cluster.status(alice)
        assert (status["phase"], status["iteration"]) == ("waiting", 0)
        assert status["assembling"] == {"wanted": 3, "here": 2}
        assert [m["trainer"] for m in status["members"]] == ["prompt"]
        shown = cluster.command("status", "--name", "alice").stdout
        assert "waiting for 1 more device (2 of 3) before training begins" in shown
        status = cluster.status(bob)
        assert (status["phase"], status["let_in"], status["assembling"]) == ("joining", True, None)
        assert alice.all("step") == bob.all("step") == []
        carol = cluster.start("carol", "--wait-for", "7", peers=[alice])
        for agent in (alice, bob, carol):
            agent.wait_members("alice", "bob", "carol")
            agent.wait_steps(20)
        check_beginning(alice, bob, carol)
        assert cluster.status(alice)["phase"] == "training"
        carol.signal(signal.SIGKILL)
        for agent in (alice, bob):
            agent.wait("member_left", node="carol", reason="failure")
            agent.wait_steps(20)
        assert bob.interrupt()[0] == 0, bob.describe()
        alice.wait_members("alice")
        alice.wait_steps(20)
        assert alice.interrupt()[0] == 0, alice.describe()
        assert same_digests([alice, bob]) > 0
        every_step_once([alice, bob, carol])


def test_if_the_founder_is_killed_while_others_wait_one_of_them_founds(tmp_path: Path) -> None:
    with Cluster(tmp_path, job=SMALL, options=("--wait-for", "4")) as cluster:
        alice = cluster.start("alice")
        alice.wait("assembling", here=1)
        bob = cluster.start("bob", peers=[alice])
        alice.wait("assembling", here=2)
        carol = cluster.start("carol", peers=[alice, bob])
        alice.wait("assembling", here=3)
        kill_session(alice.process.pid)
        stayed = (bob, carol)

        def founder() -> Agent | None:
            return next((a for a in stayed for e in a.all("assembling") if e["here"] == 2), None)

        new: Agent = bob.wait_until("another founder", founder)
        assert cluster.status(new)["assembling"] == {"wanted": 4, "here": 2}
        for agent in stayed:
            assert agent.interrupt()[0] == 0, agent.describe()
        assert not [agent.name for agent in (alice, *stayed) if agent.all("step")]


def test_ctrl_c_while_it_waits_ends_it_at_once(tmp_path: Path) -> None:
    with Cluster(tmp_path, job=SMALL) as cluster:
        alice = cluster.start("alice", *FOR_THREE)
        waits(alice, 1)
        bob = cluster.start("bob", peers=[alice])
        waits(alice, 2)
        assert cluster.command("leave", "--name", "bob").returncode == 0
        assert bob.wait_exit() == 0
        status, seconds = alice.interrupt()
        assert (status, seconds < 5.0) == (0, True), alice.describe()
        assert alice.said("leaving before training begins")
        assert alice.all("left")[0]["iteration"] == 0
        assert alice.all("step") == bob.all("step") == []
