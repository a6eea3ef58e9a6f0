"""Files of earlier formats are resumed, to the last bit; those of later ones are refused in words.

`python -m tests.unit.trainer.test_older_files PATH` writes a file in the present format.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import nn

from edgeagent.checkpoint_file import FORMAT, MODEL_KEYS, NEWEST
from edgeagent.errors import UsageError
from edgeagent.handover import Reduced
from edgeagent.trainer.checkpoint import resume, save_checkpoint
from edgeagent.trainer.export import read_model
from edgeagent.trainer.state import TrainingState

if TYPE_CHECKING:
    from edgeagent.shared_memory import SharedMemory

OLDER = Path(__file__).resolve().parent / "older"
UPDATES = 3
# By format: digests of the state that the file holds, and of the one after another update.
DIGESTS: dict[int, tuple[str, str]] = {
    1: (
        "c8d462b5a43d0a15dd506dd43db464264e608ca7f69bde46bc4881be93fd42fe",
        "a1456b0331cf13043494e28260a8205c3e53c2017fc8c25f82ee1112e0d69c96",
    ),
}


def job() -> tuple[TrainingState, SharedMemory]:
    """Return a replica that follows from nothing random: batch norm, momenta and a schedule."""
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            values = torch.arange(parameter.numel(), dtype=torch.float32) / 64 - 0.125 * number
            parameter.copy_(values.view(parameter.shape))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25, foreach=False)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    state = TrainingState(model, optimizer, schedule, max_grad_norm=1.0)
    return state, state.share()


def update(state: TrainingState, memory: SharedMemory) -> None:
    """Apply one update of fixed sums."""
    total = memory.reduced[0].array("float32")
    layout = state.vector
    for offsets in (layout.gradient_offsets, layout.buffer_offsets):
        for place, offset in enumerate(offsets):
            total[offset] = (state.iteration + place + 1) / 16
    squares = [
        float(np.dot(part, part))
        for start in range(0, layout.elements, layout.chunk_elements)
        for part in [total[start : start + layout.chunk_elements].astype(np.float64)]
    ]
    bitmap = ((1 << state.trainable) - 1).to_bytes(-(-state.trainable // 8), "little")
    sums = Reduced(state.iteration, 0, 2, 1.0, bitmap, b"", True, tuple(squares), 1)
    state.apply(sums)


def digest(state: TrainingState, memory: SharedMemory) -> str:
    """Return a digest of tensors and scalars."""
    return hashlib.sha256(bytes(memory.state.view()) + state.meta()).hexdigest()


def write(path: Path) -> tuple[str, str]:
    """Write a file; return the digests of its state and of the one after another update."""
    state, memory = job()
    for _ in range(UPDATES):
        update(state, memory)
    save_checkpoint(str(path), state.layout, memory.state.view(), state.meta(), state.notes())
    before = digest(state, memory)
    update(state, memory)
    return before, digest(state, memory)


def test_there_is_a_file_of_each_format() -> None:
    assert sorted(DIGESTS) == list(range(1, NEWEST + 1))
    names = sorted(path.name for path in OLDER.glob("*.safetensors"))
    assert names == [f"format_{number}.safetensors" for number in sorted(DIGESTS)]
    text = (OLDER / "README.md").read_text()
    assert all(f"`{name}`" in text for name in names)


@pytest.mark.parametrize("number", DIGESTS)
def test_training_goes_on_from_it_to_the_last_bit(number: int) -> None:
    state, memory = job()
    resume(str(OLDER / f"format_{number}.safetensors"), state, memory.state.view())
    assert state.iteration == UPDATES
    assert digest(state, memory) == DIGESTS[number][0]
    update(state, memory)
    assert digest(state, memory) == DIGESTS[number][1]


def test_the_first_files_of_format_1_did_not_name_the_models_keys(tmp_path: Path) -> None:
    """They lack a note that was added without another format, because older readers skip it."""
    data = (OLDER / "format_1.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    del header["__metadata__"][MODEL_KEYS]
    text = json.dumps(header).encode()
    path = tmp_path / "first.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    state, memory = job()
    resume(str(path), state, memory.state.view())
    assert digest(state, memory) == DIGESTS[1][0]


@pytest.mark.parametrize("number", DIGESTS)
def test_a_model_can_be_taken_out_of_it(number: int) -> None:
    model = read_model(str(OLDER / f"format_{number}.safetensors"))
    assert sorted(model) == sorted(job()[0].model.state_dict())


def test_the_present_version_still_writes_the_newest_format(tmp_path: Path) -> None:
    path = tmp_path / "now.safetensors"
    assert write(path) == DIGESTS[NEWEST]
    assert path.read_bytes() == (OLDER / f"format_{NEWEST}.safetensors").read_bytes()


@pytest.mark.parametrize("text", [f"edgeagent/{NEWEST + 1}", "edgeagent/1234"])
def test_a_later_format_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    said = refusals(tmp_path, text)
    for line in said:
        assert "was saved by a later version of edgeagent" in line
        assert f"its format is {text.partition('/')[2]} and this version reads up to" in line
        assert "\n" not in line


@pytest.mark.parametrize("text", ["edgeagent/0", "edgeagent/01", "edgeagent/x", "pt", "edgeagent/"])
def test_what_is_no_format_is_none_of_ours(tmp_path: Path, text: str) -> None:
    said = refusals(tmp_path, text)
    assert all("no training state that edgeagent has saved" in line for line in said)


def refusals(folder: Path, text: str) -> list[str]:
    """Return what resuming and exporting say of a file whose format is called `text`."""
    data = (OLDER / f"format_{NEWEST}.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = re.sub(rf'"{FORMAT}"'.encode(), f'"{text}"'.encode(), data[8 : 8 + length])
    path = folder / "other.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
    state, memory = job()
    before = digest(state, memory)
    said = []
    with pytest.raises(UsageError) as caught:
        resume(str(path), state, memory.state.view())
    said.append(str(caught.value))
    assert digest(state, memory) == before
    with pytest.raises(UsageError) as caught:
        read_model(str(path))
    return [*said, str(caught.value)]


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
