"""Text becomes blocks of bytes, divided for good, and is refused in one line if it cannot be."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from models import text
from models.download import DataError
from models.text import TextBlocks

CONTENT = bytes(range(256)) * 5


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A text of 1280 bytes."""
    path = tmp_path / "text.txt"
    path.write_bytes(CONTENT)
    return path


def test_blocks(file: Path) -> None:
    train, test = TextBlocks(True, file, length=20), TextBlocks(False, str(file), length=20)
    assert (len(train), len(test)) == (57, 6)  # of 1152 and 128 bytes
    tokens, following = train[3]
    assert (tokens.dtype, following.dtype) == (torch.int64, torch.int64)
    assert bytes(tokens.tolist()) == CONTENT[60:80]
    assert bytes(following.tolist()) == CONTENT[61:81]
    assert bytes(test[5][1].tolist()) == CONTENT[1152 + 101 : 1152 + 121]
    for index in (57, -1):
        with pytest.raises(IndexError):
            train[index]


def test_parts_do_not_overlap(file: Path) -> None:
    train, test = TextBlocks(True, file, length=20), TextBlocks(False, file, length=20)
    assert bytes(train.tokens.tolist()) + bytes(test.tokens.tolist()) == CONTENT


def test_the_digest_is_of_the_whole_text(file: Path) -> None:
    digest = TextBlocks(True, file, length=20).data_digest
    assert digest == hashlib.sha256(CONTENT).hexdigest()
    assert TextBlocks(False, file, length=3).data_digest == digest
    file.write_bytes(CONTENT[:-1] + b"x")
    assert TextBlocks(True, file, length=20).data_digest != digest


def test_without_a_file_there_is_the_text_of_pythons_help() -> None:
    blocks = TextBlocks(length=128)
    assert len(blocks) > 2000
    assert b" the " in text.read_text()
    assert max(blocks[0][0]) < text.VOCABULARY


def test_pythons_text_is_the_same_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    for topics in ({"b": "two", "a": "one"}, {"a": "one", "b": "two"}):
        module = ModuleType("pydoc_data.topics")
        monkeypatch.setattr(module, "topics", topics, raising=False)
        monkeypatch.setitem(sys.modules, "pydoc_data.topics", module)
        assert text.read_text() == b"one\ntwo"


def test_a_python_without_text_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(DataError, match="without the text of its help; name a text file"):
        TextBlocks()


def test_what_is_no_text_is_refused(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="is a folder; name one text file with --data FILE"):
        TextBlocks(data=tmp_path)
    with pytest.raises(DataError, match=r"none\.txt cannot be read: No such file"):
        TextBlocks(data=tmp_path / "none.txt")
    with pytest.raises(DataError, match=f"{os.fspath(file)} has 1280 bytes; 1290 are the least"):
        TextBlocks(data=file, length=128)
    assert len(TextBlocks(data=file, length=127)) == 9
    file.write_bytes(b"")
    with pytest.raises(DataError, match="has 0 bytes"):
        TextBlocks(data=file, length=1)
    monkeypatch.setattr(text, "MAX_BYTES", 5)
    file.write_bytes(b"abcdef")
    with pytest.raises(DataError, match="more than 5 bytes"):
        TextBlocks(data=file, length=1)
