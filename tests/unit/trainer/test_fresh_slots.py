"""Parts of the optimizer's state that are lost begin anew, and all others go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from edgeagent.checkpoint_file import write_checkpoints
from edgeagent.errors import UsageError
from edgeagent.trainer.slot_files import load_slots, slots_beside
from edgeagent.trainer.stand_ins import GENERATIONS
from tests.unit.trainer.divided import OPTIMIZERS, Device, squares_of

if TYPE_CHECKING:
    from pathlib import Path


def total_of(device: Device, seed: int) -> Any:
    """Return a vector of sums, as small as gradients are."""
    draw = np.random.default_rng(seed)
    return (0.1 * draw.standard_normal(device.state.vector.elements)).astype(np.float32)


def step(device: Device, seed: int, anew: tuple[int, ...] = ()) -> None:
    """Make one update with sums that depend on `seed` alone."""
    said, total = device.compute(seed), total_of(device, seed)
    squares = squares_of(total, device.state.vector.chunk_elements)
    result = total
    if device.state.shards is not None:
        device.put_sums(total)
        result = device.publish(said, squares, anew=anew)
    device.apply(said, squares, result, anew=anew)
    if device.state.shards is not None:
        device.check_weights(result)


def weights(device: Device) -> Any:
    """Return all parameters in the order of the gradient vector."""
    vector = np.zeros(device.state.vector.gradient_elements, np.float32)
    offsets = device.state.vector.gradient_offsets
    for parameter, at in zip(device.state._trainable, offsets, strict=True):
        vector[at : at + parameter.numel()] = parameter.detach().numpy().reshape(-1)
    return vector


def forget(device: Device) -> None:
    """Have the optimizer of an undivided device begin anew."""
    device.optimizer.state.clear()
    device.state._slots.rehome()


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS, ids=lambda x: getattr(x, "__name__", ""))
def test_only_the_lost_part_begins_anew(kind: Any, options: dict[str, Any]) -> None:
    old, new = Device(kind, options, shards=False), Device(kind, options, shards=False)
    parts = Device(kind, options, shards=True)
    for seed in range(4):
        for device in (old, new, parts):
            step(device, seed)
    forget(new)
    layout = parts.shards.layout
    assert layout.stripes > 1
    for seed in range(4, 8):
        for device in (old, new):
            step(device, seed)
        step(parts, seed, anew=(0,) if seed == 4 else ())
    lost = np.zeros(layout.elements, bool)
    for chunk in layout.chunks_of(0):
        lost[slice(*layout.span(chunk))] = True
    lost = lost[: parts.state.vector.gradient_elements]
    assert not np.array_equal(weights(old), weights(new))
    assert np.array_equal(weights(parts)[lost], weights(new)[lost])
    assert np.array_equal(weights(parts)[~lost], weights(old)[~lost])


def test_an_update_that_is_skipped_has_parts_begin_anew_all_the_same() -> None:
    device = Device(torch.optim.AdamW, {}, shards=True)
    step(device, 0)
    said, total = device.compute(1), total_of(device, 1)
    total[3] = np.inf
    squares = squares_of(total, device.state.vector.chunk_elements)
    device.put_sums(total)
    device.apply(said, squares, device.publish(said, squares, anew=(1,)), anew=(1,))
    assert device.state.skipped == 1
    for chunk in device.shards.layout.chunks_of(1):
        assert not device.shards.slot_memory(0, chunk).any()
    assert device.shards.slot_memory(0, 1).any()


def test_weights_whose_sums_are_lost_stay() -> None:
    device = Device(torch.optim.AdamW, {}, shards=True)
    step(device, 0)
    norm = dict(device.model.named_buffers())["2.running_mean"]
    before, mean = weights(device), norm.clone()
    said, total = device.compute(1), total_of(device, 1)
    squares = squares_of(total, device.state.vector.chunk_elements)
    device.put_sums(total)
    every = tuple(range(device.shards.layout.stripes))
    result = device.publish(said, squares, lost=every)
    device.apply(said, squares, result, stripes=())
    assert np.array_equal(weights(device), before)
    assert torch.equal(norm, mean)
    step(device, 2, anew=every)
    assert not np.array_equal(weights(device), before)


def test_parts_that_find_no_free_generation_take_the_youngest_with_them() -> None:
    device = Device(torch.optim.AdamW, {}, shards=True)
    stand_ins = device.shards.stand_ins
    step(device, 0)
    assert device.shards.layout.stripes > GENERATIONS
    for stripe in range(1, GENERATIONS):
        step(device, stripe, anew=(stripe,))
    assert list(stand_ins._of[: GENERATIONS + 1]) == [*range(GENERATIONS), 0]
    youngest = GENERATIONS - 1
    assert stand_ins.with_these((GENERATIONS,)) == (youngest, GENERATIONS)
    step(device, 9, anew=(GENERATIONS,))
    assert list(stand_ins._of[: GENERATIONS + 1]) == [*range(GENERATIONS), youngest]
    step(device, 10, anew=tuple(range(1, device.shards.layout.stripes)))
    assert stand_ins.with_these(()) == ()


def test_generations_are_a_part_of_the_state() -> None:
    device, other = (Device(torch.optim.AdamW, {}, shards=True) for _ in range(2))
    step(device, 0)
    step(device, 1, anew=(2,))
    other.memory.state.memory[:] = device.memory.state.memory[:]
    other.held[:] = device.held
    other.state.adopt(2, device.state.meta())
    step(device, 2)
    step(other, 2)
    assert np.array_equal(weights(device), weights(other))
    assert other.shards.stand_ins.memory(0, 2)["step"] == 2
    assert other.shards.stand_ins.memory(0, 1)["step"] == 3
    assert device.state.meta() == other.state.meta()


def test_parts_that_are_in_no_file_begin_anew_if_that_is_wanted(tmp_path: Path) -> None:
    device, other = (Device(torch.optim.AdamW, {}, shards=True) for _ in range(2))
    step(device, 0)
    path, held = str(tmp_path / "a.safetensors"), device.memory.held.view()
    every = tuple(range(device.shards.layout.stripes))
    mark = device.shards.mark(device.memory.state.view(), device.state.layout)
    about = (device.state.meta(), every[1:], mark)
    write_checkpoints(slots_beside(path, device.shards, held, *about))
    other.held[:] = 7.0
    with pytest.raises(UsageError, match="or --on-lost fresh"):
        load_slots([path], other.shards, 1, mark)
    lacking = load_slots([path], other.shards, 1, mark, anew=True)
    assert lacking == (0,)
    other.state.begin_anew(lacking)
    other.state.guards.check()
    assert not other.shards.slot_memory(0, 1).any()
    assert int(other.shards.stand_ins._of[0]) == 1
    assert torch.equal(other.shards.slot_memory(0, 2), device.shards.slot_memory(0, 2))
