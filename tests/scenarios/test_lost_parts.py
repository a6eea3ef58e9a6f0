"""`--on-lost`: more devices are killed than copies make up for."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.scenarios.cluster import Cluster
from tests.scenarios.test_divided import chunks_in

if TYPE_CHECKING:
    from pathlib import Path

WITHOUT_COPIES = ("--shard-optimizer", "--copies", "0", "--on-lost")


def test_the_lost_part_begins_anew_and_all_else_goes_on(tmp_path: Path) -> None:
    options = (*WITHOUT_COPIES, "fresh", "--steps", "260")
    with Cluster(tmp_path, options=options) as cluster:
        alice, bob = cluster.together("alice", "bob")
        carol = cluster.start("carol", peers=[alice])
        alice.wait_members("alice", "bob", "carol")
        alice.wait_steps(25)
        carol.signal(signal.SIGKILL)
        for agent in (alice, bob):
            agent.wait("parts_anew")
        dave = cluster.start("dave", peers=[bob])
        dave.wait_members("alice", "bob", "dave")
        for agent in (alice, bob, dave):
            assert agent.wait_exit() == 0, agent.describe()
            assert not agent.all("diverged")
            assert agent.digests[260] == alice.digests[260]
        (lost,) = alice.all("parts_missing")
        assert (lost["nodes"], lost["then"]) == (["carol"], "fresh")
        (anew,) = alice.all("parts_anew")
        assert 0 < len(anew["parts"]) < anew["of"]
        assert alice.said("they begin anew after step"), alice.log
        assert alice.losses[259] < 0.3

        # What is in no file begins anew, too.
        more = ("--resume", str(alice.save_path), "--steps", "300")
        again = cluster.start("erin", *more)
        assert again.wait_exit() == 0, again.describe()
        assert again.said("are in none of the files: they begin anew"), again.log
        assert again.losses[299] < 0.3


def test_a_device_that_is_to_stop_saves_what_it_has(tmp_path: Path) -> None:
    options = (*WITHOUT_COPIES, "stop", "--steps", "4000")
    with Cluster(tmp_path, options=options) as cluster:
        alice, bob = cluster.together("alice", "bob")
        alice.wait_steps(25)
        bob.signal(signal.SIGKILL)
        assert alice.wait_exit() == 1, alice.describe()
        assert alice.said("parts of the optimizer's state are lost with bob"), alice.log
        assert chunks_in(alice.save_path)
        assert alice.all("parts_missing")[0]["then"] == "stop"


def test_what_is_done_about_a_loss_is_for_a_divided_optimizer(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        alice = cluster.start("alice", "--on-lost", "fresh")
        assert alice.wait_exit() == 2, alice.describe()
        assert alice.said("give --shard-optimizer, too"), alice.log


@pytest.mark.long
def test_ctrl_c_twice_saves_the_parts_too(tmp_path: Path) -> None:
    options = (*WITHOUT_COPIES, "wait", "--steps", "4000")
    with Cluster(tmp_path, options=options) as cluster:
        alice, bob = cluster.together("alice", "bob")
        alice.wait_steps(25)
        bob.signal(signal.SIGKILL)
        alice.wait("parts_missing")
        alice.signal(signal.SIGINT)
        alice.wait_said("within 3 s, without waiting for the lost devices")
        alice.signal(signal.SIGINT)
        alice.wait_exit()
        assert alice.said("model saved in") or alice.said("has saved its model"), alice.log
        assert chunks_in(alice.save_path)
