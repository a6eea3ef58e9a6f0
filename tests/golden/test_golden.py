"""The histories of `histories.py` are, line for line, those in the text files of this folder.

After an intended change, `pytest tests/golden --rewrite` writes the files anew; their difference
then shows in review what the change does to the protocol.
"""

from __future__ import annotations

import difflib
import textwrap
from pathlib import Path

import pytest

from tests.golden.histories import HISTORIES

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", HISTORIES)
def test_history(name: str, request: pytest.FixtureRequest) -> None:
    history = HISTORIES[name]
    about = textwrap.wrap(" ".join((history.__doc__ or "").split()), 98)
    told = "\n".join([*(f"# {line}" for line in about), *history(), ""])
    file = HERE / f"{name}.txt"
    if request.config.getoption("--rewrite"):
        file.write_text(told, encoding="utf-8")
    known = file.read_text(encoding="utf-8")
    changes = difflib.unified_diff(known.splitlines(), told.splitlines(), "known", "now", n=2)
    assert known == told, "\n".join(list(changes)[:60])


def test_every_file_belongs_to_a_history() -> None:
    assert sorted(file.stem for file in HERE.glob("*.txt")) == sorted(HISTORIES)
