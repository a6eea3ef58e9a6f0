"""`prepare()`: a loop in DDP's shape trains what the trainer's own loop does; misuse is named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

import edgeagent
from edgeagent.config import RUN_VARIABLE, TrainerConfig, trainer_config_text
from edgeagent.errors import UsageError
from edgeagent.trainer import Trainer, prepare
from edgeagent.trainer.dataloaders import loader_arguments
from edgeagent.trainer.prepared import EpochSchedule
from tests.unit.trainer.replicas import CLASSES, FEATURES, SAMPLES, Points, Served, network, train

MICRO, GLOBAL = 5, 20
EPOCH = SAMPLES // GLOBAL


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


class Endless(IterableDataset[int]):
    """A stream, of which nothing is read here."""

    def __iter__(self) -> Iterator[int]:
        return iter(())


class Points2(Points, torch.utils.data.Dataset[Any]):
    """As torch's own samplers want it."""


def batches(**options: Any) -> DataLoader[Any]:
    return DataLoader(Points2(), MICRO, **{"shuffle": True, **options})


def parts(**options: Any) -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, optimizer, {"global_batch": GLOBAL, "seed": 3, **options}


def loss_of(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(x), y)


def state_of(model: nn.Module) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in model.state_dict().values()]


def test_a_loop_like_ddps_trains_as_the_trainers_own() -> None:
    served = Served(3 * EPOCH)
    model, optimizer, options = parts(max_grad_norm=0.5)
    schedule = ExponentialLR(optimizer, 0.9)
    ours, stepper, loader, rates = prepare(
        model, optimizer, batches(), schedule, epochs=3, _agent=served.agent, **options
    )
    seen: list[int] = []
    for _ in range(3):
        for x, y in loader:
            stepper.zero_grad()
            loss_of(ours, x, y).backward()
            stepper.step()
            rates.step()
        seen.append(loader.trainer.iteration)
    assert loader.trainer.end_reason == "steps"  # awaited by the last epoch
    loader.trainer.close()
    cluster = served.done()
    assert len(loader) == EPOCH
    assert seen == [EPOCH, 2 * EPOCH, 3 * EPOCH]
    assert ours.module is model

    again = Served(3 * EPOCH)
    plain, optimizer, options = parts(max_grad_norm=0.5)
    trainer = Trainer(
        plain,
        optimizer,
        lr_scheduler=ExponentialLR(optimizer, 0.9),
        micro_batch=MICRO,
        _agent=again.agent,
        **options,
    )
    train(trainer, plain, Points2())
    trainer.close()
    assert again.done().losses == cluster.losses
    assert all(map(torch.equal, state_of(model), state_of(plain)))


def test_gradients_that_the_loop_drops_are_not_trained() -> None:
    found = []
    for tries_first in (False, True):
        served = Served(EPOCH)
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        options: dict[str, Any] = {"global_batch": GLOBAL, "seed": 3}
        ours, stepper, loader = prepare(
            model, optimizer, batches(), epochs=1, _agent=served.agent, **options
        )
        for x, y in loader:
            if tries_first:  # as for an adversarial sample
                loss_of(ours, 2 * x, y).backward()
                stepper.zero_grad()
            loss_of(ours, x, y).backward()
            stepper.step()
        loader.trainer.close()
        found.append((served.done().losses, [tensor.clone() for tensor in state_of(model)]))
    (losses, state), (again, other) = found
    assert losses == again
    assert all(map(torch.equal, state, other))


def test_between_two_epochs_nothing_is_under_way() -> None:
    """A device without a share does not take a batch of the next epoch before that begins."""
    served = Served(2 * EPOCH)
    model, optimizer, options = parts()
    ours, stepper, loader = prepare(
        model, optimizer, batches(), epochs=2, _agent=served.agent, **options
    )
    for _ in range(2):
        for x, y in loader:
            loss_of(ours, x, y).backward()
            stepper.step()
        torch.manual_seed(5)
        drawn = torch.rand(3)
        torch.manual_seed(5)
        assert torch.equal(drawn, torch.rand(3))
        assert loader.trainer._current is None
    loader.trainer.close()
    served.done()


def test_a_device_that_joins_in_a_later_epoch_counts_them_right() -> None:
    start = 2 * EPOCH + 3
    served = Served(4 * EPOCH)
    model, optimizer, options = parts()
    ours, stepper, loader = prepare(
        model, optimizer, batches(), epochs=4, _agent=served.agent, **options
    )
    loader.trainer._state.iteration = start  # as after a pull
    counts: list[int] = []
    for _ in range(4):
        counts.append(0)
        for x, y in loader:
            loss_of(ours, x, y).backward()
            stepper.step()
            counts[-1] += 1
    loader.trainer.close()
    served.done()
    each = GLOBAL // MICRO
    assert counts == [0, 0, (EPOCH - 3) * each, EPOCH * each]


def attempt(loop: Any, schedule: bool = False, scaler: Any = None, **options: Any) -> None:
    """Run `loop(model, optimizer, loader, ...)` for two epochs against a fake agent."""
    served = Served(2 * EPOCH)
    model, optimizer, settings = parts(**options)
    rates = ExponentialLR(optimizer, 0.9) if schedule else None
    prepared = prepare(
        model, optimizer, batches(), rates, scaler, epochs=2, _agent=served.agent, **settings
    )
    trainer = prepared[2].trainer
    try:
        loop(*prepared)
    finally:
        trainer._hang_up("")
        trainer._closed = True


def no_step(model: Any, optimizer: Any, loader: Any) -> None:
    for number, (x, y) in enumerate(loader, 1):
        (loss_of(model, x, y) / 4).backward()
        if number % 4 == 0:
            optimizer.step()


def no_backward(model: Any, optimizer: Any, loader: Any) -> None:
    for x, y in loader:
        loss_of(model, x, y)
        optimizer.step()


def clips(model: Any, optimizer: Any, loader: Any) -> None:
    for x, y in loader:
        loss_of(model, x, y).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def closure(model: Any, optimizer: Any, loader: Any) -> None:
    for x, y in loader:
        optimizer.step(lambda x=x, y=y: loss_of(model, x, y))


def drops(model: Any, optimizer: Any, loader: Any) -> None:
    for x, y in loader:
        loss_of(model, x, y).backward()
        optimizer.zero_grad()
        optimizer.step()


def no_sync(model: Any, optimizer: Any, loader: Any) -> None:
    for _ in loader:
        with model.no_sync():
            pass


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        (no_step, "optimizer.step.. was not called for the last batch"),
        (no_backward, "optimizer.step.. without loss.backward"),
        (drops, "optimizer.step.. without loss.backward"),
        (clips, "changed gradients between backward.. and optimizer.step"),
        (closure, "step.closure. evaluates the model by itself"),
        (no_sync, "no_sync.. accumulates gradients"),
    ],
)
def test_loops_that_cannot_be_had_are_named(loop: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        attempt(loop)


def test_a_schedule_is_stepped_when_prepare_was_told() -> None:
    def each_epoch(model: Any, optimizer: Any, loader: Any, schedule: Any) -> None:
        for x, y in loader:
            loss_of(model, x, y).backward()
            optimizer.step()
        schedule.step()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * 0.9)
        assert schedule.get_last_lr() == [pytest.approx(0.05 * 0.9)]

    def each_batch(model: Any, optimizer: Any, loader: Any, schedule: Any) -> None:
        for _ in loader:
            schedule.step()

    attempt(each_epoch, schedule=True, schedule_every="epoch")
    with pytest.raises(UsageError, match=r"once in each epoch.*schedule_every='epoch'"):
        attempt(each_epoch, schedule=True)
    with pytest.raises(UsageError, match=r"once in each iteration.*schedule_every='iteration'"):
        attempt(each_batch, schedule=True, schedule_every="epoch")


@pytest.mark.filterwarnings("ignore:Detected call of")
def test_the_state_of_an_epochs_schedule_goes_on_where_it_was() -> None:
    _, optimizer, _ = parts()
    one = EpochSchedule(ExponentialLR(optimizer, 0.5), 3)
    for _ in range(4):
        one.step()
    _, optimizer, _ = parts()
    other = EpochSchedule(ExponentialLR(optimizer, 0.5), 3)
    other.load_state_dict(one.state_dict())
    assert other.state_dict() == one.state_dict()
    other.step()
    assert other.schedule.last_epoch == 1
    other.step()
    assert other.schedule.last_epoch == 2


def test_a_scaler_scales_and_the_loss_is_the_unscaled_one() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    losses: list[float] = []

    def loop(model: Any, optimizer: Any, loader: Any, scaling: Any) -> None:
        for x, y in loader:
            loss = loss_of(model, x, y)
            scaling.scale(loss).backward()
            scaling.unscale_(optimizer)
            scaling.step(optimizer)
            scaling.update()
            losses.append(float(loss.detach()))
            if len(losses) == GLOBAL // MICRO:
                break
        assert loader.trainer.loss == pytest.approx(sum(losses) / len(losses))
        assert scaling.get_scale() == 2.0**10
        with pytest.raises(UsageError, match=r"that prepare.. has returned"):
            scaling.step(optimizer.optimizer)

    attempt(loop, scaler=scaler)


@pytest.mark.parametrize(
    ("loader", "options", "said"),
    [
        ([1, 2], {}, "the loader is a list"),
        (batches(generator=torch.Generator()), {}, "leave generator= away"),
        (batches(num_workers=1, timeout=3), {}, "timeout="),
        (DataLoader(Points2(), batch_size=None), {}, r"has no batch_size \(batch_sampler None\)"),
        (
            DataLoader(
                Points2(), batch_sampler=BatchSampler(SequentialSampler(range(9)), 3, False)
            ),
            {},
            r"has no batch_size \(batch_sampler BatchSampler\)",
        ),
        (batches(), {"global_batch": 12}, "global_batch is 12; it must be a multiple.* 5"),
        (batches(), {"epochs": 0}, "epochs is 0"),
        (batches(), {"epochs": 2, "steps": 3}, "not both"),
        (batches(), {"schedule_every": "day"}, "schedule_every is 'day'"),
        (DataLoader(Endless(), MICRO), {"epochs": 2}, "give the number of steps"),
    ],
)
def test_what_cannot_be_prepared_is_named(loader: Any, options: dict[str, Any], said: str) -> None:
    model, optimizer, settings = parts()
    with pytest.raises(UsageError, match=said):
        prepare(model, optimizer, loader, **{**settings, **options})


def test_a_schedule_that_follows_the_loss_cannot_be_stepped_once_an_epoch() -> None:
    model, optimizer, options = parts(schedule_every="epoch")
    with pytest.raises(UsageError, match="ReduceLROnPlateau"):
        prepare(model, optimizer, batches(), ReduceLROnPlateau(optimizer), **options)


def test_what_a_dataloader_was_told_is_taken_over() -> None:
    def order(sampler: Any) -> Any:
        return loader_arguments(DataLoader(Points2(), MICRO, sampler=sampler)).options["sampler"]

    assert loader_arguments(batches()).options["sampler"] is None
    assert type(loader_arguments(batches(shuffle=False)).options["sampler"]) is SequentialSampler
    assert order(DistributedSampler(Points2(), 1, 0)) is None
    kept: Any
    for kept in (
        DistributedSampler(Points2(), 1, 0, shuffle=False),
        DistributedSampler(Points2(), 2, 0),
        RandomSampler(Points2(), replacement=True),
        RandomSampler(Points2(), num_samples=7, replacement=True),
    ):
        assert order(kept) is kept
    options = loader_arguments(batches(num_workers=2, prefetch_factor=3, collate_fn=list)).options
    assert (options["workers"], options["prefetch"], options["collate_fn"]) == (2, 3, list)
    odd: Any = range(23)
    assert loader_arguments(DataLoader(odd, MICRO)).iterations(10) == 3
    assert loader_arguments(DataLoader(odd, MICRO, drop_last=True)).iterations(10) == 2


def test_what_edgeagent_run_was_told_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    told = TrainerConfig(global_batch=4 * GLOBAL, micro_batch=MICRO)
    monkeypatch.setenv(RUN_VARIABLE, trainer_config_text(told))
    model, optimizer, options = parts()
    _, _, loader = prepare(model, optimizer, batches(), epochs=2, **options)
    assert len(loader) == -(-SAMPLES // (4 * GLOBAL))
    assert loader.trainer.steps == 2 * len(loader)


def test_it_is_the_packages_own() -> None:
    assert edgeagent.prepare is prepare
