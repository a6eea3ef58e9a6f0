"""The optimizer's state in parts: steps in slices give the bits that whole steps give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from edgeagent.dataplane.weight_chunks import WeightChunks
from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.handover import REPLAY_BUFFER, Publish, Reduced
from edgeagent.trainer.shards import Shards, steps_alike
from edgeagent.trainer.slot_files import load_slots, save_slots, slots_path
from edgeagent.trainer.state import TrainingState

if TYPE_CHECKING:
    from pathlib import Path

    from edgeagent.shared_memory import SharedMemory

Classes = tuple[type[torch.optim.Optimizer], dict[str, Any]]
OPTIMIZERS: list[Classes] = [
    (torch.optim.AdamW, {"lr": 1e-3}),
    (torch.optim.Adam, {"amsgrad": True}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    (torch.optim.NAdam, {}),
    (torch.optim.RMSprop, {"momentum": 0.5}),
]


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(90)
    return torch.nn.Sequential(
        torch.nn.Linear(70, 90), torch.nn.ReLU(), norm, torch.nn.Linear(90, 10)
    )


def squares_of(vector: np.ndarray[Any, Any], size: int) -> tuple[float, ...]:
    """Return the sum of squares of each chunk of `size` elements."""
    cuts = range(0, len(vector), size)
    return tuple(float(np.sum(vector[k : k + size].astype(np.float64) ** 2)) for k in cuts)


class Device:
    """A trainer's state without an agent: this class hands the sums round."""

    def __init__(self, kind: type[torch.optim.Optimizer], options: Any, *, shards: bool) -> None:
        self.model = net()
        self.optimizer = kind(self.model.parameters(), **options)
        schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.state = TrainingState(self.model, self.optimizer, schedule, 0.5, shards=shards)
        self.memory: SharedMemory = self.state.share()

    @property
    def shards(self) -> Shards:
        assert self.state.shards is not None
        return self.state.shards

    @property
    def held(self) -> np.ndarray[Any, Any]:
        return self.memory.held.array("float32")

    def compute(self, seed: int) -> Any:
        """Compute one micro-batch; return what the trainer says of it."""
        state = self.state
        state.start_iteration(0)
        state.start_micro_batch(0)
        torch.manual_seed(seed)
        inputs, labels = torch.randn(16, 70), torch.randint(0, 10, (16,))
        loss = torch.nn.functional.cross_entropy(self.model(inputs), labels)
        loss.backward()
        state.collect(0, loss)
        return state.contribution()

    def put_sums(self, total: np.ndarray[Any, Any], *, missed: bool = False) -> None:
        layout = self.shards.layout
        where = layout.missed if missed else layout.sums
        for chunk in range(1, layout.chunks + 1):
            self.held[where(chunk)] = total[slice(*layout.span(chunk))]

    def publish(self, said: Any, squares: tuple[float, ...], attempt: int = 0) -> Any:
        """Make the results of all stripes; return them as the vector R."""
        layout = self.shards.layout
        every = tuple(range(layout.stripes))
        wanted = Publish(
            self.state.iteration, attempt, every, 1, said.gradient_bitmap, squares, b"", b""
        )
        told = self.state.publish(wanted)
        assert (told.iteration, told.attempt) == (self.state.iteration, attempt)
        return self.memory.contribution.array("float32").copy()

    def apply(
        self, said: Any, squares: tuple[float, ...], result: Any, *, replay: bool = False
    ) -> None:
        at = self.state.iteration
        region = self.memory.replay if replay else self.memory.reduced[at % 2]
        region.array("float32")[:] = result
        if self.state.shards is not None and not replay:  # weights have one place in all iterations
            start = self.state.vector.gradient_elements
            region.array("float32")[:start] = np.nan
            self.memory.reduced[0].array("float32")[:start] = result[:start]
        stripes = tuple(range(self.shards.layout.stripes)) if self.state.shards else ()
        buffer = REPLAY_BUFFER if replay else at % 2
        about = (1, said.loss_sum, said.gradient_bitmap, said.integer_buffers, True, squares, 1)
        self.state.apply(Reduced(at, buffer, *about, b"", b"", True, stripes))

    def step(self, seed: int, *, spoilt: bool = False, replay: bool = False) -> None:
        """Make one iteration alone."""
        said = self.compute(seed)
        total = self.memory.contribution.array("float32").copy()
        if spoilt:
            total[5] = np.inf
        squares = squares_of(total, self.state.vector.chunk_elements)
        result = total
        if self.state.shards is not None:
            self.put_sums(total)
            result = self.publish(said, squares)
            assert np.array_equal(result, self.publish(said, squares, 1), equal_nan=True)
            if replay:
                self.put_sums(total, missed=True)
                self.put_sums(np.zeros_like(total))
        self.apply(said, squares, result, replay=replay)
        if self.state.shards is not None:
            self.check_weights(result)

    def check_weights(self, result: np.ndarray[Any, Any]) -> None:
        """The agent finds in the state what the owners have published."""
        vector = self.state.vector
        size, places = vector.chunk_elements, self.shards.places(self.state.layout)
        hello = Mock(elements=vector.elements, chunk_elements=size, weights=places)
        weights = WeightChunks(hello, self.memory)
        assert weights.chunks == vector.gradient_chunks
        assert weights.are_of(self.state.iteration - 1)
        for chunk in range(1, weights.chunks + 1):
            assert np.array_equal(weights.read(chunk), result[(chunk - 1) * size : chunk * size])


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


@pytest.mark.parametrize("kind", [PerTensor, Picky])
def test_optimizers_that_need_whole_parameters_are_refused(kind: Any) -> None:
    optimizer = kind(net().parameters(), lr=0.1, momentum=0.9)
    assert not steps_alike(optimizer)
    with pytest.raises(UsageError, match="other numbers if parameters are stepped in slices"):
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
    refused(wide, torch.optim.AdamW(wide.parameters()), "parameters are float32")
    turned = torch.nn.Linear(6, 8)
    turned.weight = torch.nn.Parameter(torch.zeros(6, 8).t())
    refused(turned, torch.optim.AdamW(turned.parameters()), "not contiguous")
    small = torch.nn.Linear(6, 8)
    adafactor = torch.optim.Adafactor(small.parameters())
    refused(small, adafactor, "slices|no float32 tensor like its parameter")


# --- files ----------------------------------------------------------------------------------------


def save(device: Device, path: Path, stripes: tuple[int, ...]) -> None:
    held = device.memory.held.view()
    save_slots(str(path), device.shards, held, device.state.meta(), stripes)


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
    load_slots([str(f) for f in files], other.shards, 1)
    length = device.shards.layout.slots * device.shards.layout.elements
    gradients = device.state.vector.gradient_elements
    for slot in range(device.shards.layout.slots):
        at = slice(slot * length // 2, slot * length // 2 + gradients)
        assert np.array_equal(device.held[at], other.held[at])
    with pytest.raises(UsageError, match="parts of the optimizer's state are in none of"):
        load_slots([str(files[0])], other.shards, 1)
    with pytest.raises(UsageError, match="belongs to step 1"):
        load_slots([str(files[0])], other.shards, 2)
    with pytest.raises(UsageError, match="cannot read"):
        load_slots([str(tmp_path / "c.safetensors")], other.shards, 1)


def test_slots_of_another_shape_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    device = Device(torch.optim.AdamW, {}, shards=True)
    layout = device.shards.layout
    tensors = {f"slots.{s}.1": torch.zeros(3) for s in device.shards.slot_names}
    about = {"iteration": "0", "stripes": str(layout.stripes)}
    save_file(tensors, str(tmp_path / "x-slots.safetensors"), about)
    with pytest.raises(UsageError, match="another shape"):
        load_slots([str(tmp_path / "x.safetensors")], device.shards, 0)
