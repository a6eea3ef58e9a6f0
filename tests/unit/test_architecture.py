"""ARCHITECTURE.md names every module once, and nothing else; and no modules import each other in a
circle, not even for types only, so that each can be read without those that use it."""

from __future__ import annotations

import ast
import re
import shutil
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

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


def imported(path: Path, modules: dict[str, Path]) -> list[str]:
    """Return which of `modules` the file imports, also for types only."""
    found: dict[str, None] = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module in modules and not node.level:
            below = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= dict.fromkeys(name if name in modules else node.module for name in below)
        elif isinstance(node, ast.Import):
            found |= dict.fromkeys(a.name for a in node.names if a.name in modules)
    return list(found)


def check_no_circle(root: Path) -> None:
    """Raise `CycleError` if modules below `root` import each other in a circle."""
    modules: dict[str, Path] = {}
    for path in sorted(root.rglob("*.py")):
        name = ".".join(path.relative_to(root).with_suffix("").parts)
        modules[name.removesuffix(".__init__")] = path
    graph = {name: imported(path, modules) for name, path in modules.items()}
    own = {name: [other for other in found if other != name] for name, found in graph.items()}
    TopologicalSorter(own).prepare()


@pytest.mark.parametrize("package", ["protocols", "edgeagent"])
def test_no_modules_import_each_other_in_a_circle(package: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / package, tmp_path / package)
    check_no_circle(tmp_path)


def test_a_circle_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("if TYPE_CHECKING:\n    from b import x\n")
    (tmp_path / "b.py").write_text("import a\n")
    with pytest.raises(CycleError):
        check_no_circle(tmp_path)
