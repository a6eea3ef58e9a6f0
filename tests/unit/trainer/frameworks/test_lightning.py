"""`EdgeStrategy`: Lightning's loop trains what the trainer's own does; refusals by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau
from torch.utils.data import DataLoader

from edgeagent.errors import UsageError
from edgeagent.lightning import EdgeStrategy
from edgeagent.trainer import Trainer
from tests.unit.trainer.replicas import SAMPLES, Points, Served, network

pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec"),
    pytest.mark.filterwarnings("ignore:.*litlogger"),
]
GLOBAL, MICRO = 20, 5
EPOCH = SAMPLES // GLOBAL


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


SCALING = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))


class Data(Points, torch.utils.data.Dataset[Any]):
    """As torch's DataLoader wants it."""


class Module(lightning.LightningModule):  # type: ignore[misc]  # seen as Any: not followed by mypy
    """The network of the tests; `interval` None is no schedule."""

    def __init__(self, interval: str | None = "step", how: str = "") -> None:
        super().__init__()
        self.net = network()
        self.interval = interval
        self.how = how
        self.automatic_optimization = how != "manual"
        self.epochs: list[int] = []
        self.counts: list[int] = []

    def training_step(self, batch: Any, _number: int) -> torch.Tensor | None:
        self.counts.append(self.trainer.global_step)
        x, y = batch
        return None if self.how == "no loss" else nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch: Any, _number: int) -> None:
        pass

    def on_train_epoch_end(self) -> None:
        self.epochs.append(self.trainer.global_step)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        if self.how == "plateau":
            schedule: Any = ReduceLROnPlateau(optimizer)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "x"}}
        if self.how == "estimated":
            steps = self.trainer.estimated_stepping_batches
            return [optimizer], [torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=steps)]
        if self.interval is None:
            return optimizer
        schedule = ExponentialLR(optimizer, 0.9)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": self.interval},
        }


def fit(
    module: Module, folder: Path, strategy: Any, validate: bool = False, **options: Any
) -> lightning.Trainer:
    quiet = {"enable_progress_bar": False, "enable_checkpointing": False, "logger": False}
    trainer = lightning.Trainer(
        strategy=strategy,
        default_root_dir=str(folder),
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **quiet,
        **options,
    )
    data = DataLoader(Data(), MICRO, shuffle=True)
    trainer.fit(module, data, DataLoader(Data(), MICRO) if validate else None)
    return trainer


def plain(steps: int, each: int) -> list[float]:
    """The losses of a loop of one's own, with a schedule that is stepped every `each` updates."""
    served = Served(steps)
    model = Module()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    trainer = Trainer(model, optimizer, GLOBAL, None, 0.5, MICRO, seed=3, _agent=served.agent)
    for x, y in trainer.loader(Data()):
        loss = nn.functional.cross_entropy(model.net(x), y)
        loss.backward()
        optimizer.param_groups[0]["lr"] = 0.05 * 0.9 ** (trainer.iteration // each)
        trainer.update(loss)
    trainer.close()
    return served.done().losses


@pytest.mark.parametrize(
    ("interval", "each", "limits"),
    [("step", 1, {"max_epochs": 2}), ("epoch", EPOCH, {"max_steps": 2 * EPOCH})],
)
def test_it_trains_what_a_loop_of_ones_own_does(
    tmp_path: Path, interval: str, each: int, limits: dict[str, Any]
) -> None:
    served = Served(2 * EPOCH)
    strategy = EdgeStrategy(GLOBAL, seed=3, _agent=served.agent)
    module = Module(interval)
    trainer = fit(module, tmp_path, strategy, gradient_clip_val=0.5, **limits)
    edge = strategy.edge
    assert edge is not None
    edge.close()
    assert served.done().losses == pytest.approx(plain(2 * EPOCH, each), rel=1e-6)
    assert edge.end_reason == "steps"
    assert trainer.global_step == edge.iteration == 2 * EPOCH
    assert module.counts == [k // (GLOBAL // MICRO) for k in range(2 * SAMPLES // MICRO)]
    assert module.epochs[0] == EPOCH


def test_an_end_before_lightnings_last_step_ends_the_fit(tmp_path: Path) -> None:
    served = Served(3)
    strategy = EdgeStrategy(GLOBAL, _agent=served.agent)
    trainer = fit(Module(None), tmp_path, strategy, max_steps=1000)
    assert trainer.global_step == 3
    assert strategy.edge is not None
    strategy.edge.close()
    served.done()


@pytest.mark.parametrize(
    ("how", "options", "said"),
    [
        ("manual", {}, "automatic_optimization=False"),
        ("plateau", {}, "one schedule"),
        ("", {"accumulate_grad_batches": 2}, "accumulate_grad_batches is the trainer's"),
        ("", {"gradient_clip_val": 1.0, "gradient_clip_algorithm": "value"}, "use 'norm'"),
        ("", {"limit_train_batches": 3}, "limit_train_batches"),
        ("", {"limit_train_batches": 1}, "limit_train_batches"),
        ("estimated", {"max_epochs": 2}, "estimated_stepping_batches is not known"),
        ("", {"overfit_batches": 3}, "overfit_batches"),
        ("", {"validate": True}, "validation within fit"),
        ("", {"plugins": [SCALING]}, "'16-mixed' scales on one device"),
    ],
)
def test_what_cannot_be_had_is_named(
    tmp_path: Path, how: str, options: dict[str, Any], said: str
) -> None:
    module = Module(None, how)
    with pytest.raises(UsageError, match=said):
        fit(module, tmp_path, EdgeStrategy(GLOBAL), max_steps=5, **options)


@pytest.mark.parametrize(
    "hook", ["configure_gradient_clipping", "on_before_optimizer_step", "lr_scheduler_step"]
)
def test_hooks_that_would_not_be_called_are_named(tmp_path: Path, hook: str) -> None:
    module = type("Own", (Module,), {hook: lambda self, *_: None})(None)
    with pytest.raises(UsageError, match=rf"{hook}\(\) of Own would not be called"):
        fit(module, tmp_path, EdgeStrategy(GLOBAL), max_steps=5)


def test_a_step_without_a_loss_is_named(tmp_path: Path) -> None:
    served = Served(3)
    strategy = EdgeStrategy(GLOBAL, _agent=served.agent)
    with pytest.raises(UsageError, match="returned no loss"):
        fit(Module(None, "no loss"), tmp_path, strategy, max_steps=5)
    assert strategy.edge is not None
    strategy.edge._hang_up("")
    strategy.edge._closed = True


def test_lightnings_own_checkpoints_are_not_gone_on_from() -> None:
    with pytest.raises(UsageError, match="edgeagent run --resume"):
        EdgeStrategy(GLOBAL).load_optimizer_state_dict({})


def test_a_batch_that_does_not_fit_the_global_batch_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be a multiple"):
        fit(Module(None), tmp_path, EdgeStrategy(12), max_steps=5)
