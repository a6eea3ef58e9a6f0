"""Independent subnets: what is cut out of a model, trained on each device, and put together."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from edgeagent.errors import UsageError
from edgeagent.planner.work_cost import WorkCost
from edgeagent.trainer import Trainer
from edgeagent.trainer.buffers import ModelBuffers
from edgeagent.trainer.gradients import GradientSum, plan_vector
from edgeagent.trainer.subnets import (
    Division,
    fully_connected,
    hidden,
    residual,
    transformer,
)
from edgeagent.trainer.subnets.cells import CELLS_VERSION, units_of
from edgeagent.trainer.subnets.cut_model import CutModel
from edgeagent.trainer.subnets.layers import Layer, Piece
from edgeagent.trainer.subnets.steps import SubnetSteps
from models.gpt2 import GPT2, SMALL, TINY
from models.resnet import BasicBlock, ResNet
from tests.unit.trainer.replicas import network, run_cluster

CELLS = 16


def perceptron() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(6, 40),
        nn.BatchNorm1d(40),
        nn.ReLU(),
        nn.Linear(40, 32),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(32, 4),
    )


def resnet() -> ResNet:
    return ResNet(BasicBlock, (1, 1, 5, 1), 4, stem="cifar", width=4)


def encoder() -> nn.Module:
    return nn.Sequential(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True))


@dataclass
class Kind:
    """A model, what of it is divided, and samples for it."""

    model: nn.Module
    division: Division
    inputs: torch.Tensor

    def loss(self, net: nn.Module) -> torch.Tensor:
        out: torch.Tensor = net(self.inputs).square().mean()
        return out


def kind(name: str) -> Kind:
    torch.manual_seed(3)
    if name == "fully connected":
        model: nn.Module = perceptron()
        return Kind(model, fully_connected(model), torch.randn(8, 6))
    if name == "residual":
        model = resnet()
        return Kind(model, residual(model, model.get_submodule("layer3")), torch.randn(4, 3, 8, 8))
    if name == "gpt2":
        model = GPT2(TINY)
        return Kind(model, transformer(model), torch.randint(0, 200, (2, 12)))
    model = encoder()
    return Kind(model, transformer(model), torch.randn(2, 5, 16))


KINDS = ("fully connected", "residual", "gpt2", "encoder")


@pytest.mark.parametrize("size", [1, 3, 16, 17, 512])
def test_cells_divide_a_layer_whatever_the_shares_are(size: int) -> None:
    for seed in range(40):
        generator = random.Random(seed)
        shares: list[list[int]] = [[], [], []]
        for cell in range(CELLS):
            generator.choice(shares).append(cell)
        parts = [units_of(share, CELLS, size, seed, 7, "x") for share in shares]
        assert sorted(np.concatenate(parts).tolist()) == list(range(size))
        if size % CELLS == 0:
            assert [len(part) for part in parts] == [len(s) * size // CELLS for s in shares]


def test_units_are_dealt_out_as_by_all_devices_of_this_version() -> None:
    """If this fails, `CELLS_VERSION` has to grow."""
    assert CELLS_VERSION == 2
    assert units_of(range(8), 32, 12, 3, 7, "layer").tolist() == [0, 1, 3]


def test_of_few_units_each_device_has_its_share_on_average() -> None:
    cells, rounds, size = 64, 400, 5
    shares = (30, 15, 12, 7)
    ends = np.cumsum(shares)
    for share, end in zip(shares, ends, strict=True):
        mine = range(end - share, end)
        had = [len(units_of(mine, cells, size, 3, number, "x")) for number in range(rounds)]
        exact = size * share / cells
        assert {int(exact), int(exact) + 1} == set(had)
        assert sum(had) / rounds == pytest.approx(exact, abs=0.1)


def test_each_round_and_layer_has_another_order() -> None:
    orders = {
        tuple(units_of(range(4), CELLS, 64, seed, number, layer).tolist())
        for seed in (0, 1)
        for number in range(5)
        for layer in ("a", "b")
    }
    assert len(orders) == 20


class Device:
    """One device of a round, and what it adds to the sum."""

    def __init__(self, of: Kind, rate: float = 0.05) -> None:
        self.of = of
        self.optimizer = torch.optim.SGD(of.model.parameters(), lr=rate, momentum=0.9)
        self.steps = SubnetSteps(
            of.model, self.optimizer, of.division, steps=3, cells=CELLS, seed=5, max_grad_norm=1.0
        )
        self.buffers = ModelBuffers(of.model)
        trainable = [p for p in self.steps.parameters.values() if p.requires_grad]
        sizes = [p.numel() for p in trainable]
        self.layout = plan_vector(sizes, self.buffers.sizes(), torch.float32)
        self.vector = torch.zeros(self.layout.elements)
        names = list(self.steps.parameters)
        self.sum = GradientSum(self.layout, self.vector, trainable, names)
        shared = {n: t.clone() for n, t in self.buffers.tensors().items()}
        self.buffers.attach(shared, self.layout, self.vector)

    def train(self, number: int, cells: list[int]) -> list[int]:
        taken = self.steps.deal(number, cells)
        for _ in taken:
            self.of.loss(self.steps.net).backward()
            self.steps.step()
        self.steps.contribute(self.sum, self.buffers, 0)
        return taken

    def own(self) -> dict[str, torch.Tensor]:
        return {n: self.steps._cut.own(n).detach().clone() for n in self.steps._cut.holdings}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_every_number_gets_exactly_what_its_device_made_of_it(name: str, seed: int) -> None:
    """Three devices with random shares, one of which may be lost: its numbers keep their values."""
    generator = random.Random(seed)
    shares: list[list[int]] = [[0], [1], [2]]
    for cell in range(3, CELLS):
        generator.choice(shares).append(cell)
    lost = generator.choice([None, 0, 1, 2])
    of = kind(name)
    before = {n: t.detach().clone() for n, t in all_tensors(of.model).items()}
    devices = [Device(of) for _ in shares]
    total = torch.zeros_like(devices[0].vector)
    expected = {n: t.clone() for n, t in before.items()}
    common: dict[str, list[tuple[int, torch.Tensor]]] = {}
    for number, (device, cells) in enumerate(zip(devices, shares, strict=True)):
        device.train(seed, cells)
        if number == lost:
            continue
        total += device.vector
        for tensor, own in device.own().items():
            holding = device.steps._cut.holdings[tensor]
            if not before[tensor].is_floating_point():
                continue
            if not holding.is_own:
                common.setdefault(tensor, []).append((len(cells), own))
            elif holding.index:
                expected[tensor][holding.index] = own
            else:
                expected[tensor] = own
    for tensor, values in common.items():
        change = sum(weight * (own - before[tensor]) for weight, own in values)
        expected[tensor] = before[tensor] + change / CELLS
    changed = 0
    mean = total / CELLS
    device = devices[0]
    names = [n for n, p in device.steps.parameters.items() if p.requires_grad]
    places = list(zip(names, device.layout.gradient_offsets, strict=True))
    found = {
        n: before[n] - mean[at:][: before[n].numel()].view(before[n].shape) for n, at in places
    }
    averaged = device.buffers.averaged_names()
    for n, at in zip(averaged, device.layout.buffer_offsets, strict=True):
        found[n] = before[n] + mean[at:][: before[n].numel()].view(before[n].shape)
    for tensor, value in found.items():
        assert torch.allclose(value, expected[tensor], rtol=0, atol=2e-6), tensor
        untouched = expected[tensor] == before[tensor]
        assert torch.equal(value[untouched], before[tensor][untouched]), tensor
        changed += int((~untouched).sum())
    assert changed > 100


def all_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@pytest.mark.parametrize("name", KINDS)
def test_the_subnet_of_all_cells_is_the_model(name: str) -> None:
    of = kind(name)
    cut = CutModel(of.model, of.division)
    sizes = {layer.name: layer.units for layer in of.division.layers}
    sizes |= {chain.name: len(chain.modules) for chain in of.division.blocks}
    every = {n: units_of(range(CELLS), CELLS, size, 0, 0, n) for n, size in sizes.items()}
    half = {n: units_of(range(CELLS // 2), CELLS, size, 0, 0, n) for n, size in sizes.items()}
    of.model.eval()
    cut.net.eval()
    whole = of.model(of.inputs)
    cut.become(half)
    assert not torch.equal(cut.net(of.inputs), whole)
    numbers = sum(cut.own(n).numel() for n in cut.holdings)
    assert numbers < sum(t.numel() for t in all_tensors(of.model).values())
    cut.become(every)
    assert torch.equal(cut.net(of.inputs), whole)


def test_what_a_divided_layer_gives_has_the_same_size() -> None:
    model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    x = torch.ones(1, 4)
    sums = model(x) - 0.5  # of a quarter of the units: a quarter of them
    for scale, part in (("inverse", 1.0), ("sqrt", 0.5), ("none", 0.25)):
        expected = sums * part + 0.5
        cut = CutModel(model, fully_connected(model), scale)
        cut.become({"0": np.arange(16)})
        assert torch.allclose(cut.net(x), expected)


def test_cells_that_come_later_count_and_are_not_trained() -> None:
    device = Device(kind("fully connected"))
    assert device.train(0, [4, 5]) == [12, 13, 14], "the steps of the first cell"
    before = device.vector.clone()
    assert device.steps.progress == device.steps.trained == 2
    assert device.train(0, [9]) == []
    assert device.steps.trained == 2, "the time was that of two"
    assert device.steps.done == [4, 5, 9]
    assert device.steps.progress == 3
    assert torch.equal(device.vector, before)
    assert device.steps.loss_of(6.0) == pytest.approx(6.0), "its mean loss for each of its cells"
    device.steps.begin()
    assert device.steps.done == []
    assert device.steps.loss_of(0.0) == 0.0
    assert device.train(1, []) == []
    assert device.train(1, [2, 3]) == [], "it had no work, so these are another device's"
    assert device.steps.done == [2, 3]
    assert device.steps.trained == 0
    device.steps.last_loss = 1.5
    assert device.steps.loss_of(0.0) == 3.0, "as in the last round, since it has none of its own"


def test_cells_without_any_unit_count_as_done() -> None:
    layers = (nn.Linear(6, 2, bias=False), nn.Tanh(), nn.Linear(2, 3, bias=False))
    model = nn.Sequential(*layers)
    empty = next(c for c in range(CELLS) if not len(units_of([c], CELLS, 2, 5, 0, "0")))
    device = Device(Kind(model, fully_connected(model), torch.randn(8, 6)))
    assert device.train(0, [empty]) == []
    assert device.steps.done == [empty]
    assert not device.vector.any()


def test_the_subnet_is_there_to_be_trained() -> None:
    of = kind("fully connected")
    of.model.eval()
    assert all(module.training for module in Device(of).steps.net.modules())


def test_a_device_that_leaves_before_its_first_step_has_computed_nothing() -> None:
    device = Device(kind("fully connected"))
    device.steps.deal(0, [1, 2])
    assert device.steps.done == []
    device.steps.contribute(device.sum, device.buffers, 0)
    assert not device.vector.any()


def test_the_optimizer_of_a_round_has_the_settings_of_the_script_s_and_no_memory() -> None:
    device = Device(kind("fully connected"))
    device.train(0, [0])
    device.optimizer.param_groups[0]["lr"] = 0.25
    device.steps.begin()
    device.steps.deal(1, [3])
    made = device.steps._optimizer
    assert made.param_groups[0]["lr"] == 0.25
    assert made.param_groups[0]["momentum"] == 0.9
    assert not made.state


def test_a_loop_that_trains_the_whole_model_is_told_so() -> None:
    device = Device(kind("fully connected"))
    device.steps.deal(0, [0])
    device.of.loss(device.of.model).backward()
    with pytest.raises(UsageError, match="must use trainer"):
        device.steps.step()


def test_a_step_that_is_not_finite_is_left_out() -> None:
    device = Device(kind("fully connected"))
    device.steps.deal(0, [0])
    before = device.own()
    (device.of.loss(device.steps.net) * float("inf")).backward()
    assert device.steps.step()
    assert all(
        torch.equal(before[n], t)
        for n, t in device.own().items()
        if "running" not in n and "num_" not in n
    )


class Stubborn(torch.optim.SGD):
    """Takes more than its parameters."""

    def __init__(self, params: Any, horizon: int) -> None:
        super().__init__(params, lr=0.1 / horizon)


def test_an_optimizer_that_cannot_be_made_anew_is_refused() -> None:
    of = kind("fully connected")
    with pytest.raises(UsageError, match="does not take alone"):
        SubnetSteps(
            of.model,
            Stubborn(of.model.parameters(), 3),
            of.division,
            steps=3,
            cells=CELLS,
            seed=0,
        )


def test_what_cannot_be_divided_is_named() -> None:
    model = perceptron()
    wrong: list[tuple[Any, str]] = [
        (lambda: fully_connected(nn.Linear(3, 3)), "no nn.Sequential with a hidden layer"),
        (lambda: transformer(model), "no transformer blocks"),
        (lambda: residual(model, nn.Sequential()), "in model"),
        (lambda: hidden(model, ["9"], ["4"]), "has no 9"),
        (lambda: hidden(model, ["1"], ["2"]), "is a BatchNorm1d"),
        (lambda: hidden(model, ["1"], ["4"], between=["3"]), "is no BatchNorm1d"),
        (lambda: hidden(model, ["1", "4"], ["7"]), "not layers of one width"),
        (lambda: fully_connected(model) + fully_connected(model), "divided twice"),
        (lambda: Division().check(model), "nothing"),
        (lambda: piece("8.weight", 0), "has no 8.weight"),
        (lambda: piece("1.bias", 1), "has no 1.bias"),
        (lambda: piece("1.weight", 1), "6 long"),
    ]
    for make, error in wrong:
        with pytest.raises(UsageError, match=error):
            make()
    tied = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    tied[2].weight = tied[0].weight
    with pytest.raises(UsageError, match="another name"):
        fully_connected(tied).check(tied)
    block = nn.Linear(8, 8)
    twice = nn.Sequential(nn.Sequential(block, nn.Linear(8, 8), block))
    with pytest.raises(UsageError, match="can be left out without the other"):
        residual(twice, twice.get_submodule("0")).check(twice)
    both = Division((Layer("a", 40, 1, (Piece("1.weight", 0), Piece("1.weight", 0)), ()),))
    with pytest.raises(UsageError, match="divided twice"):
        both.check(model)
    net = resnet()
    inside = Layer("x", 4, 1, (Piece("layer3.1.conv1.weight", 0),), ())
    deep = residual(net, net.get_submodule("layer3"))
    with pytest.raises(UsageError, match="can be left out"):
        (deep + Division((inside_of(net, inside),))).check(net)


def inside_of(net: nn.Module, layer: Layer) -> Layer:
    length = dict(net.named_parameters())[layer.pieces[0].tensor].shape[0]
    return Layer(layer.name, length, 1, layer.pieces, ())


def piece(tensor: str, dim: int) -> None:
    Division((Layer("a", 40, 1, (Piece(tensor, dim),), ()),)).check(perceptron())


def test_what_a_part_costs_follows_from_the_shapes() -> None:
    wide = nn.Sequential(
        nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
    )
    narrow = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 64))
    assert fully_connected(wide).cost(wide) == WorkCost(0.0, 64 / 66)
    assert fully_connected(narrow).cost(narrow) == WorkCost()
    around = nn.Sequential(nn.Embedding(1000, 64), narrow, nn.Linear(64, 16))
    assert fully_connected(around).cost(around) == WorkCost(0.5, 0.0)  # one as large is divided
    nothing = nn.Sequential(nn.Linear(2, 2))
    assert Division((), ()).cost(nothing) == WorkCost()
    net = resnet()
    # How much convolutions cost is not known before a step, so nothing is taken for fixed.
    assert residual(net, net.get_submodule("layer3")).cost(net) == WorkCost()


def make(**options: Any) -> Any:
    """Return what makes a job with subnets of a net with batch norm."""

    def made() -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
        torch.manual_seed(1)
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 12)
        settings: dict[str, Any] = {"global_batch": 16, "local_steps": 4, "max_grad_norm": 1.0}
        settings |= {"subnets": fully_connected(model), "lr_scheduler": schedule}
        return model, optimizer, {**settings, **options}

    return made


def cut_loop(trainer: Any, model: nn.Module, dataset: Any) -> None:
    """A loop as a script has it."""
    steps = 0
    for x, y in trainer.loader(dataset):
        assert x.shape[0] == 16
        loss = nn.functional.cross_entropy(trainer.model(x), y)
        loss.backward()
        steps += 1
        if trainer.update(loss):
            assert steps == 4
            steps = 0


def test_replicas_stay_equal_and_learn_while_devices_come_and_go() -> None:
    """The fake agents check after each round that all replicas have the same bytes."""
    how: dict[str, Any] = {"join_at": {2: 5}, "keep_states": True}
    served = run_cluster(make(), 3, 24, cluster=how, loop=cut_loop)
    assert np.mean(served.losses[-4:]) < 0.8 * np.mean(served.losses[:4])
    assert len(set(served.states)) == 24
    apart = run_cluster(make(_mirror=True), 3, 24, cluster=how, loop=cut_loop)
    assert apart.states == served.states


def test_an_evaluation_between_rounds_does_not_get_into_the_statistics() -> None:
    """As `update_bn(model)`, or one that forgets `model.eval()`."""

    def careless(trainer: Any, model: nn.Module, dataset: Any) -> None:
        for x, y in trainer.loader(dataset):
            loss = nn.functional.cross_entropy(trainer.model(x), y)
            loss.backward()
            if trainer.update(loss):
                with torch.no_grad():
                    model(100 * x)

    how = {"keep_states": True}
    served = [run_cluster(make(), 2, 6, cluster=how, loop=loop) for loop in (cut_loop, careless)]
    assert served[0].states == served[1].states


def test_shares_need_not_be_even() -> None:
    def shares(iteration: int, active: int) -> list[int]:
        return [[1, 30, 33], [62, 1, 1], [0, 64, 0]][iteration % 3]

    served = run_cluster(make(), 3, 6, cluster={"shares": shares}, loop=cut_loop)
    assert len(served.losses) == 6


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"micro_batch": 8}, "leave micro_batch away"),
        ({"outer": "nesterov"}, "leave outer away"),
        ({"local_steps": None}, "give local_steps"),
        ({"subnets": "all"}, "takes what edgeagent.subnets"),
        ({"wire": "exact"}, "wire exact does not go with local_steps"),
        ({"grad_scaler": torch.amp.GradScaler("cpu")}, "grad_scaler"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], error: str) -> None:
    model, optimizer, settings = make(**options)()
    with pytest.raises(UsageError, match=error):
        Trainer(model, optimizer, **settings)


def test_a_stream_is_refused() -> None:
    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter([])

    model, optimizer, settings = make()()
    with pytest.raises(UsageError, match="by number"):
        Trainer(model, optimizer, **settings).loader(Stream())


def test_without_subnets_the_model_of_the_loop_is_the_whole_one() -> None:
    model, optimizer, settings = make(subnets=None, local_steps=None)()
    assert Trainer(model, optimizer, **settings).model is model


def test_a_layer_of_which_a_device_has_no_unit_is_borrowed_and_not_changed() -> None:
    layers = (nn.Linear(6, 2), nn.BatchNorm1d(2), nn.Tanh(), nn.Linear(2, 3))
    model = nn.Sequential(*layers)
    of = Kind(model, fully_connected(model), torch.randn(8, 6))
    before = {n: t.clone() for n, t in all_tensors(model).items()}
    empty = next(c for c in range(CELLS) if not len(units_of([c], CELLS, 2, 5, 0, "0")))
    device = Device(of)
    device.train(0, [empty])
    assert set(device.steps._cut.holdings) == {"3.bias", "1.num_batches_tracked"}
    at = device.layout.gradient_offsets[list(device.steps.parameters).index("3.bias")]
    assert device.vector[at : at + 3].abs().sum() > 0
    device.vector[at : at + 3] = 0
    assert not device.vector.any()
    assert all(torch.equal(before[n], t) for n, t in all_tensors(model).items())


def test_what_is_divided_is_told_in_short_and_tells_divisions_apart() -> None:
    """It is a field of the job's fingerprint, whose length has a limit."""
    with torch.device("meta"):
        large = transformer(GPT2(SMALL))
    assert len(repr(large)) > 4096 > len(str(large))
    assert str(large).startswith("24 layers (")
    net = resnet()
    two = residual(net, net.get_submodule("layer3")), residual(net, net.get_submodule("layer3"))
    assert str(two[0]) == str(two[1])
    assert str(two[0]).startswith("4 blocks of layer3 (")
    others = (fully_connected(perceptron()), hidden(perceptron(), ["4"], ["7"]))
    assert len({str(d) for d in (large, two[0], *others)}) == 4
