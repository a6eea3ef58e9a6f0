"""How many threads a trainer computes with beside other agents of its device."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
import torch

from edgeagent.config import THREAD_VARIABLES
from edgeagent.handover import AgentsHere
from edgeagent.trainer import own_threads
from edgeagent.trainer.own_threads import OwnThreads, usable_cores, why_fixed
from tests.unit.trainer.replicas import Served, train
from tests.unit.trainer.test_trainer import simple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgeagent.trainer.options import Options
    from tests.unit.trainer.fake_agent import Node


@pytest.fixture(autouse=True)
def _four_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a device of eight processors, of which torch uses the four cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    monkeypatch.setattr(own_threads, "DEFAULT", 4)
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    yield
    torch.set_num_threads(before)


def on_eight(wanted: int = 0, *, fixed: str = "", usable: int = 8) -> OwnThreads:
    return OwnThreads(wanted, fixed=fixed, cores=8, usable=usable)


def test_agents_of_a_device_divide_its_cores(capsys: pytest.CaptureFixture[str]) -> None:
    threads = on_eight()
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
    threads = on_eight(usable=4)
    threads.divide_among(2)
    assert torch.get_num_threads() == 4, "the other one may have the other four"
    threads.divide_among(4)
    assert torch.get_num_threads() == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_where_no_process_can_be_bound_all_cores_are_usable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert 1 <= usable_cores() <= own_threads.CORES
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert usable_cores() == own_threads.CORES


def test_what_the_user_or_the_script_has_decided_stays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_eight(3).divide_among(4)
    assert torch.get_num_threads() == 3
    on_eight().divide_among(4)  # the script has set 3 before Trainer()
    assert torch.get_num_threads() == 3
    torch.set_num_threads(4)
    threads = on_eight()
    torch.set_num_threads(2)  # as a script does after Trainer()
    threads.divide_among(4)
    threads.divide_among(1)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(4)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    on_eight().divide_among(4)
    assert torch.get_num_threads() == 4
    assert capsys.readouterr().err == ""


def test_where_the_number_must_not_change_the_user_is_told_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    threads = on_eight(fixed="with --exact all devices need the same number")
    for agents in (2, 4):
        threads.divide_among(agents)
        assert torch.get_num_threads() == 4
    said = capsys.readouterr().err
    assert "--threads 2 (with --exact all devices need" in said
    threads.divide_among(2)
    assert capsys.readouterr().err == ""


def test_the_number_must_not_change_where_bits_or_compiled_code_depend_on_it() -> None:
    plain, exact = (cast("Options", SimpleNamespace(exact_count=n)) for n in (0, 16))
    model = torch.nn.Linear(4, 4)
    adam = torch.optim.AdamW(model.parameters())

    class Odd(torch.optim.AdamW):
        pass

    assert why_fixed(model, adam, plain) == ""
    assert "--exact" in why_fixed(model, adam, exact)
    for odd in (torch.optim.Adafactor(model.parameters()), Odd(model.parameters())):
        assert f"updates of {type(odd).__name__} may" in why_fixed(model, odd, plain)
    whole = torch.nn.Sequential(model)
    assert why_fixed(whole, adam, plain) == ""
    model.compile(backend="eager")
    assert "compiled" in why_fixed(whole, adam, plain)
    compiled = cast("torch.nn.Module", torch.compile(whole, backend="eager"))
    assert "compiled" in why_fixed(compiled, adam, plain)


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
