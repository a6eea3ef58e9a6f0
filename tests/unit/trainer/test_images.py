"""The training state on a device of its own: the same bytes as in place, and few copies.

The device is the CPU (`_mirror`), whose tensors are then as far from the shared memory as those of
any other device; the meta device, which computes nothing, shows where things are allocated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from edgeagent.errors import UsageError
from edgeagent.handover import Reduced
from edgeagent.marks import MARK_APPLYING, MARK_ITERATION
from edgeagent.shared_memory import SharedMemory, create_shared_memory
from edgeagent.trainer.fingerprint import trial_slots, update_digest
from edgeagent.trainer.image import CPU, StateImage, device_of
from edgeagent.trainer.layout import TensorSpec, plan_layout
from edgeagent.trainer.losses import LossSum
from edgeagent.trainer.slots import discover_slots
from edgeagent.trainer.staging import Staging
from edgeagent.trainer.state import TrainingState
from edgeagent.trainer.streams import RandomStreams
from tests.unit.trainer.fake_agent import square_sums
from tests.unit.trainer.replicas import Points, network, run_cluster, train

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.trainer import Trainer

META = torch.device("meta")
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd-momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=3e-3),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
}


def make(kind: str, loaded: bool = False, **options: Any) -> Any:
    """Return what makes a model with batch norm; `loaded`: its optimizer has stepped before."""

    def made() -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
        model = network()
        optimizer = OPTIMIZERS[kind](model.parameters())
        if loaded:
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, 0.25)
            optimizer.step()
            optimizer.zero_grad()
            optimizer.load_state_dict(optimizer.state_dict())
        settings = {"global_batch": 40, "micro_batch": 8, "max_grad_norm": 0.5}
        return model, optimizer, {**settings, **options}

    return made


def with_bf16(trainer: Trainer, model: nn.Module, dataset: Any) -> None:
    for x, y in trainer.loader(dataset):
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        trainer.update(loss)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize(("loop", "loaded"), [(train, False), (train, True), (with_bf16, False)])
def test_an_image_gives_the_bytes_of_the_state_in_place(
    kind: str, loop: Callable[..., Any], loaded: bool
) -> None:
    how: dict[str, Any] = {"join_at": {1: 3}, "keep_states": True}
    direct = run_cluster(make(kind, loaded), 2, 7, cluster=how, loop=loop)
    apart = run_cluster(make(kind, loaded, _mirror=True), 2, 7, cluster=how, loop=loop)
    assert len(direct.states) == 7
    assert apart.states == direct.states
    assert apart.metas == direct.metas
    assert apart.losses == direct.losses


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_state_that_is_seldom_read_is_the_same_when_it_is(kind: str) -> None:
    how: dict[str, Any] = {"join_at": {1: 3}, "reads": lambda i: i % 3 == 2}
    direct = run_cluster(make(kind), 2, 9, cluster={"join_at": {1: 3}})
    apart = run_cluster(make(kind, _mirror=True), 2, 9, cluster=how)
    assert apart.states == direct.states


def test_what_cannot_lie_in_the_image_is_copied_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Adam's step counters, which stay on the CPU, are beside any other device."""
    direct = run_cluster(make("adamw", loaded=True), 2, 7, cluster={"join_at": {1: 3}})
    monkeypatch.setattr(StateImage, "holds", lambda image, device: False)
    apart = run_cluster(make("adamw", loaded=True, _mirror=True), 2, 7, cluster={"join_at": {1: 3}})
    assert apart.states == direct.states
    assert apart.metas == direct.metas


class Lone:
    """One replica in this process; `step` runs an iteration of four micro-batches."""

    def __init__(self, kind: str = "adamw", *, mirror: bool = True) -> None:
        self.model, optimizer, _ = make(kind)()
        self.state = TrainingState(self.model, optimizer, max_grad_norm=0.5, mirror=mirror)
        vector = self.state.vector
        self.memory: SharedMemory = create_shared_memory(
            self.state.layout.size, vector.elements, vector.accumulate
        )
        self.state.attach(self.memory)

    def share(self, micro_batches: int = 4) -> None:
        self.state.start_iteration(0)
        points = Points(noise=0.0)
        for number in range(micro_batches):
            self.state.start_micro_batch()
            samples = [points[k] for k in range(8 * number, 8 * number + 8)]
            x, y = torch.stack([s[0] for s in samples]), torch.tensor([s[1] for s in samples])
            torch.manual_seed(number)
            loss = nn.functional.cross_entropy(self.model(x), y)
            loss.backward()
            self.state.collect(number, loss)

    def step(self, *, is_read: bool = True) -> None:
        self.share()
        said = self.state.contribution()
        dtype = self.state.vector.accumulate
        total = self.memory.contribution.array(dtype)
        self.memory.reduced[0].array(dtype)[:] = total
        self.state.apply(
            Reduced(
                said.iteration,
                0,
                4,
                said.loss_sum,
                said.gradient_bitmap,
                said.integer_buffers,
                said.integer_buffers_agree,
                square_sums(total, self.state.vector.chunk_elements),
                1,
                is_read=is_read,
            )
        )
        self.state.guards.script_ran()

    @property
    def marks(self) -> tuple[int, int]:
        marks = self.memory.marks.array("int64")
        return int(marks[MARK_APPLYING]), int(marks[MARK_ITERATION])


def test_the_marks_are_about_what_lies_in_the_shared_memory() -> None:
    replica = Lone()
    before = bytes(replica.memory.state.view())
    replica.step(is_read=False)
    replica.step(is_read=False)
    assert replica.marks == (0, 0)
    assert bytes(replica.memory.state.view()) == before
    replica.state.bring_home()
    assert replica.marks == (0, 2)
    in_place = Lone(mirror=False)
    in_place.step()
    in_place.step(is_read=False)  # in place there is nothing to copy
    assert in_place.marks == (0, 2)
    assert bytes(replica.memory.state.view()) == bytes(in_place.memory.state.view())


class Crossings(TorchDispatchMode):
    """Counts operations that write from the device into shared memory or the other way."""

    def __init__(self, memory: SharedMemory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self._spans = []
        for region in memory.regions():
            start = torch.frombuffer(region.memory, dtype=torch.uint8).data_ptr()
            self._spans.append((start, start + len(region.memory)))
        self.count = 0

    def _is_shared(self, tensor: torch.Tensor) -> bool:
        at = tensor.untyped_storage().data_ptr()
        return any(start <= at < end for start, end in self._spans)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        tensors = [a for a in args if isinstance(a, torch.Tensor) and a.numel()]
        if "copy_" in str(func) or "add_" in str(func):
            self.count += len({self._is_shared(t) for t in tensors}) > 1
        return func(*args, **(kwargs or {}))


def test_a_share_comes_home_in_one_copy_and_a_step_goes_out_in_one() -> None:
    replica = Lone()
    copies = replica.state.image.staging
    with Crossings(replica.memory) as crossings:
        before = copies.copies
        replica.share()
        assert (copies.copies - before, crossings.count) == (0, 0)
        replica.state.contribution()
        replica.state.contribution()  # nothing was added: nothing is copied
        assert (copies.copies - before, crossings.count) == (1, 1)
    before = copies.copies
    replica.step(is_read=False)
    assert copies.copies - before == 2  # the sum comes home, its mean goes out
    before = copies.copies
    replica.step(is_read=True)
    assert copies.copies - before == 3  # and the state


def test_staging_copies_in_pieces() -> None:
    staging = Staging(CPU, piece_bytes=64)
    source, target = torch.arange(50.0), torch.zeros(50)
    staging.copy(source, target)
    assert torch.equal(source, target)
    assert staging.copies == 4
    staging.copy(torch.zeros(0), torch.zeros(0))
    assert staging.copies == 4


def test_the_image_lies_on_the_device() -> None:
    layout = plan_layout([TensorSpec("a", "F32", (3,)), TensorSpec("b", "BF16", (2, 5))])
    memory = create_shared_memory(layout.size, 16, "float32")
    image = StateImage(layout, memory.state.memory, META)
    assert image.apart
    assert {tensor.device for tensor in image.views.values()} == {META}
    assert image.views["b"].shape == (2, 5)
    assert (image.holds(META), image.holds(CPU)) == (True, False)
    assert image.at_home("a").device == CPU
    assert device_of([torch.ones(1), torch.ones(1, device=META)]) == META


def test_what_never_changes_comes_home_once() -> None:
    specs = [TensorSpec("base", "F32", (64,)), TensorSpec("head", "F32", (64,))]
    layout = plan_layout(specs, {"base"})
    memory = create_shared_memory(layout.size, 16, "float32")
    image = StateImage(layout, memory.state.memory, CPU, apart=True)

    def brought_home(value: float, *, whole: bool = False) -> tuple[float, float]:
        for view in image.views.values():
            view.fill_(value)
        image.changed()
        image.bring_home({}, whole=whole)
        assert image.is_home
        return image.at_home("base")[0].item(), image.at_home("head")[0].item()

    assert brought_home(1.0) == (1.0, 1.0)
    assert brought_home(2.0) == (1.0, 2.0)
    assert brought_home(3.0, whole=True) == (3.0, 3.0)
    image.at_home("base").fill_(4.0)  # a pull brings another base
    image.take_over()
    assert image.views["base"][0] == 4.0
    assert brought_home(5.0) == (4.0, 5.0)


@pytest.mark.parametrize("kind", [*OPTIMIZERS, "adamw loaded"])
def test_slots_are_found_where_the_optimizer_has_them(kind: str) -> None:
    """On the meta device whatever is made elsewhere fails, except Adam's counter on the CPU."""
    name, _, loaded = kind.partition(" ")
    with META:
        model = nn.Linear(4, 3)
    optimizer = OPTIMIZERS[name](model.parameters())
    if loaded:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
    names = {parameter: n for n, parameter in model.named_parameters()}
    for slot in discover_slots(optimizer, names):
        assert slot.device == (CPU if slot.slot == "step" else META)
    for parameter in model.parameters():
        slots = trial_slots(optimizer.state.get(parameter, {}), parameter)
        assert all(v.device == (CPU if k == "step" else META) for k, v in slots.items())
        assert len(slots) == len(optimizer.state.get(parameter, {}))


def test_loaded_slots_of_another_shape_are_made_anew() -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.Adafactor(model.parameters(), lr=0.1)
    fresh = update_digest(optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    weight = model.weight
    assert optimizer.state[weight]["row_var"].shape != weight.shape
    assert trial_slots(optimizer.state[weight], weight) == {}
    assert update_digest(optimizer) == fresh


class FakeGenerator:
    """A device's generator: its state is the last seed."""

    def __init__(self) -> None:
        self.state = torch.zeros(1, dtype=torch.int64)

    def manual_seed(self, seed: int) -> None:
        self.state = torch.tensor([seed])

    def get_state(self) -> torch.Tensor:
        return self.state

    def set_state(self, state: torch.Tensor) -> None:
        self.state = state


@pytest.fixture
def generators(monkeypatch: pytest.MonkeyPatch) -> list[FakeGenerator]:
    """Two devices, the first of which is the current one."""
    made = [FakeGenerator(), FakeGenerator()]

    class Module:
        default_generators: tuple[FakeGenerator, ...] = ()

        @classmethod
        def init(cls) -> None:
            cls.default_generators = tuple(made)

    monkeypatch.setattr(torch, "get_device_module", lambda device: Module)
    return made


def test_the_streams_are_those_of_the_models_device(generators: list[FakeGenerator]) -> None:
    current, models = generators
    models.manual_seed(5)
    streams = RandomStreams(4, [CPU, torch.device("cuda:1"), torch.device("cuda:1")])
    streams.enter(1, 2)
    assert int(models.state) not in (0, 5)
    assert int(current.state) == 0
    first = int(models.state)
    streams.enter(1, 3)
    assert int(models.state) != first
    streams.leave()
    assert int(models.state) == 5


@pytest.mark.parametrize("waits", [False, True])
def test_losses_on_a_device_are_read_together_in_their_order(waits: bool) -> None:
    total = LossSum(waits=waits)
    for loss in (0.1, torch.tensor(0.2), torch.tensor([0.3], dtype=torch.float64)):
        total.add(loss)
    assert total.total() == 0.0 + 0.1 + float(torch.tensor(0.2)) + 0.3
    waiting = LossSum()
    waiting.add(torch.zeros((), device=META))
    with pytest.raises(UsageError, match="a single number"):
        waiting.add(torch.zeros(2, device=META))
    for wrong in ("much", torch.zeros(2), None):
        with pytest.raises(UsageError, match="a single number"):
            total.add(wrong)
    total.clear()
    assert total.total() == 0.0


def test_losses_of_several_devices_are_read_one_device_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[set[str]] = []
    stack = torch.stack

    def noted(tensors: list[torch.Tensor]) -> torch.Tensor:
        read.append({tensor.device.type for tensor in tensors})
        return stack(tensors)

    monkeypatch.setattr(torch, "stack", noted)
    total = LossSum(waits=True)
    for value in (1.0, 2.0):
        total.add(torch.tensor(value))
    total.add(torch.zeros((), device=META))  # stands for a second device
    assert read == [{"cpu"}]
    with pytest.raises(UsageError, match="one on the device meta has no value"):
        total.add(torch.tensor(8.0))
    for value in (8.0, 16.0):
        total.add(torch.tensor(value))
    assert total.total() == 27.0
    assert read == [{"cpu"}, {"cpu"}]
