"""Tensors beside the model: pulled, saved and hashed with it, changed on all replicas alike."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from edgeagent.config import RUN_VARIABLE, TrainerConfig, trainer_config_text
from edgeagent.errors import UsageError
from edgeagent.trainer import Trainer
from tests.unit.trainer.replicas import Points, Served, network, run_cluster, train

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def _collected() -> Iterator[None]:
    """Collect garbage after each test, so that the next trainer does not warn of old averages."""
    yield
    gc.collect()


def make(**options: Any) -> Callable[[], tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]]:
    def made() -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        return model, optimizer, {"global_batch": 40, "micro_batch": 8, **options}

    return made


def averaging(trainer: Trainer, model: nn.Module, dataset: Any) -> None:
    """An average of parameters and buffers, statistics in a dictionary, and a constant teacher."""
    average = AveragedModel(model, avg_fn=lambda old, new, _: 0.9 * old + 0.1 * new)
    statistics = {"norm": torch.zeros(3), "steps": torch.zeros((), dtype=torch.int64)}
    teacher = network()

    def note(trained: nn.Module) -> None:
        assert trained is model
        assert not torch.is_grad_enabled()
        norms = [float(p.norm()) for p in list(trained.parameters())[:3]]
        statistics["norm"] = statistics["norm"] * 0.5 + torch.tensor(norms)  # another tensor
        statistics["steps"].fill_(trainer.iteration)

    trainer.replicate("ema", average, update=average.update_parameters)
    trainer.replicate("statistics", statistics, update=note)
    trainer.replicate("teacher", teacher)
    norm = statistics["norm"]
    train(trainer, model, dataset)
    assert statistics["norm"] is norm
    assert int(statistics["steps"]) == int(average.n_averaged) + trainer.skipped == 9
    trained, averaged = model[0].weight, average.module[0].weight  # type: ignore[index]
    assert not torch.equal(trained, averaged)
    assert float((trained - averaged).abs().max()) < 0.1


def test_a_joiner_has_them_and_all_change_them_alike() -> None:
    served = run_cluster(make(), 3, 9, cluster={"join_at": {2: 5}}, loop=averaging)
    names = [name for name, _, _ in served.nodes[0].hello.tensors]
    assert "replicated.ema.module.0.weight" in names
    assert "replicated.ema.n_averaged" in names
    assert "replicated.statistics.norm" in names
    assert "replicated.teacher.4.bias" in names
    job = dict(served.nodes[0].hello.job)
    assert job["replicated ema"].endswith("updated by AveragedModel.update_parameters")
    assert job["replicated teacher"].endswith("tensors, never updated")


def test_a_mirrored_replica_equals_one_in_place() -> None:
    direct = run_cluster(make(), 2, 9, cluster={"join_at": {1: 4}}, loop=averaging)
    mirrored = run_cluster(make(_mirror=True), 2, 9, cluster={"join_at": {1: 4}}, loop=averaging)
    assert mirrored.states == direct.states
    assert mirrored.metas == direct.metas


def test_a_skipped_step_updates_nothing() -> None:
    poison = {"poison": {3: float("nan")}}
    served = run_cluster(make(), 2, 9, cluster=poison, loop=averaging_of_all_but_one)
    assert served.skipped == [3]


def averaging_of_all_but_one(trainer: Trainer, model: nn.Module, dataset: Any) -> None:
    average = AveragedModel(model)
    trainer.replicate("ema", average, update=average.update_parameters)
    train(trainer, model, dataset)
    assert int(average.n_averaged) == 8


@pytest.mark.filterwarnings("ignore:an AveragedModel is not part")  # the run before
@pytest.mark.usefixtures("_collected")
def test_they_are_saved_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(steps: int, save: str, resume: str = "") -> AveragedModel:
        config = TrainerConfig(save=save, resume=resume)
        monkeypatch.setenv(RUN_VARIABLE, trainer_config_text(config))
        model, optimizer, options = make()()
        served = Served(steps)
        trainer = Trainer(model, optimizer, **options, _agent=served.agent)
        average = AveragedModel(model)
        trainer.replicate("ema", average, update=average.update_parameters)
        train(trainer, model)
        trainer.close()
        served.done()
        return average

    path = str(tmp_path / "model.safetensors")
    run(4, save=path)
    resumed = run(9, resume=path, save=str(tmp_path / "resumed.safetensors"))
    straight = run(9, save=str(tmp_path / "straight.safetensors"))
    assert int(resumed.n_averaged) == int(straight.n_averaged) == 9
    files = [tmp_path / f"{name}.safetensors" for name in ("resumed", "straight")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_what_cannot_be_replicated_is_refused() -> None:
    model, optimizer, options = make()()
    trainer = Trainer(model, optimizer, **options)
    good = {"x": torch.zeros(2)}
    trainer.replicate("good", good)
    part = nn.Linear(2, 2)
    part.weight = model[0].weight  # type: ignore[index]
    for name, what, update, message in (
        ("", {}, None, "wants a name"),
        ("a\nb", {}, None, "wants a name"),
        ("good", {"y": torch.zeros(2)}, None, "called twice"),
        ("x", [torch.zeros(2)], None, "neither a module nor a dictionary"),
        ("x", {1: torch.zeros(2)}, None, "neither a module nor a dictionary"),
        ("x", {"y": 3}, None, "x.y is a int, not a tensor"),
        ("x", {"y": torch.zeros(2).to_sparse()}, None, "sparse"),
        ("x", {"y": torch.zeros(2, requires_grad=True) * 2}, None, "part of a computation"),
        ("x", {"y": torch.zeros(2, dtype=torch.complex64)}, None, "complex64"),
        ("x", part, None, "shares memory with the model"),
        ("x", good, None, "replicated already"),
        ("x", {"y": torch.zeros(2)}, "fast", "no function"),
    ):
        with pytest.raises(UsageError, match=message):
            trainer.replicate(name, what, update)  # type: ignore[arg-type]
    names = [spec.name for spec in trainer._state.layout.specs if "replicated" in spec.name]
    assert names == ["replicated.good.x"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(x=torch.zeros(3)), "left no tensor of the same shape"),
        (lambda d: d.update(x=0), "left no tensor of the same shape"),
        (lambda d: d.pop("x"), "left no tensor of the same shape"),
        (lambda d: setattr(d["x"], "data", torch.zeros(2)), "was moved"),
    ],
)
def test_an_update_keeps_shape_and_place(change: Any, message: str) -> None:
    model, optimizer, options = make()()
    served = Served(3)
    trainer = Trainer(model, optimizer, **options, _agent=served.agent)
    tensors = {"x": torch.zeros(2)}
    trainer.replicate("mine", tensors, update=lambda _: change(tensors))
    with pytest.raises(UsageError, match=message):
        train(trainer, model, Points())
    trainer.close()
    with pytest.raises(AssertionError, match="Finished"):
        served.done()


def test_the_script_itself_must_not_change_them() -> None:
    model, optimizer, options = make()()
    served = Served(3)
    trainer = Trainer(model, optimizer, **options, _agent=served.agent)
    tensors = {"x": torch.zeros(2)}
    trainer.replicate("mine", tensors, update=lambda _: tensors["x"].add_(1))
    iterator = trainer.loader(Points())
    x, y = next(iterator)
    nn.functional.cross_entropy(model(x), y).backward()
    tensors["x"].add_(1)
    with pytest.raises(UsageError, match=r"mine\.x was changed by the script"):
        trainer.update(1.0)
    with pytest.raises(UsageError, match=r"mine\.x was changed by the script"):
        trainer.close()
