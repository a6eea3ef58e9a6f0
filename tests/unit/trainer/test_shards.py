"""The optimizer's state in parts: steps in slices give the bits that whole steps give."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgeagent.checkpoint_file import write_checkpoints
from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.handover import Publish
from edgeagent.slots_file import slots_path
from edgeagent.trainer.checkpoint import save_checkpoint
from edgeagent.trainer.shards import trouble_in_slices
from edgeagent.trainer.slot_files import load_slots, slots_beside
from edgeagent.trainer.state import TrainingState
from tests.unit.trainer.divided import OPTIMIZERS, Device, net, squares_of


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS, ids=lambda x: getattr(x, "__name__", ""))
def test_parts_are_stepped_to_the_same_bits(
    kind: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    whole, parts = Device(kind, options, shards=False), Device(kind, options, shards=True)
    for seed in range(5):
        for device in (whole, parts):
            device.step(seed, spoilt=seed == 2, replay=seed == 3)
    for (name, a), b in zip(
        whole.model.state_dict().items(), parts.model.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b), name
    assert parts.state.skipped == 1
    for spec, place in zip(whole.state._slot_specs, whole.state._slots.tensors(), strict=True):
        if not spec.spec.shape:
            continue
        number = parts.shards.slot_names.index(spec.slot)
        start = whole.state.vector.gradient_offsets[spec.parameter]
        base = number * parts.shards.layout.elements + start
        here = torch.from_numpy(parts.held[base : base + place[2].numel()])
        assert torch.equal(here, place[2].reshape(-1)), spec.spec.name


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS, ids=lambda x: getattr(x, "__name__", ""))
def test_a_model_apart_from_the_shared_memory_gets_the_same_bits(
    kind: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    both = [Device(kind, options, shards=True, mirror=mirror) for mirror in (False, True)]
    for seed in range(5):
        for device in both:
            device.step(seed, spoilt=seed == 2, replay=seed == 3)
    here, apart = both
    assert bytes(here.memory.state.view()) == bytes(apart.memory.state.view())
    assert here.state.meta() == apart.state.meta()
    assert np.array_equal(here.held, apart.held, equal_nan=True)
    for (name, a), b in zip(
        here.model.state_dict().items(), apart.model.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b), name


def test_a_model_apart_from_the_shared_memory_adopts_and_goes_on() -> None:
    here = Device(torch.optim.AdamW, {}, shards=True)
    apart = Device(torch.optim.AdamW, {}, shards=True, mirror=True)
    here.step(0)
    here.step(1)
    apart.memory.state.memory[:] = here.memory.state.memory[:]
    apart.state.adopt(2, here.state.meta())
    apart.held[:] = here.held
    for device in (here, apart):
        device.shards.keep(range(device.shards.layout.stripes))
        device.step(2)
    assert bytes(here.memory.state.view()) == bytes(apart.memory.state.view())
    assert here.state.meta() == apart.state.meta()


def test_weights_elsewhere_are_copies_which_never_come_home() -> None:
    here = Device(torch.optim.AdamW, {}, shards=True)
    apart = Device(torch.optim.AdamW, {}, shards=True, mirror=True)
    said = here.compute(0)
    total = here.memory.contribution.array("float32").copy()
    squares = squares_of(total, here.state.vector.chunk_elements)
    apart.compute(0)
    for parameter in apart.model.parameters():
        parameter.data.fill_(3.0)
    for device in (here, apart):
        device.put_sums(total)
        device.apply(said, squares, device.publish(said, squares))
    for a, b in zip(here.model.parameters(), apart.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_parameters_without_a_gradient_stay() -> None:
    device = Device(torch.optim.AdamW, {}, shards=True)
    before = [p.detach().clone() for p in device.model.parameters()]
    said = device.compute(1)
    said = type(said)(
        **{
            **{f: getattr(said, f) for f in said.__dataclass_fields__ if f != "TAG"},
            "gradient_bitmap": b"\x01",
        }
    )
    total = device.memory.contribution.array("float32").copy()
    squares = squares_of(total, device.state.vector.chunk_elements)
    device.put_sums(total)
    device.apply(said, squares, device.publish(said, squares))
    names = list(device.state._trainable.values())
    changed = [
        n
        for n, b in zip([n for n, _ in device.model.named_parameters()], before, strict=True)
        if not torch.equal(dict(device.model.named_parameters())[n], b)
    ]
    assert changed == names[:1]


def test_results_of_another_iteration_are_refused() -> None:
    device = Device(torch.optim.AdamW, {}, shards=True)
    with pytest.raises(EdgeAgentError, match="results of another iteration"):
        device.state.publish(Publish(3, 0, (), 1, b"", (), b"", b""))


class PerTensor(torch.optim.SGD):
    """Steps by the norm of the whole gradient."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad = p.grad / p.grad.norm()
        return super().step(closure)


class Picky(torch.optim.SGD):
    """Takes matrices only."""

    def step(self, closure: Any = None) -> Any:
        if any(p.dim() < 2 for group in self.param_groups for p in group["params"]):
            raise ValueError("no matrix")
        return super().step(closure)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (PerTensor, "gives other numbers if parameters are stepped in slices"),
        (Picky, r"cannot step parameters in slices on the CPU \(no matrix\)"),
    ],
)
def test_optimizers_that_need_whole_parameters_are_refused(kind: Any, why: str) -> None:
    optimizer = kind(net().parameters(), lr=0.1, momentum=0.9)
    assert re.fullmatch(why, trouble_in_slices(optimizer))
    with pytest.raises(UsageError, match=f"{why}, so its state cannot be divided"):
        Device(kind, {"lr": 0.1, "momentum": 0.9}, shards=True)


def refused(model: torch.nn.Module, optimizer: torch.optim.Optimizer, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        TrainingState(model, optimizer, shards=True)


def test_what_cannot_be_divided_is_named() -> None:
    model = net()
    refused(model, torch.optim.SGD(model.parameters(), lr=0.1), "nothing to divide")
    adagrad = torch.optim.Adagrad(model.parameters())
    refused(model, adagrad, "must not have stepped before")
    wide = net().double()
    refused(wide, torch.optim.AdamW(wide.parameters()), "is torch.float64: .* are float32")
    turned = torch.nn.Linear(6, 8)
    turned.weight = torch.nn.Parameter(torch.zeros(6, 8).t())
    refused(turned, torch.optim.AdamW(turned.parameters()), "not contiguous")
    small = torch.nn.Linear(6, 8)
    hooked = torch.optim.AdamW(small.parameters())
    hooked.register_step_post_hook(lambda *_: None)
    refused(small, hooked, "has hooks for its steps")
    adafactor = torch.optim.Adafactor(small.parameters())
    refused(small, adafactor, "slices|no float32 tensor like its parameter")


# --- files ----------------------------------------------------------------------------------------


def mark(device: Device) -> str:
    """Return the mark of a device's weights."""
    return device.shards.mark(device.memory.state.view(), device.state.layout)


def save(device: Device, path: Path, stripes: tuple[int, ...]) -> None:
    held = device.memory.held.view()
    about = (device.state.meta(), stripes, mark(device))
    write_checkpoints(slots_beside(str(path), device.shards, held, *about))


def test_files_that_belong_together_are_written_together_or_not_at_all(tmp_path: Path) -> None:
    """As when the disk is full once the weights are written, and not yet the slots."""
    device = Device(torch.optim.AdamW, {}, shards=True)
    device.step(0)
    path = tmp_path / "a.safetensors"
    save(device, path, (0,))
    before = slots_path(str(path))
    kept = Path(before).read_bytes()

    def full(_file: object) -> None:
        raise OSError(28, "No space left on device")

    layout, state, meta = device.state.layout, device.memory.state.view(), device.state.meta()
    with pytest.raises(EdgeAgentError, match="No space left"):
        save_checkpoint(str(path), layout, state, meta, {}, (before, full))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a-slots.safetensors"]
    assert Path(before).read_bytes() == kept


def test_parts_of_another_step_begin_anew_if_that_is_wanted(tmp_path: Path) -> None:
    """The power failed between the two files of a save, or one of them is not there."""
    device = Device(torch.optim.AdamW, {}, shards=True)
    device.step(0)
    path = str(tmp_path / "a.safetensors")
    every = tuple(range(device.shards.layout.stripes))
    save(device, Path(path), every)
    now, layout = device.state.iteration, device.shards.layout
    parts = {layout.stripe_of(chunk) for chunk in range(1, device.shards.gradient_chunks + 1)}
    assert load_slots([path], device.shards, now, mark(device)) == ()
    for paths, iteration in (([path], now + 1), ([str(tmp_path / "none.safetensors")], now)):
        with pytest.raises(UsageError):
            load_slots(paths, device.shards, iteration, mark(device))
        about = (paths, device.shards, iteration, mark(device))
        assert load_slots(*about, anew=True) == tuple(sorted(parts))


def test_slots_come_back_from_the_files_of_several_devices(tmp_path: Path) -> None:
    device = Device(torch.optim.AdamW, {}, shards=True)
    device.step(0)
    count = device.shards.layout.stripes
    half = tuple(range(0, count, 2)), tuple(range(1, count, 2))
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for file, stripes in zip(files, half, strict=True):
        save(device, file, stripes)
    assert slots_path(str(files[0])) == str(tmp_path / "a-slots.safetensors")
    other = Device(torch.optim.AdamW, {}, shards=True)
    load_slots([str(f) for f in files], other.shards, 1, mark(device))
    length = device.shards.layout.slots * device.shards.layout.elements
    gradients = device.state.vector.gradient_elements
    for slot in range(device.shards.layout.slots):
        at = slice(slot * length // 2, slot * length // 2 + gradients)
        assert np.array_equal(device.held[at], other.held[at])
    with pytest.raises(UsageError, match="parts of the optimizer's state are in none of"):
        load_slots([str(files[0])], other.shards, 1, mark(device))
    with pytest.raises(UsageError, match="belongs to step 1"):
        load_slots([str(files[0])], other.shards, 2, mark(device))
    with pytest.raises(UsageError, match="cannot read"):
        load_slots([str(tmp_path / "c.safetensors")], other.shards, 1, mark(device))


def test_slots_of_another_training_with_as_many_steps_are_refused(tmp_path: Path) -> None:
    one, other = (Device(torch.optim.AdamW, {}, shards=True) for _ in range(2))
    one.step(0)
    other.step(1)
    path = str(tmp_path / "a.safetensors")
    save(one, Path(path), tuple(range(one.shards.layout.stripes)))
    assert load_slots([path], one.shards, 1, mark(one)) == ()
    with pytest.raises(UsageError, match="belongs to other weights than"):
        load_slots([path], other.shards, 1, mark(other))
    assert load_slots([path], other.shards, 1, mark(other), anew=True)


def test_slots_of_another_shape_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    device = Device(torch.optim.AdamW, {}, shards=True)
    layout = device.shards.layout
    tensors = {f"slots.{s}.1": torch.zeros(3) for s in device.shards.slot_names}
    about = {"iteration": "0", "stripes": str(layout.stripes)}
    save_file(tensors, str(tmp_path / "x-slots.safetensors"), about)
    with pytest.raises(UsageError, match="another shape"):
        load_slots([str(tmp_path / "x.safetensors")], device.shards, 0, mark(device))


def test_who_has_just_joined_saves_no_slots(tmp_path: Path) -> None:
    device, other = (Device(torch.optim.AdamW, {}, shards=True) for _ in range(2))
    device.step(0)
    other.memory.state.memory[:] = device.memory.state.memory[:]
    other.state.adopt(1, device.state.meta())
    assert other.shards.stripes == ()
    file = tmp_path / "a.safetensors"
    save(other, file, other.shards.stripes)
    with pytest.raises(UsageError, match="parts of the optimizer's state are in none of"):
        load_slots([str(file)], other.shards, 1, mark(device))
