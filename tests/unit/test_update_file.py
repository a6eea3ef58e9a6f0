"""Updates that a joiner has received: space is reserved for a part at a time, and what the disk has
no space for lies in memory."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path

import pytest

from edgeagent.shell import update_file
from edgeagent.shell.update_file import UpdateFile

SIZE, PART = 10_000, 3000


class Disk:
    """Notes what is reserved, and is full from a number of bytes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int = 1 << 30) -> None:
        self.room, self.reserved = room, list[tuple[int, int]]()
        reserve = update_file._reserve

        def noted(file: int, start: int, length: int) -> None:
            if sum(size for _, size in self.reserved) + length > self.room:
                raise OSError(28, "No space left on device")
            self.reserved.append((start, length))
            reserve(file, start, length)

        monkeypatch.setattr(update_file, "_reserve", noted)


def fill(file: UpdateFile, order: tuple[int, ...]) -> bytes:
    for index in order:
        part = file.part(index)
        part[:] = bytes([index + 1]) * len(part)
    assert not len(file.part(4))
    return bytes(file.whole())


RIGHT = b"\1" * PART + b"\2" * PART + b"\3" * PART + b"\4" * 1000


def test_space_is_reserved_for_a_part_when_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """To reserve 500 MB at once could take more time than a neighbour waits for a heartbeat."""
    disk = Disk(monkeypatch)
    file = UpdateFile(SIZE, PART)
    assert disk.reserved == [(0, PART)]
    file.part(3)
    file.part(3)
    assert disk.reserved == [(0, PART), (3 * PART, 1000)]
    assert fill(file, (3, 1, 0, 2)) == RIGHT
    assert len(disk.reserved) == 4


@pytest.mark.parametrize("room", [0, PART, 2 * PART, SIZE - 1])
def test_what_finds_no_space_lies_in_memory(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    Disk(monkeypatch, room)
    file = UpdateFile(SIZE, PART)
    kept = file.part(2)
    assert fill(file, (2, 0, 3, 1)) == RIGHT
    assert bytes(kept) == b"\3" * PART, "a part stays where it is while it is received"


def test_without_fallocate_zeros_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    assert fill(UpdateFile(SIZE, PART), (0, 1, 2, 3)) == RIGHT
    monkeypatch.setattr(os, "pwrite", lambda *_: 5)
    assert fill(UpdateFile(SIZE, PART), (0, 1, 2, 3)) == RIGHT


def test_the_user_chooses_the_folder_and_no_file_stays_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = list[object]()
    temporary = tempfile.TemporaryFile

    def noted(*, dir: str | None) -> object:
        made.append(dir)
        return temporary(dir=dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", noted)
    for name in update_file.TEMPORARY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    file = UpdateFile(SIZE, PART)
    descriptor = file._file
    os.fstat(descriptor)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    UpdateFile(SIZE, PART)
    assert made == [update_file.LARGE_TEMPORARY, None]
    del file
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.mark.parametrize("parts", [1, 3])
def test_the_file_is_closed_once_all_is_reserved(parts: int) -> None:
    file = UpdateFile(parts * PART, PART)
    for index in range(parts):
        assert (file._file >= 0) is (parts > 1)
        file.part(index)[:] = b"x" * PART
    assert file._file == -1
    assert bytes(file.whole()) == b"x" * parts * PART
