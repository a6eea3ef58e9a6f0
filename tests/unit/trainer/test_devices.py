"""`--device`: which devices can be used, what is said about others, and what is moved there."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from edgeagent.config import RUN_VARIABLE, TrainerConfig, trainer_config_text
from edgeagent.errors import UsageError
from edgeagent.trainer import Trainer, devices
from edgeagent.trainer.devices import place_on, refuse_on_mps, usable_device
from edgeagent.trainer.numerics import MOST, accelerator, numeric_fields

META = torch.device("meta")


def refused(name: str) -> str:
    with pytest.raises(UsageError) as caught:
        usable_device(name)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_the_processor_is_a_device() -> None:
    assert usable_device("cpu") == torch.device("cpu")


def test_names_that_are_no_device() -> None:
    assert refused("cudda") == "device 'cudda': use cpu, cuda, cuda:N or mps"
    assert "edgeagent trains on cpu, cuda" in refused("meta")


def test_cuda_of_a_build_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    assert f"torch {torch.__version__} here is built without CUDA" in refused("cuda")


def test_cuda_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert "finds no CUDA device" in refused("cuda:0")


def test_a_number_that_there_is_no_device_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda k: "Orin")
    assert refused("cuda:7") == "device cuda:7 cannot be used: there is cuda:0 (Orin)"


def test_a_device_that_fails_when_it_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> torch.Tensor:
        raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ...")

    monkeypatch.setattr(torch, "ones", broken)
    assert refused("cpu") == "device cpu cannot be used: CUDA error: out of memory"


def test_mps_is_said_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: False)
    assert "without MPS" in refused("mps")
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert "needs macOS" in refused("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert "without a number" in refused("mps:1")
    with pytest.raises(UsageError, match="scale is float64, which mps does not have"):
        refuse_on_mps({"weight": torch.ones(1), "scale": torch.ones(1, dtype=torch.float64)})
    monkeypatch.setattr(devices, "usable_device", lambda name: torch.device("mps"))
    assert devices.main(["mps"]) == 0
    assert "float64" in capsys.readouterr().out


def test_the_agent_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    assert devices.main(["cpu"]) == 0
    assert capsys.readouterr().out == ""
    assert devices.main(["cudda"]) == 2
    assert capsys.readouterr().out == "device 'cudda': use cpu, cuda, cuda:N or mps\n"


def test_what_the_optimizer_remembers_moves_with_its_parameter() -> None:
    """The optimizer is made as in a script that loads it and moves its model later."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    place_on(model, optimizer, torch.device("cpu"))
    with pytest.raises(UsageError, match="replaced its parameters"):
        place_on(model, optimizer, META)  # no shallow copies between these two


def test_slots_beside_a_parameter_move_and_the_counter_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adagrad(model.parameters())
    monkeypatch.setattr(model, "to", lambda device: model)
    place_on(model, optimizer, META)
    for slots in optimizer.state.values():
        assert (slots["sum"].device, slots["step"].device) == (META, torch.device("cpu"))


def test_a_trainer_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(3, 2)
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert trainer.device == torch.device("cpu")
    config = replace(TrainerConfig(), device="cuda:7")
    monkeypatch.setitem(os.environ, RUN_VARIABLE, trainer_config_text(config))
    with pytest.raises(UsageError, match="cuda:7 cannot be used"):
        Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_what_a_device_says_of_itself_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "G" * 999)
    assert len(accelerator(torch.device("cuda:0"))) <= MOST
    assert accelerator(torch.device("mps:0")) == "on mps"
    fields = dict(numeric_fields(torch.device("cpu")))
    assert list(fields) == ["about torch", "about processor", "about device", "about rounding"]
    assert all(0 < len(text) <= MOST and text.isprintable() for text in fields.values())
    assert fields["about torch"] == f"torch {torch.__version__}"
    assert numeric_fields(torch.device("cpu")) == tuple(fields.items())
