"""What users install: the wheel and the source distribution, each tried in an empty environment."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.skipif(
    not (find_spec("build") and find_spec("hatchling")), reason="build and hatchling are not here"
)
@pytest.mark.long
def test_both_distributions_train(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(ROOT / "scripts" / "release-check"), str(tmp_path / "dist")],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "release-check: both work"
    assert sorted(path.suffix for path in (tmp_path / "dist").iterdir()) == [".gz", ".whl"]
