"""How many threads a trainer computes with beside other agents of its device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from edgeagent.handover import AgentsHere
from edgeagent.trainer.own_threads import OwnThreads
from tests.unit.trainer.replicas import Served, train
from tests.unit.trainer.test_trainer import simple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.trainer.fake_agent import Node


@pytest.fixture(autouse=True)
def _four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_agents_of_a_device_divide_its_cores(capsys: pytest.CaptureFixture[str]) -> None:
    threads = OwnThreads(0, fixed=False, cores=4)
    found = []
    for agents in (1, 2, 2, 3, 9, 2, 1):
        threads.divide_among(agents)
        found.append(torch.get_num_threads())
    assert found == [4, 2, 2, 1, 1, 2, 4]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 4  # 3 and 9 agents make no difference
    assert "2 agents share" in said[0]
    assert "computing with 2 threads" in said[0]
    assert "computing with 1 thread " in said[1]
    assert "no other agent shares" in said[-1]


def test_who_is_bound_to_some_cores_has_few_threads_already(
    capsys: pytest.CaptureFixture[str],
) -> None:
    threads = OwnThreads(0, fixed=False, cores=16)
    threads.divide_among(4)
    assert torch.get_num_threads() == 4
    threads.divide_among(8)
    assert torch.get_num_threads() == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_what_the_user_or_the_script_has_decided_stays(capsys: pytest.CaptureFixture[str]) -> None:
    threads = OwnThreads(3, fixed=False, cores=4)
    threads.divide_among(4)
    assert torch.get_num_threads() == 3
    threads = OwnThreads(0, fixed=False, cores=4)
    torch.set_num_threads(2)  # as a script does after Trainer()
    threads.divide_among(4)
    threads.divide_among(1)
    assert torch.get_num_threads() == 2
    assert capsys.readouterr().err == ""


def test_devices_that_have_to_round_alike_are_told_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    threads = OwnThreads(0, fixed=True, cores=4)
    for agents in (2, 4):
        threads.divide_among(agents)
        assert torch.get_num_threads() == 4
    assert "--threads 2" in capsys.readouterr().err
    threads.divide_among(2)
    assert capsys.readouterr().err == ""


def test_a_trainer_changes_its_threads_between_micro_batches() -> None:
    def before(iteration: int, nodes: list[Node]) -> None:
        if iteration == 3:
            nodes[0].send(AgentsHere(99))

    served = Served(10, before=before)
    model, trainer = simple(_agent=served.agent)
    assert len(train(trainer, model)) == 10
    trainer.close()
    served.done()
    assert torch.get_num_threads() == 1
