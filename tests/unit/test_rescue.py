"""The agent saves for a trainer that does not answer: only whole states, overwriting nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

from edgeagent import rescue
from edgeagent.checkpoint_file import write_checkpoints
from edgeagent.errors import EdgeAgentError
from edgeagent.marks import MARK_APPLYING, MARK_OWED, MARK_STRIPES, OWES_STEP, STEPS_NOW
from edgeagent.rescue import kill_and_save
from edgeagent.shell.trainer_side import OwnState
from edgeagent.slot_steps import SlotStep
from edgeagent.slots_file import slots_path
from edgeagent.trainer import owed_slots
from edgeagent.trainer.checkpoint import load_checkpoint, save_checkpoint
from edgeagent.trainer.introduction import introduce
from edgeagent.trainer.slot_files import slots_beside
from edgeagent.trainer.state import TrainingState
from protocols.cluster.ancestry import Past

if TYPE_CHECKING:
    from edgeagent.handover import Hello
    from edgeagent.shared_memory import SharedMemory

LOOP = "while True: pass"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a trainer that loops for ever."""
    process = subprocess.Popen([sys.executable, "-c", LOOP])
    yield process
    process.kill()
    process.wait()


class Trained:
    """A state in shared memory, and what its trainer has said about it."""

    def __init__(self, save: Path, *, shards: bool = False) -> None:
        torch.manual_seed(0)
        model = torch.nn.Linear(5, 3)
        optimizer = torch.optim.AdamW(model.parameters())
        self.state = TrainingState(model, optimizer, shards=shards)
        self.memory: SharedMemory = self.state.share()
        self.hello: Hello = introduce(self.state, (), 8, 8, 0, str(save))
        self.own = OwnState(Past(0), self.hello.meta, trained=True)

    def bytes_of(self, folder: Path) -> bytes:
        """Return the file that the trainer itself would have written."""
        path = folder / "by-the-trainer"
        state = self.memory.state.view()
        notes = self.state.notes()
        save_checkpoint(str(path), self.state.layout, state, self.state.meta(), notes)
        return path.read_bytes()


def test_the_file_is_what_the_trainer_would_have_written(
    child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    save = tmp_path / "m.safetensors"
    save.write_bytes(b"older")
    trained = Trained(save)
    assert kill_and_save(child, trained.hello, trained.memory, trained.own) == str(save)
    assert child.poll() is not None
    assert save.read_bytes() == trained.bytes_of(tmp_path)
    assert (tmp_path / "m-earlier.safetensors").read_bytes() == b"older"
    layout, memory = trained.state.layout, trained.memory.state.view()
    assert load_checkpoint(str(save), layout, memory) == (0, trained.hello.meta)


def test_nothing_is_saved_where_nothing_was_to_be_saved(
    child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    trained = Trained(tmp_path / "m")
    hello = replace(trained.hello, save="")
    assert kill_and_save(child, hello, trained.memory, trained.own) == ""
    assert kill_and_save(child, None, None, None) == ""
    untrained = replace(trained.own, trained=False)
    assert kill_and_save(child, trained.hello, trained.memory, untrained) == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("why", ["applying", "another iteration", "half pulled"])
def test_a_state_that_is_not_whole_is_not_saved(
    child: subprocess.Popen[bytes], tmp_path: Path, why: str
) -> None:
    trained = Trained(tmp_path / "m")
    own: OwnState | None = trained.own
    if why == "applying":
        trained.memory.marks.array("int64")[MARK_APPLYING] = 1
    elif why == "another iteration":
        own = replace(trained.own, past=Past(3))
    else:
        own = None
    with pytest.raises(EdgeAgentError, match="in the middle of"):
        kill_and_save(child, trained.hello, trained.memory, own)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_moved_aside_is_not_overwritten(
    child: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str, mark: str) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edgeagent.rescue.move_aside", full)
    save = tmp_path / "m"
    save.write_bytes(b"older")
    trained = Trained(save)
    with pytest.raises(EdgeAgentError, match="No space left"):
        kill_and_save(child, trained.hello, trained.memory, trained.own)
    assert save.read_bytes() == b"older"


def test_where_the_disk_is_full_another_place_is_taken(
    child: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, home = tmp_path / "full", tmp_path / "home"
    full.mkdir()
    home.mkdir()
    monkeypatch.chdir(full)
    monkeypatch.setenv("HOME", str(home))
    write = write_checkpoints

    def unless_full(*files: Any) -> None:
        if files[0][0].startswith(str(full)):
            raise EdgeAgentError(f"cannot save {files[0][0]}: No space left on device")
        write(*files)

    monkeypatch.setattr(rescue, "write_checkpoints", unless_full)
    trained = Trained(full / "m.safetensors")
    place = kill_and_save(child, trained.hello, trained.memory, trained.own)
    assert place == str(home / "m-rescued.safetensors")
    assert Path(place).read_bytes() == trained.bytes_of(tmp_path)
    monkeypatch.setattr(rescue, "other_places", lambda *_: [])
    with pytest.raises(EdgeAgentError, match=r"full.m.safetensors: No space left"):
        kill_and_save(child, trained.hello, trained.memory, trained.own)


def test_of_a_device_the_state_that_was_brought_last_is_saved(
    child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    save = tmp_path / "m.safetensors"
    trained = Trained(save)
    ahead = OwnState(Past(7), b"scalars of a state that is on the device", trained=True)
    with pytest.raises(EdgeAgentError, match="in the middle of"):
        kill_and_save(child, trained.hello, trained.memory, None, trained.own)
    assert kill_and_save(child, trained.hello, trained.memory, ahead, trained.own) == str(save)
    assert save.read_bytes() == trained.bytes_of(tmp_path)


def test_slots_of_a_divided_optimizer_are_saved_beside_it(
    child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    save = tmp_path / "m.safetensors"
    save.write_bytes(b"older")
    (tmp_path / "m-slots.safetensors").write_bytes(b"older slots")
    trained = Trained(save, shards=True)
    shards = trained.state.shards
    assert shards is not None
    trained.memory.held.array("float32")[:] = 3.0
    kept = tuple(range(shards.layout.stripes))[::2]
    shards.keep(kept)
    assert kill_and_save(child, trained.hello, trained.memory, trained.own) == str(save)
    by_trainer = tmp_path / "by-the-trainer.safetensors"
    held = trained.memory.held.view()
    weights = shards.mark(trained.memory.state.view(), trained.state.layout)
    about = (trained.state.meta(), kept, weights)
    write_checkpoints(slots_beside(str(by_trainer), shards, held, *about))
    written = Path(slots_path(str(save))).read_bytes()
    assert written == Path(slots_path(str(by_trainer))).read_bytes()
    assert len(written) > 100
    assert (tmp_path / "m-earlier-slots.safetensors").read_bytes() == b"older slots"


@pytest.mark.parametrize(("mark", "lacks"), [(OWES_STEP, False), (STEPS_NOW, True)])
def test_slots_that_lack_a_step_are_stepped_or_not_saved(
    child: subprocess.Popen[bytes],
    tmp_path: Path,
    mark: int,
    lacks: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save = tmp_path / "m.safetensors"
    trained = Trained(save, shards=True)
    shards = trained.state.shards
    assert shards is not None
    held, layout = trained.memory.held.array("float32"), shards.layout
    held[:] = 3.0
    step = SlotStep("adam", (0.5, 0.5), False, 1)
    if mark == OWES_STEP:
        monkeypatch.setattr(owed_slots, "AT_ONCE", 1)
        shards.owed.owe(step, shards.stripes)
        shards.owed.some()  # then the trainer computes again, and is killed
        assert len(set(held[: layout.slots * layout.elements].tolist())) > 1
    else:
        trained.memory.marks.array("int64")[MARK_OWED] = mark
    about = (trained.hello, trained.memory, trained.own)
    assert kill_and_save(child, *about, owed=step) == str(save)
    slots = load_file(slots_path(str(save)))
    assert bool(slots) is not lacks
    assert {tuple(x.unique().tolist()) for name, x in slots.items() if "exp_avg_sq" in name} == (
        set() if lacks else {(6.0,)}
    )
    assert layout.stripes > 0
    held[:] = 3.0
    trained.memory.marks.array("int64")[MARK_OWED] = mark
    kill_and_save(child, *about, owed=None)  # the agent has not heard of that step
    assert not load_file(slots_path(str(save)))


def test_all_stripes_there_can_be_are_told_to_the_agent(tmp_path: Path) -> None:
    trained = Trained(tmp_path / "m", shards=True)
    assert trained.state.shards is not None
    for stripes in ((), (0, 63, 64, 127), tuple(range(128))):
        trained.state.shards.keep(stripes)
        words = trained.memory.marks.array("uint64")[MARK_STRIPES:][:2]
        bits = int(words[0]) | int(words[1]) << 64
        assert bits == sum(1 << s for s in stripes)
