"""A gradient scaler as part of the state: the same steps as without one, and the same scale."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.trainer import Trainer
from edgeagent.trainer.meta import decode_meta
from edgeagent.trainer.scaling import LossScale
from tests.unit.trainer.replicas import Points, Served, network, run_cluster

if TYPE_CHECKING:
    from collections.abc import Callable


def make(scaler: Callable[[], Any] | None) -> Any:
    def made() -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        options = {"global_batch": 40, "micro_batch": 8, "max_grad_norm": 0.5}
        return model, optimizer, {**options, "grad_scaler": scaler() if scaler else None}

    return made


def quick_scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=1024, growth_interval=3)


def loop(trainer: Trainer, model: nn.Module, dataset: Any) -> None:
    scaler = trainer._state.scaling._scaler
    for x, y in trainer.loader(dataset):
        loss = nn.functional.cross_entropy(model(x), y)
        (loss if scaler is None else scaler.scale(loss)).backward()
        trainer.update(loss)


def scale_of(meta: bytes) -> tuple[float, int]:
    state = decode_meta(meta).loss_scale
    assert state is not None
    return state["scale"], state["_growth_tracker"]


def test_scaled_training_takes_the_same_steps() -> None:
    cluster = {"join_at": {2: 4}}
    plain = run_cluster(make(None), 3, 9, cluster=cluster, loop=loop)
    scaled = run_cluster(make(quick_scaler), 3, 9, cluster=cluster, loop=loop)
    assert scaled.states == plain.states  # the scale is a power of two
    assert scaled.losses == plain.losses
    assert scale_of(scaled.metas[-1]) == (8192.0, 0)
    assert decode_meta(plain.metas[-1]).loss_scale is None


def test_the_scale_shrinks_where_a_step_is_skipped() -> None:
    cluster = {"poison": {1: float("inf"), 2: float("nan")}, "keep_states": True}
    served = run_cluster(make(quick_scaler), 2, 7, cluster=cluster, loop=loop)
    assert served.skipped == [1, 2]
    found = [scale_of(meta) for meta in served.metas]
    assert found == [(1024, 1), (512, 0), (256, 0), (256, 1), (256, 2), (512, 0), (512, 1)]


def test_it_grows_and_shrinks_as_gradscaler_does() -> None:
    def scaler() -> torch.amp.GradScaler:
        return torch.amp.GradScaler(
            "cpu", init_scale=2.0**125, growth_factor=3.0, backoff_factor=0.3, growth_interval=2
        )

    theirs, ours = scaler(), LossScale(scaler())
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    theirs.scale(torch.ones(()))
    for finite in (True, True, True, True, False, True, True, False, False, True, True, True):
        parameter.grad = torch.full((2,), 1.0 if finite else float("inf"))
        theirs.step(optimizer)
        theirs.update()
        ours.stepped(finite)
        assert ours.scale == theirs.get_scale()
        assert ours.state() == theirs.state_dict()


def refused(scaler: Any, told: Any, use: Callable[[Any, Any, torch.Tensor], None]) -> str:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    served = Served(3)
    trainer = Trainer(model, optimizer, 32, grad_scaler=told, _agent=served.agent)

    def run() -> None:
        for x, y in trainer.loader(Points()):
            loss = nn.functional.cross_entropy(model(x), y)
            use(scaler, optimizer, loss)
            trainer.update(loss)

    with pytest.raises(UsageError) as caught:
        run()
    trainer.close()
    return str(caught.value)


def only_scale(scaler: Any, optimizer: Any, loss: torch.Tensor) -> None:
    scaler.scale(loss).backward()


def unscale(scaler: Any, optimizer: Any, loss: torch.Tensor) -> None:
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)


def step(scaler: Any, optimizer: Any, loss: torch.Tensor) -> None:
    unscale(scaler, optimizer, loss)
    scaler.step(optimizer)


def set_scale(scaler: Any, optimizer: Any, loss: torch.Tensor) -> None:
    scaler.scale(loss).backward()
    scaler.update(7.0)


def no_scale(scaler: Any, optimizer: Any, loss: torch.Tensor) -> None:
    loss.backward()


def test_what_the_script_must_not_do_is_refused() -> None:
    unknown = quick_scaler()
    unknown.scale(torch.ones(()))  # before it matters
    assert "does not know" in refused(unknown, None, only_scale)
    assert "does not know" in refused(unknown, quick_scaler(), only_scale)
    for use, message in (
        (unscale, "called unscale_, step or update"),
        (set_scale, "called unscale_, step or update"),
        (step, r"the script called optimizer.step()"),
        (no_scale, "scaled no loss"),
    ):
        scaler = quick_scaler()
        assert message in refused(scaler, scaler, use)
    with pytest.raises(UsageError, match=r"is a int, not a torch\.amp\.GradScaler"):
        LossScale(3)


def test_a_scaler_that_is_off_is_none() -> None:
    off = LossScale(torch.amp.GradScaler("cpu", enabled=False))
    off.check()
    off.stepped(True)
    off.adopt(None)
    assert (off.state(), off.scale) == (None, 1.0)


@pytest.mark.parametrize(
    "change",
    [
        {"scale": 0.0},
        {"scale": float("inf")},
        {"scale": float("nan")},
        {"scale": "much"},
        {"growth_interval": True},
        {"more": 1},
    ],
)
def test_an_impossible_scale_is_not_adopted(change: dict[str, Any]) -> None:
    ours = LossScale(quick_scaler())
    state = ours.state()
    assert state is not None
    ours.fits(state)
    for other in (None, {**state, **change}, {"scale": 1.0}):
        with pytest.raises(EdgeAgentError):
            ours.fits(other)
    with pytest.raises(EdgeAgentError):
        LossScale(None).fits(state)
    ours.adopt({**state, "scale": 3.1, "_growth_tracker": 2})
    assert ours.scale == float(torch.tensor(3.1))
