"""Rounds of local steps, against DiLoCo and local SGD written with plain torch.

The reference has the workers' loops in one process, one after the other. It gets the samples of
each round from an ordinary trainer with the same seed, so these tests also show that local steps
change nothing of which samples a micro-batch has. Everything is float64, so that only another order
of additions and multiplications is between the two: a relative difference of 1e-12 is allowed.
"""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

from edgeagent.config import RUN_VARIABLE, TrainerConfig, trainer_config_text
from edgeagent.errors import UsageError
from edgeagent.trainer import Trainer, service
from edgeagent.trainer.options import resolve_options
from edgeagent.trainer.prepared import prepare
from tests.unit.trainer.replica import MICRO, RATE, adamw, network, sgd
from tests.unit.trainer.replicas import Points, Served, run_cluster, train

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.handover import Progressed
    from tests.unit.trainer.fake_agent import Cluster

GLOBAL = 16  # samples
H = 3
PER_ROUND = H * GLOBAL // MICRO  # micro-batches
TOLERANCE = 1e-12
Batch = tuple[torch.Tensor, torch.Tensor]


def points() -> Points:
    return Points(torch.float64)


def make_with(
    inner: Callable[[nn.Module], torch.optim.Optimizer], norm: bool = False, **options: Any
) -> Any:
    def make() -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
        model = network(norm)
        sizes = {"global_batch": GLOBAL, "micro_batch": MICRO, "local_steps": H}
        return model, inner(model), {**sizes, **options}

    return make


def samples(rounds: int) -> list[list[Batch]]:
    """Return the batch of each micro-batch of each round, as an ordinary trainer gets them."""
    model = network()
    served = Served(rounds)
    size = GLOBAL * H
    trainer = Trainer(model, sgd(model), size, micro_batch=MICRO, _agent=served.agent)
    found: list[list[Batch]] = [[] for _ in range(rounds)]
    for x, y in trainer.loader(points()):
        found[trainer.iteration].append((x.clone(), y.clone()))
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        trainer.update(loss)
    trainer.close()
    served.done()
    return found


class Reference:
    """The same training in one process: `workers` have their own model and optimizer."""

    def __init__(
        self,
        make: Any,
        outer: Callable[[list[torch.Tensor]], torch.optim.Optimizer],
        workers: int,
        clip: float | None = None,
    ) -> None:
        self.model, _, _ = make()
        self.make, self.clip = make, clip
        self.workers = [make()[:2] for _ in range(workers)]
        self.outer = outer(list(self.model.parameters()))
        self.losses: list[float] = []

    def round(self, batches: list[Batch], shares: list[int]) -> None:
        start = copy.deepcopy(self.model.state_dict())
        ends, at, losses = [], 0, []
        for (model, optimizer), share in zip(self.workers, shares, strict=True):
            model.load_state_dict(start)
            for x, y in batches[at : at + share]:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                if self.clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                losses.append(float(loss.detach()))
            at += share
            ends.append(copy.deepcopy(model.state_dict()))
        total = sum(shares)
        assert at == total == len(batches)
        for name, parameter in self.model.named_parameters():
            moved = [n * (start[name] - end[name]) for n, end in zip(shares, ends, strict=True)]
            parameter.grad = sum(moved) / total
        self.outer.step()
        for name, buffer in self.model.named_buffers():
            if buffer.dtype.is_floating_point:
                moved = [n * (end[name] - start[name]) for n, end in zip(shares, ends, strict=True)]
                buffer.add_(sum(moved) / total)
        self.losses.append(sum(losses) / total)


def tensors(served: Cluster, state: bytes | None = None) -> dict[str, np.ndarray]:
    """Return the float64 tensors of the state by name."""
    data = served.states[-1] if state is None else state
    hello = served.nodes[0].hello
    return {
        name: np.frombuffer(data[at : at + size], np.float64).reshape(shape)
        for (name, at, size), (kind, shape) in zip(hello.tensors, hello.shapes, strict=True)
        if kind == "F64"
    }


def check_equal(served: Cluster, reference: Reference) -> None:
    found = tensors(served)
    for name, value in reference.model.state_dict().items():
        if value.dtype.is_floating_point:
            np.testing.assert_allclose(
                found[f"model.{name}"], value.numpy(), rtol=TOLERANCE, atol=TOLERANCE
            )
    np.testing.assert_allclose(served.losses, reference.losses, rtol=1e-9)


def nesterov(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


def average(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


SHARES = {
    "two equal": [[6, 6]],
    "two unequal": [[9, 3], [4, 8], [12, 0]],
    "three unequal": [[7, 4, 1], [1, 1, 10], [4, 4, 4], [0, 3, 9]],
}


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize(
    ("inner", "outer", "reference", "clip"),
    [(adamw, "nesterov", nesterov, 0.3), (sgd, None, average, None)],
    ids=["DiLoCo", "local SGD"],
)
def test_equal_to_plain_torch(
    shares: str, inner: Any, outer: str | None, reference: Any, clip: float | None
) -> None:
    rounds, dealt = 6, SHARES[shares]
    make = make_with(inner, outer=outer, max_grad_norm=clip)
    served = run_cluster(
        make,
        len(dealt[0]),
        rounds,
        points,
        {"shares": lambda iteration, _: dealt[iteration % len(dealt)]},
    )
    one = Reference(make, reference, len(dealt[0]), clip)
    for number, batches in enumerate(samples(rounds)):
        one.round(batches, dealt[number % len(dealt)])
    check_equal(served, one)
    assert served.losses[-1] < served.losses[0]


def test_one_local_step_with_averaging_is_data_parallel_training() -> None:
    """With one micro-batch for each device the mean of the weights after a step of SGD is the
    weights after a step with the mean gradient."""

    def plain(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=RATE)

    local = run_cluster(make_with(plain, local_steps=1), 4, 8, points)
    ordinary = run_cluster(make_with(plain, local_steps=None), 4, 8, points)
    for name, value in tensors(ordinary).items():
        np.testing.assert_allclose(tensors(local)[name], value, rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_allclose(local.losses, ordinary.losses, rtol=1e-9)


def test_buffers_are_averaged_by_samples() -> None:
    rounds, shares = 4, [8, 4]
    make = make_with(sgd, norm=True, outer="nesterov")
    served = run_cluster(make, 2, rounds, points, {"shares": lambda *_: shares})
    one = Reference(make, nesterov, 2)
    for batches in samples(rounds):
        one.round(batches, shares)
    check_equal(served, one)


LEAVES_AT = 2  # round
LEAVES_AFTER = 5  # local steps of it


@pytest.mark.parametrize(("inner", "norm"), [(adamw, False), (sgd, True)])
def test_who_is_dealt_more_goes_on_as_if_it_had_had_it_at_once(inner: Any, norm: bool) -> None:
    """The second device hands back a part of its round; the first one computes that after its own
    contribution, and its weights go on from where they were."""
    rounds = 4
    make = make_with(inner, norm=norm, outer="nesterov")

    def shares(iteration: int, active: int) -> list[int]:
        return [6, 6] if active == 2 else [12]

    def loop(trainer: Trainer, model: nn.Module, dataset: Any) -> None:
        done = 0
        for x, y in trainer.loader(dataset):
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            stepped = trainer.update(loss)
            done = 0 if stepped else done + 1
            handed_first = trainer._state.micro_batches[:1] == (6,)
            if handed_first and trainer.iteration == LEAVES_AT and done == LEAVES_AFTER:
                break
        trainer.close()

    served = run_cluster(make, 2, rounds, points, {"shares": shares}, loop)
    one = Reference(make, nesterov, 2)
    for number, batches in enumerate(samples(rounds)):
        if number < LEAVES_AT:
            one.round(batches, [6, 6])
        elif number == LEAVES_AT:  # micro-batch 11 is the first device's seventh
            one.round([*batches[:6], batches[11], *batches[6:11]], [7, 5])
        else:
            one.round(batches, [12, 0])
    check_equal(served, one)


# Whole trainers.


def test_a_joiner_and_the_others_are_equal_byte_for_byte() -> None:
    make = make_with(sgd, outer="nesterov", norm=True)
    served = run_cluster(make, 3, 6, points, {"join_at": {2: 3}})
    assert len(served.states) == 1


def test_an_image_apart_from_the_shared_memory_gives_the_same_bits() -> None:
    make = make_with(adamw, outer="nesterov", norm=True)
    direct = run_cluster(make, 2, 5, points, {"join_at": {1: 3}})
    mirrored = run_cluster(
        make_with(adamw, outer="nesterov", norm=True, _mirror=True),
        2,
        5,
        points,
        {"join_at": {1: 3}},
    )
    assert mirrored.states == direct.states
    assert mirrored.metas == direct.metas


def test_after_the_end_the_model_has_the_shared_weights(tmp_path: Any) -> None:
    model = network(norm=True)
    served = Served(3, keep_states=True)
    trainer = Trainer(
        model, sgd(model), GLOBAL, micro_batch=MICRO, local_steps=H, _agent=served.agent
    )
    assert train(trainer, model, points()) == [pytest.approx(x) for x in served.cluster.losses]
    trainer.save(str(tmp_path / "end.safetensors"))
    trainer.close()
    found = tensors(served.done())
    for name, value in model.named_parameters():
        np.testing.assert_array_equal(found[f"model.{name}"], value.detach().numpy())
    with torch.no_grad():
        next(model.parameters()).zero_()  # the script may do that now


def test_a_device_goes_on_from_a_file_with_an_empty_memory_of_its_own(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "half.safetensors")
    ends = []
    for steps, resume in ((2, ""), (4, path)):
        config = TrainerConfig(save=path if not resume else "", resume=resume)
        monkeypatch.setenv(RUN_VARIABLE, trainer_config_text(config))
        model = network()
        served = Served(steps)
        options: dict[str, Any] = {"micro_batch": MICRO, "local_steps": H, "outer": "nesterov"}
        trainer = Trainer(model, adamw(model), GLOBAL, **options, _agent=served.agent)
        train(trainer, model, points())
        trainer.close()
        ends.append(served.done())
    monkeypatch.delenv(RUN_VARIABLE)
    make = make_with(adamw, outer="nesterov")
    one = Reference(make, nesterov, 1)
    for number, batches in enumerate(samples(4)):
        if number == 2:
            one.workers = [make()[:2]]  # with a fresh optimizer; the outer one goes on
        one.round(batches, [PER_ROUND])
    one.losses = one.losses[2:]
    check_equal(ends[1], one)


def progress_of(local_steps: int | None) -> list[Progressed]:
    """Train two rounds; return what the agent was told within them."""
    model = network()
    served = Served(2)
    size = GLOBAL if local_steps else GLOBAL * H
    options: dict[str, Any] = {"micro_batch": MICRO, "local_steps": local_steps}
    trainer = Trainer(model, adamw(model), size, **options, _agent=served.agent)
    train(trainer, model, points())
    trainer.close()
    return served.done().nodes[0].progress


@pytest.mark.parametrize(("local_steps", "tells"), [(H, True), (None, False)])
def test_a_long_round_is_told_of_while_it_lasts(
    local_steps: int | None, tells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "TELL_EVERY_S", 0.0)
    said = progress_of(local_steps)
    counted = [(p.iteration, p.micro_batches, p.share, round(PER_ROUND * p.part, 9)) for p in said]
    each = [(number, 1, PER_ROUND, k) for number in range(2) for k in range(1, PER_ROUND)]
    assert counted == (each if tells else []), "the last one is told by the contribution"
    for before, now in pairwise(said):
        assert now.iteration > before.iteration or now.compute_seconds > before.compute_seconds


@pytest.mark.parametrize(("worth", "tells"), [(0.0, True), (1e9, False)])
def test_half_of_a_round_is_told_even_if_that_was_soon(
    worth: float, tells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "TELL_EVERY_S", 1e9)
    monkeypatch.setattr(service, "WORTH_TELLING_S", worth)
    said = [(p.iteration, p.micro_batches, p.part) for p in progress_of(H)]
    half = PER_ROUND // 2
    assert said == ([(number, half, 0.5) for number in range(2)] if tells else [])


# What cannot be had, and what two devices must agree on.


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"local_steps": 0}, "local_steps is 0"),
        ({"local_steps": -1}, "local_steps is -1"),
        ({"local_steps": 2.5}, "local_steps is 2.5"),
        ({"local_steps": 10**6}, "take fewer local_steps"),
        ({"outer": "nesterov", "local_steps": None}, "give local_steps, too"),
        ({"outer": "adam"}, "outer is 'adam'"),
        ({"outer": lambda _: None}, "made a NoneType"),
        ({"outer": lambda p: torch.optim.SGD(p[1:], lr=1.0)}, "of other parameters"),
        ({"outer": lambda p: torch.optim.LBFGS(p)}, "LBFGS"),
        ({"grad_scaler": torch.amp.GradScaler("cpu")}, "grad_scaler"),
        ({"_caller": "prepare()"}, "not for prepare()"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(options: dict[str, Any], said: str) -> None:
    model = network()
    settings = {"micro_batch": MICRO, "local_steps": H, **options}
    with pytest.raises(UsageError, match=said.replace("(", r"\(").replace(")", r"\)")):
        Trainer(model, adamw(model), GLOBAL, **settings)


def test_prepare_is_refused_if_run_asks_for_local_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainerConfig(local_steps=5, outer="average")
    monkeypatch.setenv(RUN_VARIABLE, trainer_config_text(config))
    model = network()
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 1)), 4)
    with pytest.raises(UsageError, match=r"not for prepare\(\)"):
        prepare(model, adamw(model), batches, global_batch=8, epochs=1)


@pytest.mark.parametrize(("batch", "step"), [(256, 64), (30, 10), (25, 5), (14, 7), (7, 7)])
def test_a_local_step_has_a_quarter_of_the_global_batch_by_default(batch: int, step: int) -> None:
    found = resolve_options({}, batch, None, 1, 0, None, None, local_steps=5)
    assert (found.micro_batch, found.round_batch) == (step, 5 * batch)


def fields(**options: Any) -> dict[str, str]:
    """Return the fingerprint of a job."""
    model = network()
    served = Served(1)
    settings = {"micro_batch": MICRO, "local_steps": H, "outer": "nesterov", **options}
    inner = settings.pop("inner", adamw)
    trainer = Trainer(model, inner(model), GLOBAL, **settings, _agent=served.agent)
    train(trainer, model, points())
    trainer.close()
    return dict(served.done().nodes[0].hello.job)


def test_the_fingerprint_has_both_optimizers_and_the_steps() -> None:
    ours = fields()
    assert ours["optimizer"] == "AdamW"
    assert ours["outer optimizer"] == "SGD"
    assert ours["local steps"] == str(H)

    def differs(**options: Any) -> set[str]:
        theirs = fields(**options)
        return {f for f in {**ours, **theirs} if ours.get(f) != theirs.get(f)}

    assert "local steps" in differs(local_steps=2)
    assert {"outer optimizer group 0", "update"} <= differs(outer="average")
    assert "outer optimizer group 0" in differs(outer=lambda p: torch.optim.SGD(p, lr=0.7))
    rate = differs(inner=lambda m: torch.optim.AdamW(m.parameters(), lr=0.1))
    assert rate == {"optimizer group 0"}, "how the inner optimizer rounds is each device's matter"
    assert {"local steps", "outer optimizer"} <= differs(local_steps=None, outer=None)
