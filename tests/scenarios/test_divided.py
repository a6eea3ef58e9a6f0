"""`--shard-optimizer`: no device keeps all of the optimizer's state, and nothing of it is lost."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from safetensors import safe_open

from edgeagent.local.api import fetch_status
from edgeagent.local.state_dir import running_agents
from tests.scenarios.cluster import Agent, Cluster

SCRIPTS = Path(__file__).parent / "scripts"
DIVIDED = ("--shard-optimizer",)


def chunks_in(path: Path) -> set[str]:
    """Return the names of the slots in the file beside a checkpoint."""
    with safe_open(str(path.with_name(f"{path.stem}-slots.safetensors")), framework="pt") as file:
        return set(file.keys())


def test_joins_a_leave_and_kills_lose_nothing(tmp_path: Path) -> None:
    with Cluster(tmp_path, options=(*DIVIDED, "--steps", "220")) as cluster:
        alice, bob = cluster.together("alice", "bob")
        carol = cluster.start("carol", peers=[alice])
        dave = cluster.start("dave", peers=[alice])
        alice.wait_members("alice", "bob", "carol", "dave")
        alice.wait_steps(25)
        dave.signal(signal.SIGKILL)
        alice.wait_members("alice", "bob", "carol")
        alice.wait_steps(15)
        assert alice.interrupt()[0] == 0, alice.describe()  # the scheduler
        bob.wait_members("bob", "carol")
        for agent in (bob, carol):
            assert agent.wait_exit() == 0, agent.describe()
            assert not agent.all("diverged")
        assert bob.digests[220] == carol.digests[220]
        equal = cluster.command("verify", str(bob.save_path), str(carol.save_path))
        assert equal.returncode == 0, equal.stdout
        losses = bob.losses
        assert losses[219] < 0.3

        # With one copy each of two devices has all of it.
        assert chunks_in(bob.save_path) == chunks_in(carol.save_path)
        more = cluster.start("erin", "--resume", str(carol.save_path), "--steps", "230")
        assert more.wait_exit() == 0, more.describe()
        assert more.iteration == 230


@pytest.mark.long
def test_parts_of_several_devices_are_put_together(tmp_path: Path) -> None:
    options = (*DIVIDED, "--copies", "0", "--steps", "120")
    with Cluster(tmp_path, options=options) as cluster:
        alice, bob = cluster.together("alice", "bob")
        for agent in (alice, bob):
            assert agent.wait_exit() == 0, agent.describe()
        assert not chunks_in(alice.save_path) & chunks_in(bob.save_path)
        files = [str(agent.save_path) for agent in (alice, bob)]
        lacks = cluster.start("carol", "--resume", files[0], "--steps", "130")
        assert lacks.wait_exit() != 0
        assert lacks.said("parts of the optimizer's state are in none of"), lacks.log
        both = [x for file in files for x in ("--resume", file)]
        again = cluster.start("dave", *both, "--steps", "130")
        assert again.wait_exit() == 0, again.describe()
        assert again.iteration == 130


ODD = {"ODD_ROOTS": "1"}


def test_a_device_that_rounds_otherwise_takes_part_and_survives(tmp_path: Path) -> None:
    end = tmp_path / "end"
    job = str(SCRIPTS / "other_roots.py")
    with Cluster(tmp_path, job=job, options=DIVIDED) as cluster:
        alice, bob = cluster.together("alice", "bob", script=[str(end)])
        carol = cluster.start("carol", peers=[alice], script=[str(end)], environment=ODD)
        carol.wait_members("alice", "bob", "carol")
        for agent in (alice, carol):
            agent.wait("rounding")
            groups = agent.all("rounding")[0]["groups"]  # the names of each in the order of ids
            assert [sorted(group) for group in groups] == [["alice", "bob"], ["carol"]]
        for dead in (alice, bob):
            others = [a for a in (bob, carol) if a is not dead]
            carol.wait_until("copies", lambda: survives(carol) > 0, 60)
            for agent in (*others, dead):
                agent.wait_steps(22)  # the digest of one of them is seen by all
            dead.signal(signal.SIGKILL)
            carol.wait_members(*(a.name for a in others))
        carol.wait_steps(20)
        assert carol.all("rounding")[-1]["groups"] == [["carol"]]
        end.touch()
        assert carol.wait_exit() == 0, carol.describe()
        assert not any(agent.all("diverged") for agent in (alice, bob, carol))
        for agent in (alice, bob):
            common = set(agent.digests) & set(carol.digests)
            assert common
            assert all(agent.digests[k] == carol.digests[k] for k in common)


@pytest.mark.long
def test_without_a_divided_optimizer_such_a_device_is_refused(tmp_path: Path) -> None:
    end = tmp_path / "end"
    job = str(SCRIPTS / "other_roots.py")
    with Cluster(tmp_path, job=job) as cluster:
        alice = cluster.start("alice", script=[str(end)])
        alice.wait("joined")
        carol = cluster.start("carol", peers=[alice], script=[str(end)], environment=ODD)
        assert carol.wait_exit() == 1, carol.describe()
        assert carol.said("the same updates give other bits there"), carol.describe()
        end.touch()
        assert alice.wait_exit() == 0, alice.describe()


def survives(agent: Agent) -> int:
    """Return how many members can be lost at once, as `agent` says."""
    (path,) = [a.socket_path for a in running_agents(str(agent.home)) if a.name == agent.name]
    divided = fetch_status(path)["divided"]
    return divided["survives"] if divided is not None else 0


def test_a_device_that_goes_on_with_a_part_joins_those_who_have_the_rest(tmp_path: Path) -> None:
    """As a service that was started again: its file has its own parts alone."""
    options = (*DIVIDED, "--copies", "0", "--steps", "100000")
    with Cluster(tmp_path, options=options) as cluster:
        alice, _ = cluster.together("alice", "bob")
        carol = cluster.start("carol", peers=[alice])
        alice.wait_members("alice", "bob", "carol")
        carol.wait_steps(15)
        assert carol.interrupt()[0] == 0, carol.describe()
        alice.wait_members("alice", "bob")
        again = cluster.start("dave", "--save", str(carol.save_path), "--continue", peers=[alice])
        alice.wait_members("alice", "bob", "dave")
        assert again.said("are in none of the files: this device joins others"), again.log
        again.wait_steps(5)
        assert not again.all("diverged")
