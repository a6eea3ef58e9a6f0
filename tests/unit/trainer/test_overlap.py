"""Gradients that leave during `backward()`: the same bits, and only from scripts that allow it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from edgeagent.errors import UsageError
from edgeagent.trainer import Trainer
from edgeagent.trainer.overlap import MOST_MESSAGES, WATCHED_SHARES
from tests.unit.trainer.replicas import FEATURES, Points, Served, network, run_cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.handover import ChunksReady
    from tests.unit.trainer.fake_agent import Node

WIDE = 64


class Layers(nn.Module):
    """Several layers; one is used twice, one never, and one has buffers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first = nn.Linear(FEATURES, WIDE)
        self.norm = nn.BatchNorm1d(WIDE)
        self.twice = nn.Linear(WIDE, WIDE)
        self.never = nn.Linear(WIDE, WIDE)
        self.last = nn.Linear(WIDE, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x)).relu()
        result: torch.Tensor = self.last(self.twice(self.twice(x).relu()))
        return result


def make_with(**options: Any) -> Any:
    def make() -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
        model = Layers()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        settings = {"global_batch": 40, "micro_batch": 8, "max_grad_norm": 0.5}
        return model, optimizer, {**settings, **options}

    return make


def test_the_last_layers_come_first_in_the_vector() -> None:
    model = Layers()
    state = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1))._state
    places = dict(zip(state._trainable.values(), state.vector.gradient_offsets, strict=True))
    assert sorted(places, key=lambda name: places[name]) == list(
        reversed([name for name, _ in model.named_parameters()])
    )


def test_gradients_leave_early_and_all_bits_stay() -> None:
    cluster: dict[str, Any] = {"join_at": {1: 3}, "poison": {6: float("nan")}}
    apart = run_cluster(make_with(), 2, 9, cluster=dict(cluster))
    early = run_cluster(make_with(overlap=True), 2, 9, cluster=dict(cluster))
    assert (early.states, early.metas) == (apart.states, apart.metas)
    assert not any(any(node.early) for node in apart.nodes)
    for node in early.nodes:
        seen = [len(said) for said in node.early]
        assert not any(seen[:WATCHED_SHARES]), "the script is watched first"
        assert 1 <= max(seen) <= MOST_MESSAGES + 1
    assert early.skipped == apart.skipped


def test_a_state_that_lies_elsewhere_does_not_stream() -> None:
    served = run_cluster(make_with(overlap=True, _mirror=True), 2, 6)
    assert not any(any(node.early) for node in served.nodes)


def served(steps: int, change: Callable[[Trainer, nn.Module, torch.Tensor], None]) -> Node:
    """Train in this process; `change` is what the script does after `backward()`."""
    service = Served(steps)
    model = Layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    options: dict[str, Any] = {"global_batch": 16, "micro_batch": 8, "_agent": service.agent}
    trainer = Trainer(model, optimizer, overlap=True, **options)
    try:
        for x, y in trainer.loader(Points()):
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward(retain_graph=True)
            change(trainer, model, loss)
            trainer.update(loss)
    finally:
        trainer.close()
    return service.done().nodes[0]


def clip(_: Trainer, model: nn.Module, __: torch.Tensor) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def scale(_: Trainer, model: nn.Module, __: torch.Tensor) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad = parameter.grad * 2


def again(_: Trainer, __: nn.Module, loss: torch.Tensor) -> None:
    loss.backward()


CHANGES = [clip, scale, again]


@pytest.mark.parametrize("change", CHANGES)
def test_a_script_that_changes_gradients_is_left_alone(change: Any) -> None:
    with pytest.warns(UserWarning, match="will not leave during backward"):
        node = served(6, change)
    assert not any(node.early)


@pytest.mark.parametrize("change", CHANGES)
def test_a_script_that_changes_gradients_later_is_refused(change: Any) -> None:
    def late(trainer: Trainer, model: nn.Module, loss: torch.Tensor) -> None:
        if trainer.iteration >= WATCHED_SHARES + 1:
            change(trainer, model, loss)

    # When it leaves, its stand-in for the agent checks that nothing of the spoilt sum is handed in.
    with pytest.raises(UsageError, match="on its way to other devices already"):
        served(9, late)


def test_a_backward_in_another_thread_does_not_stream() -> None:
    service = Served(6)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = Trainer(
        model, optimizer, global_batch=16, micro_batch=8, overlap=True, _agent=service.agent
    )
    for x, y in trainer.loader(Points()):
        loss = nn.functional.cross_entropy(model(x), y)
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        trainer.update(loss)
    trainer.close()
    assert not any(service.done().nodes[0].early)


def test_nothing_is_added_to_a_spoilt_sum() -> None:
    model = Layers()
    state = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), overlap=True)._state
    memory = state.share()
    said: list[ChunksReady] = []

    def micro_batch(number: int) -> None:
        state.start_micro_batch(number, said.append)
        model(torch.ones(2, FEATURES)).sum().backward()

    for number in range(WATCHED_SHARES):
        micro_batch(number)
        state.collect(number, 0.0)
    assert not said
    micro_batch(WATCHED_SHARES)
    assert said[0].micro_batches == tuple(range(WATCHED_SHARES + 1))
    with pytest.raises(UsageError, match="was given up"):
        micro_batch(WATCHED_SHARES + 1)
    assert state.contribution().micro_batches == ()
    assert not memory.contribution.array("float32").any()


def test_hooks_are_gone_at_the_end() -> None:
    models: list[nn.Module] = []
    served(3, lambda _, model, __: models.append(model))
    assert not any(p._post_accumulate_grad_hooks for p in models[0].parameters())
