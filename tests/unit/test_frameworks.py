"""`edgeagent.hf` and `edgeagent.lightning`: lazy, and one clear line where the extra is missing."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from edgeagent.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
ENTRIES = [
    ("edgeagent.hf", "EdgeTrainer", "transformers", "huggingface"),
    ("edgeagent.lightning", "EdgeStrategy", "lightning", "lightning"),
]


@pytest.mark.parametrize(("entry", "name", "package", "module"), ENTRIES)
def test_a_missing_extra_is_named(
    entry: str, name: str, package: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"edgeagent.trainer.frameworks.{module}"
    frameworks = importlib.import_module("edgeagent.trainer.frameworks")
    monkeypatch.delitem(sys.modules, place, raising=False)
    monkeypatch.delattr(frameworks, module, raising=False)
    for known in [n for n in sys.modules if n == package or n.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, known)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=rf"{entry} needs {package}.*pip install 'edgeagent\["):
        getattr(importlib.import_module(entry), name)


@pytest.mark.parametrize(("entry", "name", "package", "module"), ENTRIES)
def test_nothing_else_is_there(entry: str, name: str, package: str, module: str) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Trainer'"):
        _ = importlib.import_module(entry).Trainer


@pytest.mark.parametrize("entry", [entry for entry, *_ in ENTRIES])
def test_importing_it_loads_neither_torch_nor_the_package(entry: str) -> None:
    script = f"import sys, {entry}\nprint(sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert ended.stdout.strip() == "[]"
