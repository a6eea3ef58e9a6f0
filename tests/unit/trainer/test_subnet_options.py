"""The options of independent subnets: the smallest part, the period of the division, the average of
speeds, what they are checked for, and that they belong to the job."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from edgeagent.config import RUN_VARIABLE, TrainerConfig, trainer_config_text
from edgeagent.errors import UsageError
from edgeagent.trainer import Trainer
from edgeagent.trainer.subnets import fully_connected, residual
from edgeagent.trainer.subnets.options import SubnetOptions, subnet_options
from edgeagent.trainer.subnets.steps import SubnetSteps
from models.resnet import BasicBlock, ResNet
from tests.unit.trainer.replicas import Points, Served, network, run_cluster

CELLS = 16
PERIOD = 4
WIDE = 48  # units of the divided layer
Held = dict[str, list[int]]


def model_of(kind: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(2)
    if kind == "residual":
        net = ResNet(BasicBlock, (1, 1, 5, 1), 4, stem="cifar", width=4)
        return net, residual(net, net.get_submodule("layer3"))
    model = nn.Sequential(nn.Linear(6, WIDE), nn.ReLU(), nn.Linear(WIDE, 3))
    return model, fully_connected(model)


class Device:
    """A device that knows the number of a round and its cells, and nothing of other rounds."""

    def __init__(self, period: int = PERIOD, kind: str = "fully connected", seed: int = 5) -> None:
        model, division = model_of(kind)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.steps = SubnetSteps(
            model, optimizer, division, steps=1, cells=CELLS, seed=seed, period=period
        )

    def units(self, number: int, cells: range) -> frozenset[str]:
        """Return what is this device's own in round `number`, as names of tensors and rows."""
        self.steps.begin()
        self.steps.deal(number, list(cells))
        found: set[str] = set()
        for name, holding in self.steps._cut.holdings.items():
            if holding.is_own and name.endswith(".bias"):
                rows = holding.index[0].tolist() if holding.index else [0]
                found |= {f"{name} {row}" for row in rows}
        return frozenset(found)


# --- the period -----------------------------------------------------------------------------------


@pytest.mark.parametrize("period", [1, 2, 5])
def test_the_division_is_another_one_after_each_period_and_only_then(period: int) -> None:
    device = Device(period)
    units = [device.units(number, range(4)) for number in range(4 * period)]
    changes = [k for k, (a, b) in enumerate(itertools.pairwise(units), 1) if a != b]
    assert changes == [period, 2 * period, 3 * period]
    assert {len(u) for u in units} == {WIDE * 4 // CELLS}


def test_a_period_of_one_divides_as_it_was_done_without_periods() -> None:
    assert [Device(1).units(n, range(4)) for n in range(3)] == [
        Device(3).units(3 * n, range(4)) for n in range(3)
    ]


@pytest.mark.parametrize("kind", ["fully connected", "residual"])
def test_a_device_that_enters_in_the_middle_of_a_period_divides_as_the_others_do(kind: str) -> None:
    """Nothing of the rounds before is needed, neither after a join nor after `--resume`."""
    old = [Device(kind=kind), Device(kind=kind)]
    shares = [range(5), range(5, 9), range(9, CELLS)]
    for number in range(6):
        before = [d.units(number, cells) for d, cells in zip(old, shares, strict=False)]
    new = Device(kind=kind)
    for number in range(6, 9):
        now = [d.units(number, cells) for d, cells in zip([*old, new], shares, strict=True)]
        every = Device(kind=kind).units(number, range(CELLS))
        assert frozenset().union(*now) == every, "nothing is left out"
        assert sum(map(len, now)) == len(every), "and nothing is trained twice"
        assert (now[:2] == before) == (number < 8)


def test_within_a_period_a_device_keeps_what_its_new_share_allows() -> None:
    device = Device()
    small, large, moved = (device.units(4, cells) for cells in (range(6), range(9), range(2, 8)))
    assert small < large
    assert len(large - small) == 3 * WIDE // CELLS
    assert len(small & moved) == 4 * WIDE // CELLS
    assert device.units(5, range(6)) == small


def test_another_seed_divides_otherwise() -> None:
    assert Device(seed=1).units(0, range(4)) != Device(seed=2).units(0, range(4))


def test_the_optimizer_begins_each_round_of_a_period_anew() -> None:
    device = Device()
    for number in (0, 1):
        device.units(number, range(4))
        assert not device.steps._optimizer.state
        device.steps.net(torch.ones(2, 6)).sum().backward()
        device.steps._optimizer.param_groups[0]["momentum"] = 0.9
        device.steps.step()
        assert device.steps._optimizer.state


# --- the smallest part ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("minimum", "cells", "least"),
    [
        *[(0, 64, 0), (0.05, 64, 4), (0.25, 64, 16), (0.001, 64, 1), (1, 64, 64), (1, 7, 7)],
        *[(0.07, 100, 7), (0.1, 30, 3), (1 / 3, 63, 21), (0.29, 100, 29)],
    ],
)
def test_the_smallest_part_is_whole_cells_and_no_less(
    minimum: float, cells: int, least: int
) -> None:
    assert SubnetOptions(model_of("")[1], minimum=minimum).least_cells(cells) == least


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "values", "said"),
    [
        ("subnet_minimum", (-0.1, 1.01, float("nan"), float("inf"), "0.1", True), "from 0 to 1"),
        ("subnet_period", (0, -1, 1.0, True, "2", 1 << 62), "a number of rounds, 1 or more"),
        ("subnet_ewma", (0, -0.5, 1.5, float("nan"), True, [0.8]), "above 0 and at most 1"),
        ("subnet_scale", ("other", 1), "one of inverse, sqrt, none"),
    ],
)
def test_values_that_cannot_be_are_refused_in_one_line(
    option: str, values: tuple[Any, ...], said: str
) -> None:
    division = model_of("")[1]
    for value in values:
        with pytest.raises(UsageError, match=f"{option} is .*{said}") as caught:
            subnet_options(division, {option: value})
        assert "\n" not in str(caught.value)


def test_what_is_not_said_is_as_ever() -> None:
    division = model_of("")[1]
    names = ("subnet_scale", "subnet_minimum", "subnet_period", "subnet_ewma")
    found = subnet_options(division, dict.fromkeys(names))
    assert found == subnet_options(division, {}) == SubnetOptions(division)
    assert (found.scale, found.minimum, found.period, found.ewma) == ("inverse", 0.0, 1, 0.8)


def made(**options: Any) -> Any:
    """Return what makes a job with subnets."""

    def make() -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        settings: dict[str, Any] = {"global_batch": 16, "local_steps": 4}
        return model, optimizer, {**settings, "subnets": fully_connected(model), **options}

    return make


@pytest.mark.parametrize("option", ["subnet_scale", "subnet_minimum", "subnet_period"])
def test_options_of_subnets_without_subnets_are_refused(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = "none" if option == "subnet_scale" else 1
    model, optimizer, settings = made(subnets=None, **{option: value})()
    with pytest.raises(UsageError, match=f"{option} says how subnets are divided: give Trainer"):
        Trainer(model, optimizer, **settings)
    # Run as a whole, a script keeps its options of subnets; the command line has none then.
    model, optimizer, settings = made(**{option: value})()
    monkeypatch.setenv(RUN_VARIABLE, trainer_config_text(TrainerConfig(mode="whole")))
    assert Trainer(model, optimizer, **settings).model is model
    config = TrainerConfig(mode="whole", subnet_ewma=0.5)
    monkeypatch.setenv(RUN_VARIABLE, trainer_config_text(config))
    with pytest.raises(UsageError, match="subnet_ewma says how subnets are divided"):
        Trainer(model, optimizer, **settings)


# --- the job --------------------------------------------------------------------------------------


def cut_loop(trainer: Any, _model: nn.Module, dataset: Any) -> None:
    for x, y in trainer.loader(dataset):
        loss = nn.functional.cross_entropy(trainer.model(x), y)
        loss.backward()
        trainer.update(loss)


def told(**options: Any) -> Any:
    """Return what a trainer tells its agent."""
    served = Served(1)
    model, optimizer, settings = made(**options)()
    trainer = Trainer(model, optimizer, **settings, _agent=served.agent)
    cut_loop(trainer, model, Points())
    trainer.close()
    return served.done().nodes[0].hello


def test_the_fingerprint_and_the_agent_are_told_the_options() -> None:
    plain = told()
    assert (plain.least_share, plain.last_round_counts) == (0, 0.8)

    def differs(**options: Any) -> set[str]:
        ours, theirs = dict(plain.job), dict(told(**options).job)
        return {f for f in {**ours, **theirs} if ours.get(f) != theirs.get(f)}

    assert differs(subnet_minimum=0.25) == {"subnet minimum"}
    assert differs(subnet_period=3) == {"subnet period"}
    assert differs(subnet_ewma=0.5) == {"subnet ewma"}
    assert differs(subnet_scale="none") == {"subnets"}
    assert differs(subnet_minimum=0, subnet_period=1, subnet_ewma=0.8) == set()
    chosen = told(subnet_minimum=0.25, subnet_ewma=1)
    assert (chosen.least_share, chosen.last_round_counts) == (chosen.micro_batches // 4, 1.0)


def test_the_command_line_wins_over_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainerConfig(subnet_minimum=0.5, subnet_period=7, subnet_scale="sqrt")
    monkeypatch.setenv(RUN_VARIABLE, trainer_config_text(config))
    hello = told(subnet_minimum=0.25, subnet_period=2, subnet_ewma=0.3)
    assert dict(hello.job)["subnet minimum"] == "0.5"
    assert dict(hello.job)["subnet period"] == "7"
    assert dict(hello.job)["subnet ewma"] == "0.3"
    assert "scale sqrt" in dict(hello.job)["subnets"]
    assert hello.least_share == hello.micro_batches // 2


@pytest.mark.parametrize("period", [1, 5])
def test_replicas_stay_equal_and_learn_whatever_the_period_is(period: int) -> None:
    """The fake agents check after each round that all replicas have the same bytes. The third
    device joins in the middle of a period."""

    def shares(iteration: int, active: int) -> list[int]:
        return ([9, 55] if iteration < 10 else [30, 34]) if active == 2 else [9, 33, 22]

    how: dict[str, Any] = {"join_at": {2: 13}, "keep_states": True, "shares": shares}
    served = run_cluster(made(subnet_period=period), 3, 24, cluster=how, loop=cut_loop)
    assert np.mean(served.losses[-4:]) < 0.8 * np.mean(served.losses[:4])
    assert len(set(served.states)) == 24
