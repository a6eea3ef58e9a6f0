"""`scripts/state_tables`: the page in docs/ says what the code says, and staleness is noticed."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "state_tables"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = SourceFileLoader("state_tables", str(SCRIPT))
    spec = spec_from_loader("state_tables", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_page_is_up_to_date() -> None:
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_every_module_with_a_table_is_on_the_page(script: ModuleType) -> None:
    protocols = SCRIPT.parent.parent / "protocols"
    with_table = {
        path.relative_to(protocols.parent).as_posix()
        for path in protocols.rglob("*.py")
        if "= StateTable(" in path.read_text(encoding="utf-8")
    }
    text = script.page()
    assert with_table
    assert all(f"`{name}`" in text for name in with_table)


def test_a_stale_page_is_noticed_and_mended(
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = tmp_path / "docs" / "state-tables.md"
    monkeypatch.setattr(script, "PAGE", page)
    assert script.main(["--check"]) == 1
    assert "--write" in capsys.readouterr().err
    assert script.main(["--write"]) == 0
    assert script.main(["--check"]) == 0
    page.write_text(page.read_text(encoding="utf-8").replace("joining", "jumping"))
    assert script.main(["--check"]) == 1


def test_printing_is_what_would_be_written(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main([]) == 0
    assert capsys.readouterr().out == script.page()


def test_states_are_names_that_mermaid_can_read(script: ModuleType) -> None:
    arrows = [line for line in script.page().splitlines() if " --> " in line]
    assert arrows
    for line in arrows:
        start, _, rest = line.strip().partition(" --> ")
        end = rest.partition(":")[0]
        assert all(name == "[*]" or name.isidentifier() for name in (start, end)), line
