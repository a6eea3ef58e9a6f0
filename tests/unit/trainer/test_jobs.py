"""The built-in jobs are known to `edgeagent run`, and their losses and evaluations are right."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from edgeagent.errors import UsageError
from edgeagent.launch import BUILT_IN_JOBS
from edgeagent.trainer.fingerprint import dataset_fields, said_fields, sample_digest
from edgeagent.trainer.jobs import job as job_module
from edgeagent.trainer.jobs import text
from edgeagent.trainer.jobs.__main__ import JOBS
from edgeagent.trainer.jobs.classification import accuracy_on, classification_loss
from edgeagent.trainer.jobs.job import Evaluation, Job, train_and_evaluate
from edgeagent.trainer.layout import plan_layout
from edgeagent.trainer.state import TrainingState
from edgeagent.trainer.streams import RandomStreams
from edgeagent.trainer.validation import check_job
from edgeagent.transport.job import difference_text, first_difference

CPU = torch.device("cpu")
SHAPES = {
    "digits": (1, 8, 8),
    "fashion-mnist": (1, 28, 28),
    "fashion-alexnet": (1, 28, 28),
    "cifar10": (3, 32, 32),
    "speech-commands": (98, 40),
}


def make(name: str, data: str = "") -> Job:
    torch.manual_seed(0)
    return JOBS[name](CPU, data)


def batch_of(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Two samples of a job's kind."""
    if name in SHAPES:
        return torch.randn(2, *SHAPES[name]), torch.tensor([3, 9])
    tokens = torch.randint(256, (2, text.LENGTH + 1))
    return tokens[:, :-1], tokens[:, 1:]


def test_the_command_line_knows_the_jobs_that_there_are() -> None:
    assert tuple(JOBS) == BUILT_IN_JOBS


@pytest.mark.parametrize("name", JOBS)
def test_a_step_of_each_job(name: str) -> None:
    job = make(name)
    check_job(job.model, job.optimizer, None, None)
    batch = batch_of(name)
    loss = job.loss(job.model, batch)
    loss.backward()
    classes = 35 if name == "speech-commands" else 10 if name in SHAPES else 256
    assert 0.5 < loss.item() / math.log(classes) < 2
    trained = [p for p in job.model.parameters() if p.requires_grad]
    assert all(p.grad is not None for p in trained)
    before = [p.detach().clone() for p in trained]
    job.optimizer.step()
    assert any(not torch.equal(p, old) for p, old in zip(trained, before, strict=True))
    assert 0 < job.rate(0) < 1
    assert job.rate(job.steps) < 0.5


@pytest.mark.parametrize("name", JOBS)
def test_a_job_is_drawn_from_the_seed(name: str) -> None:
    one, other = (make(name).model.state_dict() for _ in range(2))
    assert all(torch.equal(one[key], other[key]) for key in one)


class Fixed(nn.Module):
    """Always says class 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tensor([0.0, 1.0, 0.0]).expand(len(x), 3)


def test_classification() -> None:
    pictures, labels = torch.zeros(4, 2), torch.tensor([1, 0, 1, 2])
    loss = classification_loss(Fixed(), (pictures, labels))
    expected = math.log(2 + math.e) - 0.5  # class 1 has logit 1, and half of the labels
    assert loss.item() == pytest.approx(expected)
    dataset = torch.utils.data.TensorDataset(pictures, labels)
    evaluation = accuracy_on("points")(Fixed(), dataset, CPU)
    assert evaluation.scores == {"accuracy": 0.5}
    assert evaluation.text == "accuracy 50.00 % on 4 points"


class Guess(nn.Module):
    """Gives every byte the same chance, but for the one that came before: `more` nats more."""

    def __init__(self, more: float) -> None:
        super().__init__()
        self.more = more

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(tokens, 256) * self.more


@pytest.mark.parametrize("count", [1, 1030])
def test_text_is_evaluated_by_loss_and_perplexity(count: int) -> None:
    class Blocks(torch.utils.data.Dataset[Any]):
        length = 2

        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> Any:
            return torch.tensor([7, 8]), torch.tensor([7, 9])

    evaluation = text.evaluate(Guess(math.log(257)), Blocks(), CPU)
    mean = math.log(255 + 257) - math.log(257) / 2  # the second byte is another one
    assert evaluation.scores["validation loss"] == pytest.approx(mean)
    assert evaluation.scores["perplexity"] == pytest.approx(math.exp(mean), rel=1e-5)
    blocks = 1 if count == 1 else 515  # every second one of 1030
    expected = f"validation loss {mean:.4f} nats a byte, perplexity 31.938, on {blocks} blocks of 2"
    assert evaluation.text == f"{expected} bytes"


def test_only_adapters_have_gradients_and_optimizer_states() -> None:
    job, whole = make("text-lora"), make("text")
    state = TrainingState(job.model, job.optimizer)
    adapters = [name for name in state.parameters if "lora" in name]
    assert len(adapters) == 2 * 4 * text.LAYERS
    assert state.trainable == len(adapters)
    slots = {spec.name for spec in state.layout.specs if spec.name.startswith("optimizer.")}
    assert {name.split(".", 1)[1].rpartition(".")[0] for name in slots} == set(adapters)
    gradients = TrainingState(whole.model, whole.optimizer).vector.gradient_elements
    assert state.vector.gradient_elements < 0.15 * gradients
    frozen = {f"model.{name}" for name in state.parameters} - {f"model.{a}" for a in adapters}
    assert frozen <= {spec.name for spec in state.layout.specs}, "files and digests have it, too"
    assert plan_layout(state.layout.specs).size == state.layout.size


def test_another_text_is_another_job(tmp_path: Path) -> None:
    """Even if no sample that is compared shows it."""
    fields = []
    for letter in "ab":
        path = tmp_path / letter
        path.write_bytes(b"x" * 20_000 + letter.encode())  # in the validation part
        dataset = make("text", str(path)).data(True)
        digest = sample_digest(dataset, len(dataset), RandomStreams(0, [CPU]))
        fields.append(dataset_fields(said_fields(dataset), len(dataset), digest))
    assert fields[0][1:] == fields[1][1:]
    difference = first_difference(*fields)
    assert difference is not None
    assert difference_text(difference) == "the data set is another one: its content differs"


class FakeTrainer:
    """Hands out one batch and notes what it is told; `end_reason` is what a test says."""

    end_reason = "steps"

    def __init__(self, model: nn.Module, optimizer: Any, **settings: Any) -> None:
        self.model = model
        self.told: list[Any] = [settings["steps"]]
        MADE.append(self)

    def loader(self, dataset: Any) -> Any:
        yield dataset

    def update(self, loss: torch.Tensor) -> None:
        self.told.append(round(loss.item(), 6))

    def capture_exit_event(self) -> bool:
        return self.end_reason == "left"

    def request_node_exit(self) -> None:
        self.told.append("exit")

    def report(self, name: str, value: float, *, quiet: bool) -> None:
        assert quiet, "the job prints the figure itself"
        self.told.append((name, value))

    def close(self) -> None:
        self.told.append("close")


MADE: list[FakeTrainer] = []


def half_job() -> Job:
    """A job whose evaluation says in what state it finds the model."""
    model = nn.Linear(1, 1)

    def evaluate(model: nn.Module, dataset: Any, device: torch.device) -> Evaluation:
        ready = not model.training and not torch.is_grad_enabled() and device == CPU
        return Evaluation({"ready": float(ready), "set": dataset}, "one line")

    return Job(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        rate=lambda iteration: 1.0,
        data=lambda train: 3.0 if train else 4.0,
        loss=lambda model, batch: model(torch.zeros(1)).sum() * 0 + batch,
        evaluate=evaluate,
        global_batch=8,
        steps=5,
    )


def test_a_job_is_trained_by_its_loss_and_judged_by_its_evaluation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(job_module, "Trainer", FakeTrainer)
    job = half_job()
    evaluation = train_and_evaluate(job, CPU)
    assert evaluation is not None
    assert MADE.pop().told == [5, 3.0, ("ready", 1.0), ("set", 4.0), "close"]
    assert capsys.readouterr().out == "one line\n"
    assert job.model.training


def test_a_job_that_leaves_is_not_evaluated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(job_module, "Trainer", FakeTrainer)
    monkeypatch.setattr(FakeTrainer, "end_reason", "left")
    assert train_and_evaluate(half_job(), CPU) is None
    assert MADE.pop().told == [5, 3.0, "exit", "close"]
    assert capsys.readouterr().out == ""


class Pictures(torch.utils.data.Dataset[Any]):
    """A data set that says what it consists of."""

    def __init__(self, digest: object) -> None:
        self.data_digest = digest

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        return 1


@pytest.mark.parametrize(("digest", "field"), [("ab" * 32, True), ("", True), (7, False)])
def test_what_a_data_set_says_of_itself_is_compared_if_it_is_a_text(
    digest: object, field: bool
) -> None:
    fields = dataset_fields(said_fields(Pictures(digest)), 1, "")
    assert [value for name, value in fields if name == "data"] == ([digest] if field else [])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fashion-mnist", "does not hold train-images-idx3-ubyte"),
        ("fashion-alexnet", "does not hold train-images-idx3-ubyte"),
        ("cifar10", "holds neither data_batch_1"),
        ("speech-commands", "holds neither folders of words"),
        ("text", "is a folder; name one text file"),
        ("text-lora", "is a folder; name one text file"),
    ],
)
def test_data_that_is_not_there_is_one_line(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        make(name, str(tmp_path)).data(True)
    assert len(str(caught.value).splitlines()) == 1
