"""`EdgeTrainer`: transformers' arguments as the cluster's trainer takes them; refusals by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
from transformers.trainer_callback import EarlyStoppingCallback, TrainerCallback

from edgeagent.errors import UsageError
from edgeagent.hf import EdgeTrainer
from edgeagent.trainer import Trainer
from tests.unit.trainer.replicas import Served

SAMPLES = 40


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


class Texts(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(50, (8,), generator=torch.Generator().manual_seed(number))
        return {"input_ids": tokens, "labels": (tokens[0] > 25).long()}


class Stream(torch.utils.data.IterableDataset[dict[str, torch.Tensor]]):
    def __iter__(self) -> Any:
        texts = Texts()
        return (texts[number] for number in range(SAMPLES))


def model() -> nn.Module:
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
    )
    bert: nn.Module = BertForSequenceClassification(config)
    return bert


def arguments(folder: Path, **options: Any) -> Any:
    plain = {
        "output_dir": str(folder),
        "use_cpu": True,
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "learning_rate": 0.01,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 3,
    }
    return TrainingArguments(**{**plain, **options})


class Watcher(TrainerCallback):  # type: ignore[misc]  # seen as Any: not followed by mypy
    """Notes what it is told, and stops training at a step."""

    def __init__(self, stop_at: int = 0) -> None:
        self.stop_at = stop_at
        self.told: list[str] = []
        self.steps: list[int] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.told.append("begin")

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        self.told.append("epoch")

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        self.told.append("evaluated")

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.told.append("end")

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        self.steps.append(state.global_step)
        control.should_training_stop = state.global_step == self.stop_at


def run(folder: Path, steps: int, **options: Any) -> tuple[Any, Any, Watcher]:
    """Train against a fake agent; return the trainer, the agent's side and a callback."""
    served = Served(steps)
    watcher = Watcher()
    trainer = EdgeTrainer(
        model(),
        arguments(folder, **options),
        train_dataset=Texts(),
        eval_dataset=Texts(),
        callbacks=[watcher],
        _agent=served.agent,
    )
    output = trainer.train()
    assert output.global_step == steps
    assert trainer.edge is not None
    trainer.edge.close()
    return trainer, served.done(), watcher


def test_it_trains_what_a_loop_of_ones_own_does(tmp_path: Path) -> None:
    trainer, cluster, watcher = run(tmp_path, 6, max_grad_norm=0.5, logging_steps=2, warmup_steps=2)
    assert watcher.steps == [1, 2, 3, 4, 5, 6]
    assert watcher.told == ["begin", "epoch", "end"]  # 40 samples are 5 updates of 8
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    pairs = zip(cluster.losses[::2], cluster.losses[1::2], strict=True)
    assert logged == pytest.approx([(a + b) / 2 for a, b in pairs])

    again = Served(6)
    plain = model()
    same = EdgeTrainer(plain, arguments(tmp_path, warmup_steps=2), train_dataset=Texts())
    same.create_optimizer_and_scheduler(6)
    loop = Trainer(plain, same.optimizer, 8, same.lr_scheduler, 0.5, 4, seed=3, _agent=again.agent)
    for inputs in loop.loader(Texts(), same.data_collator):
        plain.train()
        loss = plain(**inputs).loss
        loss.backward()
        loop.update(loss)
    loop.close()
    assert again.done().losses == cluster.losses


def test_evaluation_bf16_and_a_callback_that_stops(tmp_path: Path) -> None:
    trainer, _, watcher = run(
        tmp_path, 4, max_steps=4, bf16=True, eval_strategy="steps", eval_steps=2
    )
    assert watcher.told.count("evaluated") == 2
    assert [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry] == [2, 4]


def trains_until_stopped(trainer: Any, served: Served) -> None:
    """Train; it must be the trainer that ends the training of all."""
    trainer.train()
    assert trainer.edge is not None
    assert trainer.edge._state.stop
    trainer.edge.close()
    served.done()


def test_a_callback_that_stops_stops_the_cluster(tmp_path: Path) -> None:
    served = Served(6)
    trainer = EdgeTrainer(
        model(),
        arguments(tmp_path),
        train_dataset=Texts(),
        callbacks=[Watcher(stop_at=2)],
        _agent=served.agent,
    )
    trains_until_stopped(trainer, served)


def test_early_stopping_stops_the_cluster(tmp_path: Path) -> None:
    served = Served(6)
    trainer = EdgeTrainer(
        model(),
        arguments(
            tmp_path,
            learning_rate=0.0,  # nothing becomes better
            eval_strategy="steps",
            eval_steps=1,
            metric_for_best_model="loss",
            greater_is_better=False,
        ),
        train_dataset=Texts(),
        eval_dataset=Texts(),
        callbacks=[EarlyStoppingCallback(2)],
        _agent=served.agent,
    )
    trains_until_stopped(trainer, served)


@pytest.mark.parametrize("name", ["training_step", "get_train_dataloader", "_get_train_sampler"])
def test_methods_that_would_not_be_called_are_named(tmp_path: Path, name: str) -> None:
    own = type("Own", (EdgeTrainer,), {name: lambda self, *_: None})
    with pytest.raises(UsageError, match=rf"does not call {name}\(\), which Own overrides"):
        own(model(), arguments(tmp_path), train_dataset=Texts()).train()


def test_epochs_become_steps_and_the_model_can_be_saved(tmp_path: Path) -> None:
    trainer, _, watcher = run(tmp_path, 10, max_steps=-1, num_train_epochs=2.0)
    assert trainer.edge.steps == 10
    assert watcher.told.count("epoch") == 2
    trainer.save_model(str(tmp_path / "saved"))
    again = BertForSequenceClassification.from_pretrained(str(tmp_path / "saved"))
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fp16": True}, "fp16=True"),
        ({"torch_compile": True}, "torch_compile=True"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size=True"),
        ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha=5.0"),
        ({"train_sampling_strategy": "group_by_length"}, "train_sampling_strategy"),
        ({"resume_from_checkpoint": "x"}, "edgeagent run --resume"),
        ({"data_seed": 4}, "data_seed differs"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps"}, "plateau"),
        (
            {"eval_strategy": "steps", "save_strategy": "best", "metric_for_best_model": "loss"},
            "best",
        ),
    ],
)
def test_what_cannot_be_had_is_named(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    given = arguments(tmp_path)
    for name, value in options.items():
        setattr(given, name, value)  # some of them want hardware when they are constructed
    trainer = EdgeTrainer(model(), arguments(tmp_path), train_dataset=Texts())
    trainer.args = given
    with pytest.raises(UsageError, match=said):
        trainer.train()


def test_a_stream_needs_steps(tmp_path: Path) -> None:
    trainer = EdgeTrainer(model(), arguments(tmp_path), train_dataset=Stream())
    trainer.args = arguments(tmp_path, max_steps=-1)
    with pytest.raises(UsageError, match="give the number of steps"):
        trainer.train()


def test_it_trains_once(tmp_path: Path) -> None:
    trainer, _, _ = run(tmp_path, 6)
    with pytest.raises(UsageError, match="make another EdgeTrainer"):
        trainer.train()
