"""Checkpoints: whole or absent, equal between replicas, refused with the first mismatch."""

from __future__ import annotations

import errno
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from edgeagent.config import RUN_VARIABLE, SOCKET_VARIABLE, TrainerConfig, trainer_config_text
from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.places import check_save_path
from edgeagent.shared_memory import create_shared_memory
from edgeagent.trainer import Trainer, checkpoint
from edgeagent.trainer.checkpoint import load_checkpoint, resume, resumed_text, save_checkpoint
from edgeagent.trainer.state import TrainingState
from tests.unit.trainer.replicas import Served, network, train


def make(width: int = 24) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    model = network()
    if width != 24:
        model[4] = nn.Linear(24, width)  # type: ignore[operator]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3)


def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, **config: Any) -> Any:
    model, optimizer, schedule = make()
    text = trainer_config_text(TrainerConfig(**config))
    served = Served(steps)
    with monkeypatch.context() as patch:
        patch.setenv(RUN_VARIABLE, text)
        patch.delenv(SOCKET_VARIABLE, raising=False)
        trainer = Trainer(model, optimizer, 32, schedule, 1.0, _agent=served.agent)
        train(trainer, model)
    trainer.close()
    return served.done(), model


def test_resumed_run_equals_the_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    half, whole, again = (str(tmp_path / f"{n}.safetensors") for n in ("half", "whole", "again"))
    trained(tmp_path, monkeypatch, 5, save=half)
    first, model = trained(tmp_path, monkeypatch, 10, save=whole)
    second, _ = trained(tmp_path, monkeypatch, 10, resume=half, save=again)
    assert second.nodes[0].hello.iteration == 5
    said = f"edgeagent: going on from {half}, trained to step 5\n"
    assert capsys.readouterr().err.count(said) == 1
    assert second.nodes[0].hello.job == first.nodes[0].hello.job
    assert second.losses == first.losses[5:]
    assert Path(whole).read_bytes() == Path(again).read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "again.safetensors",
        "half.safetensors",
        "whole.safetensors",
    ]
    tensors = load_file(whole)
    state = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
    model.load_state_dict(state)
    assert torch.equal(tensors["model.0.weight"], dict(model.named_parameters())["0.weight"])
    assert float(tensors["optimizer.0.weight.step"]) == 10


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, TrainingState, Any]:
    model, optimizer, schedule = make()
    state = TrainingState(model, optimizer, schedule)
    memory = create_shared_memory(state.layout.size, state.vector.elements, "float32")
    state.attach(memory)
    path = str(tmp_path_factory.mktemp("saved") / "x.safetensors")
    save_checkpoint(path, state.layout, memory.state.view(), state.meta())
    return Path(path).read_bytes(), state, memory


def with_header(data: bytes, change: Any) -> bytes:
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


CHANGES: dict[str, tuple[str, Any]] = {
    "missing": ("has no model.0.bias", lambda h: h.pop("model.0.bias")),
    "extra": ("also has model.9", lambda h: h.update({"model.9": h["model.0.bias"]})),
    "shape": ("model.0.bias is F32", lambda h: h["model.0.bias"].update(shape=[23])),
    "dtype": ("model.0.bias is F16", lambda h: h["model.0.bias"].update(dtype="F16")),
    "place": ("wrong place", lambda h: h["model.0.bias"].update(data_offsets=[4, 100])),
    "version": (
        "no training state that edgeagent",
        lambda h: h["__metadata__"].update(edgeagent="2"),
    ),
    "notes": ("no training state", lambda h: h.pop("__metadata__")),
    "meta": ("damaged", lambda h: h["__metadata__"].update(meta="AAAA")),
    "base64": ("damaged", lambda h: h["__metadata__"].update(meta="?")),
    "no meta": ("damaged", lambda h: h["__metadata__"].update(meta=7)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_first_mismatch_is_named(name: str, saved: Any, tmp_path: Path) -> None:
    data, state, memory = saved
    message, change = CHANGES[name]
    path = tmp_path / "changed"
    path.write_bytes(with_header(data, change))
    before = bytes(memory.state.view())
    with pytest.raises(UsageError, match=message):
        load_checkpoint(str(path), state.layout, memory.state.view())
    assert bytes(memory.state.view()) == before


def test_round_trip_is_exact(saved: Any, tmp_path: Path) -> None:
    data, state, memory = saved
    path = tmp_path / "same"
    path.write_bytes(data)
    assert load_checkpoint(str(path), state.layout, memory.state.view()) == (0, state.meta())
    again = tmp_path / "again"
    save_checkpoint(str(again), state.layout, memory.state.view(), state.meta())
    assert again.read_bytes() == data


@given(st.data())
def test_damaged_files_raise_our_error_only(saved: Any, data: st.DataObject) -> None:
    import tempfile

    good, state, memory = saved
    cut = data.draw(st.integers(0, len(good) - 1))
    rubbish = data.draw(st.binary(max_size=40))
    with tempfile.NamedTemporaryFile() as file:
        file.write(data.draw(st.sampled_from([good[:cut], rubbish, good[:30] + rubbish])))
        file.flush()
        with pytest.raises(UsageError):
            load_checkpoint(file.name, state.layout, memory.state.view())


class Torn:
    """A file on a disk that cannot read what lies behind byte `end`, from `pass_number` on: each
    `seek` to the beginning of the tensors begins another pass."""

    def __init__(self, file: Any, end: int, pass_number: int) -> None:
        self._file, self._end, self._left = file, end, pass_number

    def __enter__(self) -> Torn:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def seek(self, place: int) -> int:
        self._left -= 1
        return int(self._file.seek(place))

    def readinto(self, target: Any) -> int:
        if not self._left and self._file.tell() + len(target) > self._end:
            raise OSError(errno.EIO, "Input/output error")
        return int(self._file.readinto(target))


@pytest.mark.parametrize("pass_number", [0, 1])
def test_a_disk_that_fails_midway_spoils_nothing_unless_it_fails_late(
    saved: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pass_number: int
) -> None:
    data, state, memory = saved
    path = tmp_path / "torn"
    path.write_bytes(data)

    def torn(name: str, mode: str) -> Torn:
        return Torn(open(name, mode), len(data) - 100, pass_number)

    monkeypatch.setattr(checkpoint, "open", torn, raising=False)
    memory.state.view()[:] = marks = b"\7" * state.layout.size
    with pytest.raises(UsageError, match=r"cannot read .*: Input/output error") as raised:
        load_checkpoint(str(path), state.layout, memory.state.view())
    assert ("of no use any more" in str(raised.value)) is bool(pass_number)
    assert (bytes(memory.state.view()) == marks) is not bool(pass_number)


def test_a_file_that_is_cut_short_while_it_is_read_spoils_nothing(
    saved: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, state, memory = saved
    path = tmp_path / "short"
    path.write_bytes(data)
    memory.state.view()[:] = marks = b"\7" * state.layout.size

    def shorten(*_: object) -> None:
        os.truncate(path, len(data) - 5000)

    with pytest.raises(UsageError, match=r"ends too early$"):
        load_checkpoint(str(path), state.layout, memory.state.view(), shorten)
    assert bytes(memory.state.view()) == marks
    with pytest.raises(UsageError, match="not a whole checkpoint"):
        load_checkpoint(str(path), state.layout, memory.state.view())
    assert bytes(memory.state.view()) == marks


def test_scalars_that_do_not_fit_leave_the_state_as_it_is(saved: Any, tmp_path: Path) -> None:
    data, _, _ = saved
    path = tmp_path / "other"
    path.write_bytes(data)
    model, optimizer, _ = make()
    state = TrainingState(model, optimizer)  # no schedule, although the file has one
    memory = state.share()
    before = bytes(memory.state.view())
    with pytest.raises(UsageError, match=r"cannot resume from .* lr_scheduler"):
        resume(str(path), state, memory.state.view())
    assert bytes(memory.state.view()) == before


def test_files_do_not_depend_on_what_is_frozen(tmp_path: Path) -> None:
    """The layout begins with what is frozen, but tensors are sorted by name in every file."""
    model, _, _ = make()
    for parameter in list(model.parameters())[2:]:
        parameter.requires_grad_(False)
    state = TrainingState(model, torch.optim.SGD(list(model.parameters())[:2], lr=0.1))
    memory = state.share()
    path = str(tmp_path / "frozen")
    save_checkpoint(path, state.layout, memory.state.view(), state.meta())
    text = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", text[:8])
    names = [name for name in json.loads(text[8 : 8 + length]) if name != "__metadata__"]
    assert names == sorted(names) != [spec.name for spec in state.layout.specs]
    frozen = state.layout.specs[: len(list(model.parameters())) - 2]
    assert all(not model.get_parameter(s.name.removeprefix("model.")).requires_grad for s in frozen)
    assert state.layout.constant_bytes == state.layout.offsets[len(frozen)]
    wanted = bytes(memory.state.view())
    memory.state.view()[:] = bytes(len(wanted))
    load_checkpoint(path, state.layout, memory.state.view())
    assert bytes(memory.state.view()) == wanted


@pytest.mark.parametrize("end", [40, -1])
def test_a_file_that_was_cut_off_says_so(saved: Any, tmp_path: Path, end: int) -> None:
    good, state, memory = saved
    (tmp_path / "cut").write_bytes(good[:end])
    with pytest.raises(UsageError, match=r"not a whole checkpoint: it has .* of at least .* cut"):
        load_checkpoint(str(tmp_path / "cut"), state.layout, memory.state.view())
    (tmp_path / "long").write_bytes(good + b"x")
    with pytest.raises(UsageError, match="1 bytes too many"):
        load_checkpoint(str(tmp_path / "long"), state.layout, memory.state.view())


def test_paths(saved: Any, tmp_path: Path) -> None:
    _, state, memory = saved
    with pytest.raises(UsageError, match="cannot read"):
        load_checkpoint(str(tmp_path / "none"), state.layout, memory.state.view())
    with pytest.raises(UsageError, match="no folder"):
        check_save_path(str(tmp_path / "no" / "file"))
    with pytest.raises(UsageError, match="is a folder"):
        check_save_path(str(tmp_path))
    with pytest.raises(EdgeAgentError, match="cannot save"):
        save_checkpoint(str(tmp_path), state.layout, memory.state.view(), state.meta())
    assert list(tmp_path.iterdir()) == []


def test_resume_from_another_job_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "x")
    trained(tmp_path, monkeypatch, 2, save=path)
    monkeypatch.setenv(RUN_VARIABLE, trainer_config_text(TrainerConfig(resume=path)))
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = Trainer(model, optimizer, 32)
    from tests.unit.trainer.replicas import Points

    with pytest.raises(UsageError, match="another job"):
        trainer.loader(Points())


def test_a_file_from_a_run_with_exact_sums_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "x")
    trained(tmp_path, monkeypatch, 2, save=path)
    monkeypatch.setenv(RUN_VARIABLE, trainer_config_text(TrainerConfig(resume=path, wire="exact")))
    from tests.unit.trainer.replicas import Points

    model = network()
    trainer = Trainer(model, torch.optim.AdamW(model.parameters()), 32)
    with pytest.raises(UsageError, match="without --exact: leave --exact away"):
        trainer.loader(Points())


def test_what_is_gone_on_from_is_told() -> None:
    path = "/x/m.safetensors"
    begins = f"going on from {path}, trained to"
    assert resumed_text(path, 7, 0) == f"{begins} step 7"
    assert resumed_text(path, 7, 9) == f"{begins} step 7 of 9"
    more = "so nothing is left to do: a larger --steps N trains more"
    assert resumed_text(path, 9, 9) == f"{begins} step 9; training ends at step 9, {more}"
    rounds = resumed_text(path, 9, 8, rounds=True)
    assert rounds == f"{begins} round 9; training ends at round 8, {more}"
