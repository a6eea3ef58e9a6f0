"""Steps block by block leave the bits of the optimizer's own, which steps where they cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from edgeagent.trainer import block_steps, shards, whole_steps
from edgeagent.trainer.block_steps import BlockSteps, is_ready, steps_of
from edgeagent.trainer.image import CPU
from edgeagent.trainer.mean import Mean
from edgeagent.trainer.validation import settle_implementation
from tests.unit.trainer.divided import Device

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgeagent.trainer.block_steps import Block

Case = tuple[type[torch.optim.Optimizer], dict[str, Any]]
CASES: list[Case] = [
    (torch.optim.Adam, {}),
    (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.02, "maximize": True}),
    (torch.optim.AdamW, {"betas": (0.4, 0.9)}),
    (torch.optim.AdamW, {"weight_decay": 0.0, "foreach": False}),
    (torch.optim.SGD, {"lr": 0.05}),
    (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (torch.optim.SGD, {"lr": 0.05, "momentum": 0.5, "dampening": 0.2, "maximize": True}),
]


def names(value: Any) -> str:
    if isinstance(value, bool):
        return "divided" if value else "whole"
    return value.__name__ if isinstance(value, type) else ",".join(value)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the pieces that are stepped block by block, in the only element of what is returned."""
    count, real = [0], BlockSteps.step

    def step(self: BlockSteps, *args: Any, **options: Any) -> None:
        count[0] += 1
        real(self, *args, **options)

    monkeypatch.setattr(BlockSteps, "step", step)
    return count


def trained(kind: type[torch.optim.Optimizer], options: Any, *, divided: bool) -> Device:
    device = Device(kind, options, shards=divided)
    for seed in range(6):
        device.step(seed, spoilt=seed == 2, replay=divided and seed == 3)
        if seed == 4:
            device.state._settings._optimizer.param_groups[0]["weight_decay"] += 0.01
            device.state._settings.note()
    return device


# SGD without momentum remembers nothing, so there is nothing to divide.
DIVIDED = [(k, o, True) for k, o in CASES if k is not torch.optim.SGD or "momentum" in o]


@pytest.mark.parametrize(
    ("kind", "options", "divided"), [*((k, o, False) for k, o in CASES), *DIVIDED], ids=names
)
def test_bits_are_those_of_the_optimizer_itself(
    kind: type[torch.optim.Optimizer],
    options: dict[str, Any],
    divided: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = counted(monkeypatch)
    quick = trained(kind, options, divided=divided)
    assert count[0] > 0
    for module in (whole_steps, shards):
        monkeypatch.setattr(module, "steps_of", lambda *_: None)
    count[0] = 0
    slow = trained(kind, options, divided=divided)
    assert count[0] == 0
    assert bytes(quick.memory.state.view()) == bytes(slow.memory.state.view())
    assert quick.state.meta() == slow.state.meta()
    if divided:
        assert np.array_equal(quick.held, slow.held, equal_nan=True)


def optimizer(kind: type[torch.optim.Optimizer] = torch.optim.AdamW, **options: Any) -> Any:
    made: Any = kind([torch.nn.Parameter(torch.zeros(5))], **options)
    settle_implementation(made)
    return made


def test_a_kernel_that_rounds_otherwise_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = block_steps._KERNELS[torch.optim.AdamW]

    def wrong(block: Block, settings: Mapping[str, Any], count: float) -> None:
        right(block, {**settings, "eps": 1.001 * settings["eps"]}, count)

    rates = (1e-3, 0.0)  # 0: the begin of a warm-up
    assert all(steps_of(optimizer(lr=rate), CPU) is not None for rate in rates)
    monkeypatch.setitem(block_steps._KERNELS, torch.optim.AdamW, wrong)
    assert all(steps_of(optimizer(lr=rate), CPU) is None for rate in rates)


class Own(torch.optim.AdamW):
    """A script's own class."""


@pytest.mark.parametrize(
    "made",
    [
        optimizer(Own),
        optimizer(torch.optim.RMSprop),
        optimizer(lr=torch.tensor(0.1)),
        optimizer(differentiable=True),
    ],
)
def test_what_is_not_known_is_left_to_the_optimizer(made: torch.optim.Optimizer) -> None:
    assert steps_of(made, CPU) is None


def test_metal_is_left_to_the_optimizer() -> None:
    assert steps_of(optimizer(), torch.device("mps")) is None


def test_memory_of_another_kind_is_left_to_the_optimizer() -> None:
    made = optimizer()
    group = made.param_groups[0]
    memory = {name: torch.zeros(5) for name in ("exp_avg", "exp_avg_sq")}
    assert not is_ready(made, group, memory)
    memory["step"] = torch.zeros(())
    assert is_ready(made, group, memory)
    assert not is_ready(made, {**group, "amsgrad": True}, memory)
    assert not is_ready(made, {**group, "lr": torch.tensor(0.1)}, memory)
    assert not is_ready(made, group, {**memory, "exp_avg": torch.zeros(5).bfloat16()})
    assert not is_ready(made, group, {**memory, "exp_avg": torch.zeros(5, 2)[:, 0]})


@pytest.mark.parametrize("why", ["a hook", "a turned parameter", "bfloat16"])
def test_the_optimizer_itself_steps_where_it_has_to(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, called = counted(monkeypatch), []
    device = Device(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, shards=False)
    if why == "a hook":
        device.optimizer.register_step_post_hook(lambda *_: called.append(1))
    elif why == "a turned parameter":
        monkeypatch.setattr(torch.nn.Parameter, "is_contiguous", lambda *_: False)
    else:
        parameters = [torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))]
        made = torch.optim.SGD(parameters, lr=0.1)
        steps = whole_steps.WholeSteps(made, parameters, device.state.vector, CPU)
        assert steps._blocks is None
        return
    count[0] = 0
    for seed in range(3):
        device.step(seed)
    assert count[0] == 0
    assert len(called) == (3 if why == "a hook" else 0)


def test_a_mean_in_place_is_that_of_a_new_vector() -> None:
    total = torch.randn(1000)
    for mean in (Mean(3), Mean(7, 512.0), Mean(5, 3.0, 0.3)):
        target = torch.empty(1000)
        mean.into(target, total)
        assert torch.equal(target, mean.of(total))
