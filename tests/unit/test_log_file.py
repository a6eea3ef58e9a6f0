"""The log's file: full ones become older ones, nothing is lost, several writers share one."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from edgeagent.log_file import LogFile, open_log

if TYPE_CHECKING:
    from pathlib import Path


def log_to(path: Path, *, most: int = 30, older: int = 2) -> LogFile:
    """Return a log whose files hold three lines of ten bytes."""
    return LogFile(str(path), open_log(str(path)), most, older)


def line(number: int) -> str:
    """Return a line that takes ten bytes with its end."""
    return f"line {number:04}"


def numbers(path: Path) -> list[int]:
    """Return the numbers of the lines in a file."""
    return [int(text.split()[1]) for text in path.read_text().splitlines()]


def test_full_files_become_older_ones(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = log_to(path)
    for number in range(11):
        log.put(line(number))
    log.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log", "log.1", "log.2"]
    assert numbers(path) == [9, 10]
    assert numbers(tmp_path / "log.1") == [6, 7, 8]
    assert numbers(tmp_path / "log.2") == [3, 4, 5]
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in tmp_path.iterdir())


def test_a_line_longer_than_a_file_is_written(tmp_path: Path) -> None:
    log = log_to(tmp_path / "log")
    log.put("x" * 100)
    log.put(line(1))
    log.close()
    assert (tmp_path / "log.1").read_text() == "x" * 100 + "\n"
    assert numbers(tmp_path / "log") == [1]


def test_what_was_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(line(1) + "\n" + line(2) + "\n")
    log = log_to(tmp_path / "log")
    log.put(line(3))
    log.put(line(4))
    log.close()
    assert numbers(tmp_path / "log.1") == [1, 2, 3]
    assert numbers(tmp_path / "log") == [4]


def test_two_agents_share_a_file(tmp_path: Path) -> None:
    path, seen = tmp_path / "log", []
    for number in range(8):  # each writer finds the file moved on by the other
        log = log_to(path, older=9)
        other = log_to(path, older=9)
        log.put(line(2 * number))
        log.close()
        other.put(line(2 * number + 1))
        other.close()
    for file in tmp_path.iterdir():
        seen += numbers(file)
        assert file.stat().st_size <= 30
    assert sorted(seen) == list(range(16))


def test_a_file_that_is_moved_away_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = log_to(path)
    path.rename(tmp_path / "away")
    log.put(line(1))
    log.close()
    assert numbers(path) == [1]


def test_a_pipe_is_written_as_it_is(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    log = LogFile(str(tmp_path / "log"), writer, 5)
    log.put(line(1))
    log.put(line(2))
    log.close()
    assert os.read(reader, 100) == b"line 0001\nline 0002\n"
    os.close(reader)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_gone_costs_no_line(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    log = log_to(folder / "log")
    (folder / "log").rename(tmp_path / "log")
    folder.rmdir()
    log.put(line(1))
    log.close()
    assert numbers(tmp_path / "log") == [1]
