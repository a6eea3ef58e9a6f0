"""What a replica that takes local steps contributes, and what is in its state and what is not."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from edgeagent.errors import UsageError
from edgeagent.trainer.local_steps import LocalSteps
from edgeagent.trainer.state import TrainingState
from tests.unit.trainer.replica import RATE, Replica, begin, network, play, sgd


def test_the_state_holds_whole_rounds_alone_while_the_device_steps() -> None:
    one = Replica(model=network(norm=True), inner=sgd)
    before, start = one.held(), copy.deepcopy(one.model.state_dict())
    one.compute(0, 1, 2)
    own = copy.deepcopy(one.model.state_dict())
    assert not torch.equal(own["0.weight"], start["0.weight"])
    said = one.state.contribution()
    assert one.held() == before, "neither steps nor the contribution are in the state"
    offset = one.state.vector.gradient_offsets[list(one.state.parameters).index("0.weight")]
    moved = 3 * (start["0.weight"] - own["0.weight"]).reshape(-1)
    part = slice(offset, offset + moved.numel())
    np.testing.assert_allclose(one.contribution[part], moved.numpy(), rtol=1e-15)
    applied = one.apply([(one, said)])
    assert one.held() != before
    assert applied.loss == pytest.approx(said.loss_sum / 3)
    for name, value in one.model.state_dict().items():
        there = one.state.image.views[f"model.{name}"]
        assert torch.equal(value, there), "the next round begins there"


def test_a_contribution_that_the_agent_may_be_reading_is_not_written_again() -> None:
    one, other = Replica(), Replica()
    one.compute(0)
    one.state.contribution()
    one.contribution[:] = 7.0
    one.state.contribution()
    assert (one.contribution == 7.0).all()
    one.compute(5)
    assert one.state.contribution().micro_batches == (0, 5)
    other.compute(0, 5)
    other.state.contribution()
    layout, parameters = one.state.vector, one.state.parameters.values()
    for offset, parameter in zip(layout.gradient_offsets, parameters, strict=True):
        part = slice(offset, offset + parameter.numel())
        np.testing.assert_array_equal(one.contribution[part], other.contribution[part])


def test_work_that_is_taken_back_leaves_no_trace() -> None:
    """The agent has dealt to others what this device had computed: another turn."""
    one, fresh = Replica(), Replica()
    one.compute(0, 1, 2)
    one.state.contribution()
    one.state.start_iteration(1)
    assert not one.contribution.any()
    one.compute(2, 3)
    assert one.state.contribution().micro_batches == (2, 3)
    fresh.compute(2, 3)
    fresh.state.contribution()
    np.testing.assert_array_equal(one.contribution, fresh.contribution)


def test_a_new_turn_in_which_nothing_was_lost_keeps_the_optimizer_s_memory() -> None:
    one = Replica()
    one.compute(0, 1)
    play(one)
    one.state.start_iteration(1)
    assert all(int(one.inner.state[p]["step"]) == 2 for p in one.model.parameters())


def test_the_inner_optimizer_s_memory_is_no_part_of_the_state() -> None:
    first, second = Replica(), Replica()
    names = [spec.name for spec in first.state.layout.specs]
    assert [n for n in names if n.startswith("optimizer.")] == [
        f"optimizer.{name}.momentum_buffer" for name in sorted(first.state.parameters)
    ]
    for number in range(3):
        begin(first, second)
        first.compute(10 * number, 10 * number + 1, 10 * number + 2)
        second.compute(10 * number + 3)
        assert len({applied.meta for applied in play(first, second)}) == 1
        assert first.held() == second.held(), "whatever each of them has computed"
    joiner = Replica()
    joiner.compute(99)  # of a training that it gives up
    joiner.memory.state.view()[:] = first.memory.state.view()
    joiner.state.adopt(3, first.state.meta())
    assert not any(joiner.inner.state.get(p) for p in joiner.model.parameters())
    for mine, theirs in zip(joiner.model.parameters(), first.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert joiner.state.meta() == first.state.meta()
    begin(first, second, joiner)
    for number, replica in enumerate((first, second, joiner)):
        replica.compute(40 + number)
    assert len({applied.meta for applied in play(first, second, joiner)}) == 1
    assert first.held() == second.held() == joiner.held()


def test_a_round_that_is_not_finite_is_skipped_and_memories_begin_anew() -> None:
    one = Replica()
    before = one.held()
    one.compute(0, 1)
    assert play(one, poison=float("nan"))[0].skipped
    assert one.state.skipped == 1
    assert one.held() == before
    for name, parameter in one.model.named_parameters():
        assert torch.equal(parameter, one.state.parameters[name])
        assert not one.inner.state.get(parameter)


class Counting(torch.optim.SGD):
    """Counts its steps in its parameter groups, as schedule-free optimizers do."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch has overloads
        super().step(closure)
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1


class Prepared(torch.optim.SGD):
    """Needs in its steps what it has put into its memory when it was made."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=RATE)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["sum"] = torch.full_like(parameter, 0.1)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch has overloads
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["sum"] += 1


def test_optimizers_with_scalars_that_their_steps_change_are_refused() -> None:
    model = torch.nn.Linear(2, 2)
    counting = Counting(model.parameters(), lr=RATE)
    counting.param_groups[0]["k"] = 0
    with pytest.raises(UsageError, match="Counting, which counts 'k' in its parameter groups"):
        LocalSteps(model, counting)
    assert counting.param_groups[0]["k"] == 0


def test_an_empty_memory_is_that_which_the_optimizer_has_made() -> None:
    model = torch.nn.Linear(2, 2)
    inner = Prepared(model.parameters())
    steps = LocalSteps(model, inner)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        steps.step()
        assert all((inner.state[p]["sum"] > 1).all() for p in model.parameters())
        steps.begin_anew()
        assert all((inner.state[p]["sum"] == 0.1).all() for p in model.parameters())


def test_a_step_that_is_not_finite_is_left_out_here_alone() -> None:
    one = Replica()
    one.compute(0)
    once = copy.deepcopy(one.model.state_dict())
    one.compute(1, scale=float("inf"))
    assert torch.equal(one.model.state_dict()["0.weight"], once["0.weight"])
    assert one.state.contribution().micro_batches == (0, 1)


def test_an_average_beside_the_model_sees_the_shared_weights() -> None:
    seen: list[torch.Tensor] = []
    one = Replica(average=lambda model: seen.append(model.state_dict()["0.weight"].clone()))
    one.compute(0, 1)
    play(one)
    assert torch.equal(seen[0], one.state.image.views["model.0.weight"])


def test_rates_and_schedule_change_between_rounds_and_are_part_of_the_state() -> None:
    def factor(number: int) -> float:
        return 1.0 / (1 + number)

    one, joiner = Replica(factor=factor), Replica(factor=factor)
    for number in range(3):
        begin(one)
        one.compute(0, 1, 2)
        assert one.inner.param_groups[0]["lr"] == RATE / (1 + number)
        play(one)
    joiner.memory.state.view()[:] = one.memory.state.view()
    joiner.state.adopt(3, one.state.meta())
    assert joiner.inner.param_groups[0]["lr"] == RATE / 4


def test_a_rate_set_by_hand_reaches_devices_that_have_computed_nothing() -> None:
    one, idle = Replica(), Replica()
    one.inner.param_groups[0]["lr"] = 0.5 * RATE
    one.compute(0)
    said = [(one, one.state.contribution())]
    assert one.apply(said).meta == idle.apply(said).meta
    assert idle.inner.param_groups[0]["lr"] == 0.5 * RATE


def test_frozen_weights_and_those_without_a_gradient_stay() -> None:
    model = network()
    model.register_parameter("spare", nn.Parameter(torch.ones(3, dtype=torch.float64)))
    first = dict(model.named_parameters())["0.weight"].requires_grad_(False)
    frozen = first.detach().clone()
    one = Replica(model=model)
    for _ in range(2):
        begin(one)
        one.compute(0, 1)
        play(one)
    assert torch.equal(first, frozen)
    assert torch.equal(model.state_dict()["spare"], torch.ones(3, dtype=torch.float64))
    assert one.state.layout.specs[0].name == "model.0.weight", "which joiners need not copy"


def test_a_script_that_steps_or_changes_its_weights_itself_is_refused() -> None:
    one = Replica()
    with pytest.raises(UsageError, match=r"optimizer\.step"):
        one.inner.step()
    one.compute(0)
    with torch.no_grad():
        next(one.model.parameters()).add_(1.0)
    with pytest.raises(UsageError, match=r"0\.weight was changed by the script"):
        one.compute(1)


def test_a_round_begins_with_the_weights_that_the_script_gave_its_model_last() -> None:
    model = network()
    optimizer = sgd(model)
    local = LocalSteps(model, optimizer)
    with torch.no_grad():
        next(model.parameters()).fill_(0.25)  # after Trainer(), before the first loader()
    state = TrainingState(model, optimizer, local=local)
    memory = state.share()
    for name, value in model.named_parameters():
        assert torch.equal(state.image.views[f"model.{name}"], value)
    del memory


def test_who_ends_in_the_middle_of_a_round_has_the_shared_weights() -> None:
    one = Replica()
    one.compute(0, 1)
    one.state.end()
    for name, value in one.model.named_parameters():
        assert torch.equal(one.state.image.views[f"model.{name}"], value)
