"""Files written while training goes on, and models taken out of them for plain torch."""

from __future__ import annotations

import io
import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from edgeagent.cli import main
from edgeagent.config import RUN_VARIABLE, TrainerConfig, trainer_config_text
from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.handover import SavedAside
from edgeagent.places import write_together
from edgeagent.trainer import Trainer
from edgeagent.trainer.checkpoint import save_checkpoint
from edgeagent.trainer.export import export_model
from edgeagent.trainer.numbered_files import NumberedFiles, step_path
from edgeagent.trainer.options import resolve_options
from edgeagent.trainer.saving import Saving
from edgeagent.trainer.state import TrainingState
from tests.unit.trainer.replicas import FEATURES, Points, Served, network, train


class Tied(nn.Module):
    """Two names for one weight, a buffer that no file of torch's has, and one that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES, bias=False)
        self.middle = nn.BatchNorm1d(FEATURES)
        self.last = nn.Linear(FEATURES, FEATURES)
        self.last.weight = self.first.weight
        self.register_buffer("scale", torch.ones(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        out: torch.Tensor = self.last(self.middle(self.first(x)))
        return out


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Work in an empty folder."""
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def under_run(monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    config = TrainerConfig(**options)
    monkeypatch.setenv(RUN_VARIABLE, trainer_config_text(config))


def trained(model: nn.Module, steps: int, **options: Any) -> Trainer:
    """Train; with `_mirror` the agent wants to see the state at the end only."""
    served = Served(steps, reads=lambda i: i == steps - 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    trainer = Trainer(model, optimizer, 32, _agent=served.agent, **options)
    train(trainer, model)
    trainer.close()
    served.done()
    return trainer


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(("keep", "left"), [(None, 2), (1, 1), (0, 4)])
def test_every_so_many_steps_and_how_many_stay(
    monkeypatch: pytest.MonkeyPatch, folder: Path, keep: int | None, left: int
) -> None:
    under_run(monkeypatch, save=str(folder / "m.safetensors"), save_every=3, keep=keep)
    trained(network(), 13, save_every=5, keep=2)
    every = [f"m-step-{k:06d}.safetensors" for k in (3, 6, 9, 12)]
    assert names(folder) == [*every[4 - left :], "m.safetensors"]


def test_how_many_files_stay_does_nothing_without_files(
    monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "edgeagent: warning: --keep does nothing, since no file is written without --save-every"
    for options, warned in (({"keep": 2}, True), ({"keep": 2, "save_every": 3}, False)):
        under_run(monkeypatch, save=str(folder / "m.safetensors"), **options)
        trained(network(), 1)
        assert (line in capsys.readouterr().err) is warned
    under_run(monkeypatch, save=str(folder / "m.safetensors"), keep=2)
    trained(network(), 1, save_every=5)  # the script's own
    assert line not in capsys.readouterr().err


def test_the_newest_files_stay_though_a_younger_state_was_adopted(folder: Path) -> None:
    base = str(folder / "m")
    files = NumberedFiles(base, 10, 3, lambda path: Path(path).touch, lambda line: None)
    for iteration in (10, 20, 30, 20, 30, 40):
        files.applied(iteration)
    assert files.newest == step_path(base, 40)
    files.finish()
    assert files.newest == step_path(base, 40)
    kept = [step_path(base, iteration) for iteration in (20, 30, 40)]
    assert names(folder) == [Path(path).name for path in kept]


class SlowDisk:
    """Writes checkpoints only when it may; `begun` says how many it was asked to write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = 0
        self.may_write = threading.Event()
        self._real = save_checkpoint
        monkeypatch.setattr("edgeagent.trainer.saving.save_checkpoint", self._write)

    def _write(self, *what: Any) -> None:
        self.begun += 1
        assert self.may_write.wait(60)
        self._real(*what)


def saving_of(every: int) -> tuple[Saving, TrainingState, list[str]]:
    """Return what saves a state of zeros beside "m", that state, and the lines for the user."""
    model, said = nn.Linear(2, 2), list[str]()
    state = TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1))
    options: Any = SimpleNamespace(save="", beside="m", save_every=every, keep=3)
    saving = Saving(options, state, said.append)
    saving.memory = state.share()
    torch.nn.init.zeros_(model.weight)
    return saving, state, said


def step(saving: Saving, state: TrainingState, iteration: int) -> None:
    """Have the state be another one, in which each weight is the number of the iteration."""
    state.iteration = iteration
    torch.nn.init.constant_(state.model.weight, iteration)  # type: ignore[arg-type]
    saving.applied(state.meta())


def weight_in(path: str) -> float:
    return float(load_file(path)["model.weight"][0, 0])


def test_training_goes_on_while_a_file_is_written(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    disk = SlowDisk(monkeypatch)
    saving, state, said = saving_of(2)
    for iteration in (1, 2, 3):
        step(saving, state, iteration)  # it does not wait for the disk
    assert names(folder) == []
    threading.Timer(0.2, disk.may_write.set).start()
    step(saving, state, 4)  # one file at a time
    assert "m-step-000002.safetensors" in names(folder)
    saving.finish()
    assert [weight_in(step_path("m", k)) for k in (2, 4)] == [2.0, 4.0]
    assert (disk.begun, said) == (2, [])


def test_without_memory_for_a_copy_training_waits_for_the_file(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr("edgeagent.dataplane.snapshot.SPARE", 1e15)
    disk = SlowDisk(monkeypatch)
    saving, state, _ = saving_of(2)
    threading.Timer(0.2, disk.may_write.set).start()
    step(saving, state, 2)
    assert weight_in("m-step-000002.safetensors") == 2.0
    saving.finish()
    assert disk.begun == 1


def test_a_file_that_fails_beside_the_training_is_told_of_with_the_next(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    saving, state, said = saving_of(2)
    failures = [OSError(28, "it is full")]

    def write_or_fail(*what: Any) -> Any:
        if failures:
            raise failures.pop()
        return write_together(*what)

    monkeypatch.setattr("edgeagent.checkpoint_file.write_together", write_or_fail)
    step(saving, state, 2)
    step(saving, state, 4)
    saving.finish()
    assert names(folder) == ["m-step-000004.safetensors"]
    assert said == ["cannot save m-step-000002.safetensors: it is full; training goes on"]


def test_a_file_is_finished_before_another_state_replaces_this_one(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """Another state may have other frozen weights, of which there is no copy."""
    disk = SlowDisk(monkeypatch)
    saving, state, _ = saving_of(2)
    step(saving, state, 2)
    threading.Timer(0.2, disk.may_write.set).start()
    assert saving.aside(keep=False) == SavedAside("", "")
    assert names(folder) == ["m-step-000002.safetensors"]


def test_what_is_saved_of_a_state_elsewhere_is_the_same(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    files = []
    for mirror in (False, True):
        place = folder / f"{mirror}"
        place.mkdir()
        under_run(monkeypatch, save=str(place / "m.safetensors"), save_every=3)
        torch.manual_seed(2)
        trained(network(), 7, _mirror=mirror)
        files.append({name: (place / name).read_bytes() for name in names(place)})
    assert list(files[0]) == [
        "m-step-000003.safetensors",
        "m-step-000006.safetensors",
        "m.safetensors",
    ]
    assert files[0] == files[1]
    assert len(set(files[0].values())) == 3


def test_a_plain_script_saves_under_its_own_name(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["somewhere/train.py"])
    trained(network(), 5, save_every=2)
    assert names(folder) == [f"edgeagent-train-step-{k:06d}.safetensors" for k in (2, 4)]
    monkeypatch.setenv("EDGEAGENT_SAVE_EVERY", "5")
    monkeypatch.setenv("EDGEAGENT_KEEP", "1")
    trained(network(), 5, save_every=1)
    assert names(folder)[-1] == "edgeagent-train-step-000005.safetensors"
    assert len(names(folder)) == 3, "what another run has written stays"


def test_none_where_nothing_is_to_be_saved(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    under_run(monkeypatch, save="")
    trained(network(), 3, save_every=1)
    assert names(folder) == []


def test_files_of_other_jobs_are_kept(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    under_run(monkeypatch, save=str(folder / "m.safetensors"), save_every=2)
    (folder / "m-step-000002.safetensors").write_text("mine")
    trained(network(), 2)
    assert (folder / "m-step-000002-earlier.safetensors").read_text() == "mine"


def test_a_full_disk_does_not_end_training(
    monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise EdgeAgentError("cannot save x: No space left on device")

    monkeypatch.setattr("edgeagent.trainer.saving.save_checkpoint", fail)
    trainer = trained(network(), 4, save_every=2)
    assert trainer.iteration == 4
    said = capsys.readouterr().err
    assert said.count("cannot save x: No space left on device; training goes on") == 2


def without_room(monkeypatch: pytest.MonkeyPatch, full: Path) -> None:
    """Have no file be written into `full`, and nothing be free there."""
    monkeypatch.setattr(
        "edgeagent.places._free_bytes", lambda folder: 0 if Path(folder) == full else 1 << 40
    )

    def write(*files: Any) -> None:
        if Path(files[0][0]).parent == full:
            raise OSError(28, "No space left on device")
        write_together(*files)

    monkeypatch.setattr("edgeagent.checkpoint_file.write_together", write)


def test_a_state_for_which_there_is_no_room_is_written_elsewhere(
    monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = folder / "full"
    full.mkdir()
    without_room(monkeypatch, full)
    under_run(monkeypatch, save=str(full / "m.safetensors"))
    (folder / "m-rescued.safetensors").write_text("of an earlier rescue")
    rescued = folder / "m-rescued-2.safetensors"
    with pytest.raises(EdgeAgentError, match="No space left") as caught:
        trained(network(), 3)
    assert str(caught.value).endswith(f"; the training state is in {rescued} instead")
    assert "the model could not be saved now: the file takes" in capsys.readouterr().err
    assert not names(full)
    with safe_open(rescued, framework="pt") as file:
        assert file.keys()
    assert (folder / "m-rescued.safetensors").read_text() == "of an earlier rescue"


@pytest.mark.parametrize("wrong", [{"save_every": -1}, {"save_every": 1.5}, {"keep": -2}])
def test_wrong_numbers_are_named(folder: Path, wrong: dict[str, Any]) -> None:
    model = network()
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), 32, **wrong)


def test_the_script_saves_the_state_after_the_last_update(folder: Path) -> None:
    """Also in the middle of an iteration, and whatever it has set for the next one meanwhile."""
    served, model = Served(3), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    trainer = Trainer(model, optimizer, 32, _agent=served.agent)
    with pytest.raises(UsageError, match="after the first loader"):
        trainer.save("early.safetensors")
    with pytest.raises(UsageError, match="after the first loader"):
        trainer.stop()
    for x, y in trainer.loader(Points()):
        if trainer.iteration == 2:
            trainer.save("middle.safetensors")
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        if trainer.update(loss) and trainer.iteration == 2:
            trainer.save("between.safetensors")
            optimizer.param_groups[0]["lr"] = 0.01
            trainer.save("set.safetensors")
            with pytest.raises(UsageError, match="no folder"):
                trainer.save("nowhere/x.safetensors")
    trainer.close()
    served.done()
    one, *others = [
        Path(f"{name}.safetensors").read_bytes() for name in ("between", "middle", "set")
    ]
    assert others == [one, one]


def test_torch_saves_a_models_own_bytes_and_no_more(folder: Path) -> None:
    """Not those of the whole training state, of which its parameters are views."""
    model = network()
    trained(model, 2)
    size = sum(t.nbytes for t in model.state_dict().values())
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    fresh = io.BytesIO()
    torch.save(network().state_dict(), fresh)
    assert size < len(file.getvalue()) <= len(fresh.getvalue()) + 1024


@pytest.mark.parametrize("ending", [".safetensors", ".pt", ".pth"])
def test_an_exported_model_is_what_plain_torch_loads(
    monkeypatch: pytest.MonkeyPatch, folder: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    under_run(monkeypatch, save=str(folder / "state.safetensors"))
    torch.manual_seed(1)
    model = Tied()
    trained(model, 5)
    assert main(["export", "state.safetensors", f"model{ending}"]) == 0
    keys = model.state_dict().keys()
    assert capsys.readouterr().out == f"model{ending}: {len(keys)} tensors\n"
    path = f"model{ending}"
    plain = load_file(path) if ending == ".safetensors" else torch.load(path, weights_only=True)
    assert sorted(plain) == sorted(keys)
    other = Tied()
    other.load_state_dict(plain)
    x = torch.randn(5, FEATURES)
    assert torch.equal(other.eval()(x), model.eval()(x))
    if ending == ".safetensors":
        with safe_open(path, framework="pt") as file:
            assert file.metadata() == {"format": "pt"}


def test_the_name_of_a_compiled_model_is_stripped(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    under_run(monkeypatch, save=str(folder / "state.safetensors"))
    inner = Tied()
    model = torch.compile(inner, backend="eager")
    trained(model, 2)  # type: ignore[arg-type]  # compile() says too little of what it returns
    assert export_model("state.safetensors", "model.safetensors") == len(inner.state_dict())
    Tied().load_state_dict(load_file("model.safetensors"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("state.safetensors", "model.bin"), "must end in one of .safetensors, .pt, .pth"),
        (("state.safetensors", "nowhere/model.pt"), "no folder"),
        (("state.safetensors", "state.safetensors"), "is the training state itself"),
        (("text.safetensors", "model.pt"), "text.safetensors is not a checkpoint"),
        (("short.safetensors", "model.pt"), "short.safetensors is not a whole checkpoint: it has"),
        (("foreign.safetensors", "model.pt"), "is no training state"),
        (("torn.safetensors", "model.pt"), "is damaged: its model keys"),
        (("false.safetensors", "model.pt"), "is damaged: its model keys"),
        (("lacks.safetensors", "model.pt"), "is damaged: it has no b"),
        (("missing.safetensors", "model.pt"), "no readable file missing"),
    ],
)
def test_what_cannot_be_exported_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, str], said: str
) -> None:
    tensors = {"model.a": torch.ones(2)}
    ours = {"edgeagent": "edgeagent/1"}
    save_file(tensors, "state.safetensors", ours)
    save_file(tensors, "foreign.safetensors")
    for name, keys in (
        ("torn", "{"),
        ("false", json.dumps({"aliases": {"b": 1}})),
        ("lacks", json.dumps({"aliases": {"c": "b"}})),
    ):
        save_file(tensors, f"{name}.safetensors", {**ours, "model keys": keys})
    Path("text.safetensors").write_text("text")
    Path("short.safetensors").write_bytes(Path("state.safetensors").read_bytes()[:-3])
    before = names(folder)
    assert main(["export", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert names(folder) == before


def test_no_file_is_reported_where_there_is_no_state_yet(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """An agent may end before the script has asked for its first micro-batch."""
    under_run(monkeypatch, save="model.safetensors")
    options = resolve_options(os.environ, 32, None, None, None, None, None)
    model = nn.Linear(2, 2)
    state = TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1))
    saving = Saving(options, state, print)
    assert saving.aside(keep=True) == SavedAside("", "")
    saving.at_end()
    assert (saving.saved, saving.error) == ("", "")
    with pytest.raises(EdgeAgentError, match="there is no training state yet"):
        saving.now("model.safetensors")
    assert names(folder) == []
    saving.memory = state.share()
    saving.changed(state.meta())
    saving.at_end()
    assert saving.saved == "model.safetensors"
    assert saving.aside(keep=True).path in names(folder)
