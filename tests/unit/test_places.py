"""Where checkpoints are written: no file is lost, and no temporary file is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from edgeagent import places
from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.places import check_save_path, move_aside, write_whole
from edgeagent.shared_memory import create_shared_memory
from edgeagent.trainer import checkpoint
from edgeagent.trainer.checkpoint import aside_place, keep_what_is_there, save_checkpoint
from edgeagent.trainer.meta import decode_meta
from edgeagent.trainer.state import TrainingState


class Saver:
    """Writes checkpoints of a small job that pretends to have done a number of steps."""

    def __init__(self, width: int = 3) -> None:
        model = nn.Linear(width, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.state = TrainingState(model, optimizer, None, None)
        vector = self.state.vector
        self.layout = self.state.layout
        self.memory = create_shared_memory(self.layout.size, vector.elements, vector.accumulate)
        self.state.attach(self.memory)

    def save(self, path: Path, iteration: int) -> None:
        self.state.iteration = iteration
        meta = self.state.meta()
        assert decode_meta(meta).iteration == iteration
        save_checkpoint(str(path), self.layout, self.memory.state.view(), meta)

    def step_in(self, path: Path) -> int:
        return checkpoint.checkpoint_iteration(str(path), self.layout)


@pytest.fixture
def saver() -> Saver:
    return Saver()


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_file_that_was_trained_further_is_kept(saver: Saver, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    for count in (1, 2):
        saver.save(path, 300)
        line = keep_what_is_there(str(path), saver.layout, 20)
        assert "to step 300" in line
        saver.save(path, 20)
        assert saver.step_in(path) == 20
        assert len(names(tmp_path)) == 1 + count
    assert names(tmp_path) == [
        "m-earlier-2.safetensors",
        "m-earlier.safetensors",
        "m.safetensors",
    ]
    assert saver.step_in(tmp_path / "m-earlier.safetensors") == 300


def test_a_file_that_was_trained_less_gives_way(saver: Saver, tmp_path: Path) -> None:
    path = tmp_path / "m"
    assert keep_what_is_there(str(path), saver.layout, 0) == ""
    path.touch()
    assert keep_what_is_there(str(path), saver.layout, 0) == ""
    saver.save(path, 20)
    assert keep_what_is_there(str(path), saver.layout, 20) == ""
    assert names(tmp_path) == ["m"]


@pytest.mark.parametrize("other", ["job", "thing"])
def test_what_is_not_ours_is_kept(saver: Saver, tmp_path: Path, other: str) -> None:
    path = tmp_path / "m"
    if other == "job":
        Saver(width=9).save(path, 1)
    else:
        path.write_bytes(b"my diary")
    before = path.read_bytes()
    assert "another job" in keep_what_is_there(str(path), saver.layout, 50)
    saver.save(path, 50)
    assert (tmp_path / "m-earlier.safetensors").read_bytes() == before


def test_states_put_aside_are_numbered_and_the_least_goes(
    saver: Saver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "MOST_ASIDE", 3)
    save = tmp_path / "m.safetensors"
    for iteration in (50, 20, 70):
        place, line = aside_place(str(save), saver.layout)
        assert not line
        assert not Path(place).exists()
        saver.save(Path(place), iteration)
    place, line = aside_place(str(save), saver.layout)
    assert place == str(tmp_path / "m-before-joining-2.safetensors")
    assert "step 20" in line


def test_files_of_others_do_not_count_as_put_aside(
    saver: Saver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "MOST_ASIDE", 2)
    for name in ("m-before-joining.safetensors", "m-before-joining-2.safetensors"):
        (tmp_path / name).write_text("mine")
    place, line = aside_place(str(tmp_path / "m"), saver.layout)
    assert place == str(tmp_path / "m-before-joining-3.safetensors")
    assert not line


def test_a_pipe_or_device_is_refused_and_stays(saver: Saver, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="no regular file"):
        check_save_path(str(pipe))
    with pytest.raises(EdgeAgentError, match="no regular file"):
        saver.save(pipe, 1)
    with pytest.raises(UsageError, match="no regular file"):
        check_save_path("/dev/null")
    assert keep_what_is_there(str(pipe), saver.layout, 1) == ""
    assert pipe.is_fifo()
    assert names(tmp_path) == ["pipe"]


def test_a_link_stays_one(saver: Saver, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link, real = tmp_path / "m", tmp_path / "there" / "real"
    link.symlink_to(real)
    check_save_path(str(link))
    saver.save(link, 7)
    assert link.is_symlink()
    assert saver.step_in(real) == 7
    keep_what_is_there(str(link), saver.layout, 1)
    assert names(tmp_path / "there") == ["real", "real-earlier.safetensors"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_error_leaves_nothing_behind(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "m"
    path.write_text("before")

    def write(file: Any) -> None:
        file.write(b"half")
        raise error

    with pytest.raises(type(error)):
        write_whole(str(path), write)
    assert names(tmp_path) == ["m"]
    assert path.read_text() == "before"


def test_what_a_killed_process_left_goes_with_the_next_save(saver: Saver, tmp_path: Path) -> None:
    script = (
        "import os, sys, signal\n"
        "from edgeagent.places import write_whole\n"
        "write_whole(sys.argv[1], lambda file: os.kill(os.getpid(), signal.SIGKILL))\n"
    )
    root = str(Path(places.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    command = [sys.executable, "-c", script, str(tmp_path / "m")]
    assert subprocess.run(command, env=environment, check=False).returncode == -9
    assert len(names(tmp_path)) == 1
    alive = tmp_path / f".edgeagent-{os.getpid()}-01234567"
    alive.touch()
    strange = tmp_path / ".edgeagent-notes"
    strange.touch()
    saver.save(tmp_path / "m", 1)
    assert names(tmp_path) == sorted([alive.name, strange.name, "m"])


def test_what_another_process_writes_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process may be in another container, whose pids mean nothing here."""
    monkeypatch.setattr(places, "_is_alive", lambda process: False)

    def write(file: Any) -> None:
        before = names(tmp_path)
        places.remove_stray(str(tmp_path))
        assert names(tmp_path) == before
        file.write(b"whole")

    write_whole(str(tmp_path / "m"), write)
    assert (tmp_path / "m").read_bytes() == b"whole"


def test_without_hard_links_a_file_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", none)
    (tmp_path / "m").write_text("x")
    assert move_aside(str(tmp_path / "m"), "earlier") == str(tmp_path / "m-earlier.safetensors")
    assert names(tmp_path) == ["m-earlier.safetensors"]


def test_processes_of_others_count_as_alive() -> None:
    assert places._is_alive(1)
    assert places._is_alive(10**10)
