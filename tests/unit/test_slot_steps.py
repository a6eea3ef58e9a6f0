"""Steps of slots without torch leave the bits that torch leaves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from edgeagent.held_memory import HeldLayout
from edgeagent.slot_steps import (
    ADAM,
    AMSGRAD,
    BLOCK,
    SGD,
    SLOTS,
    SlotStep,
    chunks_to_step,
    decoded,
    step_chunks,
)
from edgeagent.trainer.exact_arithmetic import ExactArithmetic

if TYPE_CHECKING:
    from collections.abc import Callable

LENGTH = BLOCK + 77  # more than one block, the last one short

CASES: list[tuple[Callable[[Any], torch.optim.Optimizer], str, tuple[float, float]]] = [
    (lambda p: torch.optim.AdamW(p, weight_decay=0.1), ADAM, (0.9, 0.999)),
    (lambda p: torch.optim.Adam(p, betas=(0.3, 0.6)), ADAM, (0.3, 0.6)),
    (lambda p: torch.optim.Adam(p, amsgrad=True, maximize=True), AMSGRAD, (0.9, 0.999)),
    (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.3), SGD, (0.9, 0.3)),
    (lambda p: torch.optim.SGD(p, 0.1, momentum=0.5, nesterov=True), SGD, (0.5, 0.0)),
]


@pytest.mark.parametrize(("make", "rule", "numbers"), CASES)
def test_the_bits_are_those_of_torch(
    make: Callable[[Any], torch.optim.Optimizer], rule: str, numbers: tuple[float, float]
) -> None:
    draw = torch.Generator().manual_seed(1)
    parameter = torch.nn.Parameter(torch.randn(LENGTH, generator=draw))
    optimizer = make([parameter])
    maximize = optimizer.param_groups[0]["maximize"]
    slots: list[np.ndarray[Any, Any]] = []
    for count in range(5):
        total = torch.randn(LENGTH, generator=draw)
        total *= 10.0 ** torch.randint(-20, 6, (LENGTH,), generator=draw)
        total[::97] = 0.0
        scale, coefficient = (1.0, None) if count % 2 else (1024.0, 0.37)
        if count:
            SlotStep(rule, numbers, maximize, 3, scale, coefficient).step(total.numpy(), slots)
        with torch.no_grad(), ExactArithmetic():
            mean = total / 3 / scale
            parameter.grad = mean if coefficient is None else mean * coefficient
            type(optimizer).step(optimizer)
        state = optimizer.state[parameter]
        if not count:  # torch makes the slots in its first step
            slots = [state[name].numpy().copy() for name in SLOTS[rule]]
    for name, slot in zip(SLOTS[rule], slots, strict=True):
        assert np.array_equal(slot, state[name].numpy()), name
        assert np.isfinite(slot).all()


@pytest.mark.parametrize("coefficient", [None, 0.25])
def test_a_step_travels_as_numbers(coefficient: float | None) -> None:
    step = SlotStep(ADAM, (0.9, 0.999), True, 7, 2.0, coefficient)
    assert decoded(step.rule, step.encode()) == step


@pytest.mark.parametrize(
    ("rule", "numbers"),
    [
        ("lion", (0.9, 0.9, 0.0, 1.0, 1.0, 1.0)),
        (ADAM, (0.9, 0.9)),
        (ADAM, (0.9, 0.9, 0.0, 0.0, 1.0, 1.0)),
        (ADAM, (0.9, 0.9, 0.0, math.nan, 1.0, 1.0)),
        (ADAM, (0.9, 0.9, 0.0, math.inf, 1.0, 1.0)),
    ],
)
def test_what_is_no_step_is_refused(rule: str, numbers: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="no step of slots"):
        decoded(rule, numbers)


def test_only_gradients_of_the_stripes_are_stepped() -> None:
    layout = HeldLayout(2, 70, 10)  # seven chunks, each a stripe; the last two hold buffers
    assert chunks_to_step(layout, (5, 0, 3), 5) == [1, 4]
    memory = np.zeros(layout.bytes // 4, np.float32)
    for chunk in range(1, layout.chunks + 1):
        memory[layout.sums(chunk)] = chunk
    names = ("exp_avg_sq", "exp_avg")
    step = SlotStep(ADAM, (0.5, 0.5), False, 1)
    assert list(step_chunks(memory, layout, [1, 4], names, step)) == [10, 10]
    for chunk in range(1, layout.chunks + 1):
        wanted = {1: (0.5, 0.5), 4: (8.0, 2.0)}.get(chunk, (0.0, 0.0))
        assert [set(memory[layout.slot(n, chunk)].tolist()) for n in (0, 1)] == [
            {value} for value in wanted
        ]
