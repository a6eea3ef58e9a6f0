"""The map in ARCHITECTURE.md names every module, once, and nothing that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_map_is_complete() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w/]+\.py)` \|", text.partition("\n## Map\n")[2], re.MULTILINE)
    modules = [
        path.relative_to(ROOT).as_posix()
        for package in ("protocols", "edgeagent", "models")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py" and path != ROOT / "edgeagent" / "__main__.py"
    ]
    assert sorted(rows) == sorted(modules)


def test_paths_in_the_text_exist() -> None:
    for page in ("ARCHITECTURE.md", "README.md", "CONTRIBUTING.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        pattern = r"`((?:edgeagent|protocols|models|tests|scripts|docs)/[\w./]*)`"
        missing = [path for path in re.findall(pattern, text) if not (ROOT / path).exists()]
        assert not missing, f"{page} names {missing}"
