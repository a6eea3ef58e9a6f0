"""Changes of the state that the trainer does not make are refused by name; allowed ones are not."""

from __future__ import annotations

import gc
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.shared_memory import create_shared_memory
from edgeagent.trainer import Trainer
from edgeagent.trainer.state import TrainingState
from tests.unit.trainer.replicas import Points, Served, network, run_cluster, train

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Change = Callable[[nn.Module, torch.optim.Optimizer, Any], object]


@pytest.fixture
def _collected() -> Iterator[None]:
    """Collect garbage after each test, so that the next trainer does not warn of old averages."""
    yield
    gc.collect()


def attached(mirror: bool = False) -> tuple[nn.Module, torch.optim.Optimizer, Any, TrainingState]:
    """Return a model, its optimizer and schedule, and their state after a first step."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    state = TrainingState(model, optimizer, schedule, mirror=mirror)
    state.attach(create_shared_memory(state.layout.size, state.vector.elements, "float32"))
    with state.guards.own_change():
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    state._slots.rehome()
    state._note()
    state.guards.script_ran()
    return model, optimizer, schedule, state


def first(model: nn.Module) -> nn.Linear:
    layer = model[0]  # type: ignore[index]
    assert isinstance(layer, nn.Linear)
    return layer


def in_place(model: nn.Module, *_: Any) -> None:
    with torch.no_grad():
        first(model).weight.mul_(0.5)


def replace_parameter(model: nn.Module, *_: Any) -> None:
    first(model).weight = nn.Parameter(first(model).weight.detach().clone())


def grow(model: nn.Module, optimizer: torch.optim.Optimizer, _: Any) -> None:
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})


def grow_a_group(model: nn.Module, optimizer: torch.optim.Optimizer, _: Any) -> None:
    optimizer.param_groups[0]["params"].append(nn.Parameter(torch.ones(2)))


def share_a_group(model: nn.Module, optimizer: torch.optim.Optimizer, _: Any) -> None:
    model.add_module("more", nn.Linear(2, 2))
    optimizer.add_param_group({"params": list(model.get_submodule("more").parameters())})


def replace_module(model: nn.Module, *_: Any) -> None:
    model[4] = nn.Linear(24, 4)  # type: ignore[operator]  # it is a Sequential


def remove_module(model: nn.Module, *_: Any) -> None:
    del model[4]  # type: ignore[operator]  # it is a Sequential


def write_memory(model: nn.Module, optimizer: torch.optim.Optimizer, _: Any) -> None:
    optimizer.state[first(model).weight]["exp_avg"].zero_()


def drop_memory(model: nn.Module, optimizer: torch.optim.Optimizer, _: Any) -> None:
    optimizer.state[first(model).weight].clear()


def clear_memory(model: nn.Module, optimizer: torch.optim.Optimizer, _: Any) -> None:
    optimizer.state.clear()


CHANGES: dict[str, tuple[Change, str]] = {
    "in place": (in_place, "0.weight was changed by the script"),
    "load_state_dict": (lambda m, o, s: m.load_state_dict(m.state_dict()), "was changed"),
    "init": (lambda m, o, s: nn.init.zeros_(first(m).bias), "0.bias was changed"),
    "to": (lambda m, o, s: m.to(torch.float64), "was moved"),
    "data =": (lambda m, o, s: setattr(first(m).weight, "data", torch.ones(24, 12)), "was moved"),
    "replaced": (replace_parameter, "0.weight was replaced"),
    "parametrized": (
        lambda m, o, s: nn.utils.parametrizations.weight_norm(first(m)),
        "0.weight was replaced",
    ),
    "optimizer loaded": (lambda m, o, s: o.load_state_dict(o.state_dict()), "load_state_dict"),
    "group added": (grow, "add_param_group"),
    "group grown": (grow_a_group, "add_param_group"),
    "group shared": (share_a_group, r"add_param_group\(\)\); new: more.weight, more.bias:"),
    "group shrunk": (lambda m, o, s: o.param_groups[0]["params"].pop(), "groups were changed"),
    "module added": (
        lambda m, o, s: m.add_module("more", nn.Sequential(nn.ReLU(), nn.Linear(2, 2))),
        "parameter more.1.weight was added",
    ),
    "module replaced": (replace_module, "parameter 4.weight was added"),
    "module removed": (remove_module, "parameter 4.weight is no longer in"),
    "parameter added": (
        lambda m, o, s: m.register_parameter("scale", nn.Parameter(torch.ones(1))),
        "parameter scale was added",
    ),
    "memory written": (write_memory, "the optimizer's memory"),
    "memory dropped": (drop_memory, "the optimizer's memory"),
    "memory cleared": (clear_memory, "the optimizer's memory"),
    "schedule stepped": (lambda m, o, s: s.step(), "stepped or changed the lr_scheduler"),
    "schedule changed": (lambda m, o, s: s.base_lrs.append(1.0), "the lr_scheduler"),
    "stepped": (lambda m, o, s: o.step(), "called optimizer.step"),
}


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_refused_by_name(what: str, mirror: bool) -> None:
    model, optimizer, schedule, state = attached(mirror)
    state.guards.check()
    state.guards.script_ran()
    change, message = CHANGES[what]

    def run() -> None:
        change(model, optimizer, schedule)
        state.guards.check()

    with pytest.raises(UsageError, match=message):
        run()


def test_frozen_parameters_may_come_and_go_but_not_be_trained_later() -> None:
    model, _, _, state = attached(False)
    judge = nn.Linear(2, 2).requires_grad_(False)
    model.add_module("judge", judge)
    state.guards.script_ran()
    state.guards.check()
    del model._modules["judge"]
    state.guards.script_ran()
    state.guards.check()
    model.add_module("judge", judge)
    state.guards.script_ran()
    state.guards.check()
    judge.requires_grad_(True)
    state.guards.script_ran()
    with pytest.raises(UsageError, match=r"parameter judge\.weight was added"):
        state.guards.check()


COMPOSITION = [name for name in CHANGES if name.split()[0] in ("group", "module", "parameter")]


@pytest.mark.parametrize("local_steps", [None, 2])
@pytest.mark.parametrize("what", COMPOSITION)
def test_what_comes_or_goes_before_the_first_loader_is_refused(
    what: str, local_steps: int | None
) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    trainer = Trainer(model, optimizer, 32, local_steps=local_steps)
    change, message = CHANGES[what]
    change(model, optimizer, None)
    with pytest.raises(UsageError, match=message):
        trainer.loader(Points())


class Whole(torch.optim.SGD):
    """Has memory that belongs to no parameter; `where` says in which place."""

    where = ""
    after = 0
    total: torch.Tensor

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if self.where == "state":
            self.state["all"] = {"n": 1}  # type: ignore[index]  # no key that torch would use
        elif self.where == "attribute":
            self.after += 1
        elif self.where == "tensor":
            self.total.add_(1)
        super().step(closure)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("state", "Whole keeps 'all' in its state, which belongs to no parameter"),
        ("attribute", "each step of Whole changes its attribute 'after'"),
        ("tensor", "each step of Whole changes its attribute 'total'"),
        ("inner", "Whole has another optimizer in its attribute 'inner', SGD"),
    ],
)
def test_memory_of_no_parameter_is_refused_by_name(where: str, said: str) -> None:
    model = network()
    optimizer: Any = Whole(model.parameters(), lr=0.1)
    optimizer.where = where
    if where == "inner":
        optimizer.inner = torch.optim.SGD(model.parameters(), lr=0.1)
    if where == "tensor":
        optimizer.total = torch.zeros(2)
    with pytest.raises(UsageError, match=said):
        Trainer(model, optimizer, 32)


def test_memory_of_no_parameter_that_comes_later_is_refused() -> None:
    _, optimizer, _, state = attached()
    state._slots.rehome()
    optimizer.state["all"] = {"n": 1}  # type: ignore[index]
    with pytest.raises(UsageError, match="AdamW keeps 'all' in its state"):
        state._slots.rehome()


@pytest.mark.parametrize(
    "change",
    [lambda p: p.data.mul_(0.5), lambda p: p.detach().numpy().fill(3), lambda p: p.data.clamp_(0)],
)
def test_writes_that_count_no_version_are_found(change: Callable[[torch.Tensor], Any]) -> None:
    model, _, _, state = attached()
    change(first(model).weight)
    with pytest.raises(UsageError, match=r"through \.data or numpy"):
        state.guards.check()


def test_what_a_script_may_do_is_no_change() -> None:
    model, optimizer, schedule, state = attached()
    x = torch.randn(8, 12)
    model.train()
    with torch.autocast("cpu"):
        model(x).sum().backward()  # batch norm changes its buffers
    model.eval()
    with torch.no_grad():
        model(x)
    optimizer.zero_grad()
    model.state_dict(), optimizer.state_dict(), schedule.get_last_lr(), repr(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    first(model).weight.requires_grad_(True)
    model.add_module("nothing", nn.Identity())
    state.guards.check()
    state.guards.script_ran()
    del model[3:4]  # type: ignore[operator]  # a dropout, which has no parameters
    state.guards.check()


def test_before_joining_and_after_the_end_the_script_is_free() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    served = Served(2)
    trainer = Trainer(model, optimizer, 32, _agent=served.agent)
    first(model).weight.grad = torch.ones(24, 12)
    optimizer.step()
    model.load_state_dict(model.state_dict())
    optimizer.param_groups[0]["lr"] = 0.05
    train(trainer, model)
    in_place(model)
    first(model).weight.grad = torch.ones(24, 12)
    optimizer.step()
    trainer.close()
    served.done()


def test_a_change_between_two_micro_batches_is_found_when_others_finish() -> None:
    model, _, _, state = attached()
    state.guards.check()
    in_place(model)
    state.guards.check()  # nothing has called the trainer since: the script has not run
    state.guards.script_ran()
    with pytest.raises(UsageError, match="was changed"):
        state.contribution()


class Weighted(nn.Module):
    """Weight norm, tied weights and a spectral norm that changes its buffers in forward()."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.one = nn.utils.parametrizations.weight_norm(nn.Linear(12, 12))
        self.two = nn.utils.parametrizations.spectral_norm(nn.Linear(12, 12))
        self.head = nn.Linear(12, 4)
        self.again = self.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.again(self.two(torch.tanh(self.one(x))))
        return output


def test_parametrizations_and_tied_modules_train() -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
        model = Weighted()
        return model, torch.optim.SGD(model.parameters(), lr=0.05), {"global_batch": 40}

    served = run_cluster(make, 2, 6, cluster={"join_at": {1: 3}})
    assert served.losses[-1] < served.losses[0]


def loop_without(trainer: Trainer, model: nn.Module, lose: Callable[[nn.Module], Any]) -> None:
    for x, y in trainer.loader(Points()):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        lose(model)
        trainer.update(loss)


def test_a_loop_without_gradients_is_warned_and_then_ended() -> None:
    model = network()
    served = Served(9)
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), 32, _agent=served.agent)
    with (
        pytest.warns(UserWarning, match=r"no parameter had a gradient") as caught,
        pytest.raises(UsageError, match=r"in 3 iterations in a row .* loss.backward\(\) missing"),
    ):
        loop_without(trainer, model, lambda m: m.zero_grad())
    assert len(caught) == 1
    assert caught[0].filename == __file__  # the script's line
    assert trainer.iteration == 2
    trainer.close()
    served.done()


def test_micro_batches_without_gradients_are_no_habit() -> None:
    model = network()
    served = Served(8)
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), 32, _agent=served.agent)
    with pytest.warns(UserWarning, match="no parameter had a gradient"):
        loop_without(
            trainer, model, lambda m: m.zero_grad() if trainer.iteration % 3 else m.train()
        )
    trainer.close()
    served.done()


def test_gradients_that_are_all_zero_are_worth_a_warning() -> None:
    model = network()
    served = Served(4)
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), 32, _agent=served.agent)
    with pytest.warns(UserWarning, match="exactly 0") as caught:
        loop_without(trainer, model, lambda m: m.zero_grad(set_to_none=False))
    assert len(caught) == 1
    trainer.close()
    served.done()


def test_half_precision_that_cannot_be_stepped_is_refused() -> None:
    model = network(torch.float16)
    with pytest.raises(UsageError, match=r"eps=1e-08 is 0 in float16, so choose a larger one"):
        Trainer(model, torch.optim.AdamW(model.parameters()))
    Trainer(model, torch.optim.AdamW(model.parameters(), eps=1e-4))
    with pytest.raises(UsageError, match="keep the parameters in float32"):
        Trainer(model, torch.optim.RMSprop(model.parameters(), lr=1e6))


@pytest.mark.usefixtures("_collected")
def test_an_undeclared_average_is_worth_one_warning() -> None:
    model = network()
    average = torch.optim.swa_utils.AveragedModel(model)
    served = Served(3)
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), 32, _agent=served.agent)
    with pytest.warns(UserWarning, match="an AveragedModel is not part") as caught:
        train(trainer, model)
    assert len(caught) == 1
    trainer.close()
    served.done()
    del average


@pytest.mark.usefixtures("_collected")
def test_a_declared_average_is_not() -> None:
    model = network()
    average = torch.optim.swa_utils.AveragedModel(model)
    served = Served(3)
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), 32, _agent=served.agent)
    trainer.replicate("ema", average, update=average.update_parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(trainer, model)
    assert average.n_averaged == 3
    with pytest.raises(EdgeAgentError, match="before the first loader"):
        trainer.replicate("late", {})
    trainer.close()
    served.done()
