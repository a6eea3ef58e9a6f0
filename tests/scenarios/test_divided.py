"""`--shard-optimizer`: no device keeps all of the optimizer's state, and nothing of it is lost."""

from __future__ import annotations

import signal
from pathlib import Path

from safetensors import safe_open

from tests.scenarios.cluster import Cluster

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
