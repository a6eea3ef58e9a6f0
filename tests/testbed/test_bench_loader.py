"""The benchmark of the loader: both contenders run, and neither is faster than the bound."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from tests.testbed.bench import KINDS, loader


@pytest.mark.long
def test_both_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    KINDS["loader"].add_options(parser)
    args = parser.parse_args(["--iterations", "6", "--repeat", "1", "--workers", "2"])
    args.out = tmp_path
    assert loader.run(args) == 0
    (case,) = json.loads((tmp_path / "loader.json").read_text())["bounds_s"].items()
    runs = json.loads((tmp_path / "loader.json").read_text())["runs"]
    assert sorted(run["contender"] for run in runs) == ["edgeagent", "torch DataLoader"]
    assert case == ("5 ms a sample, 2 workers", 256 * 0.005 / 2)
    assert all(run["s"] > 0.5 * case[1] for run in runs)
    assert "samples/s" in capsys.readouterr().out


@pytest.mark.long
def test_a_contender_that_fails_is_a_line(tmp_path: Path) -> None:
    args = argparse.Namespace(out=tmp_path, workers=[-1], sample_ms=1.0, iterations=5, repeat=1)
    assert loader.run(args) == 1
    runs = json.loads((tmp_path / "loader.json").read_text())["runs"]
    assert [run["s"] for run in runs] == [None, None]
    assert any("workers is -1" in run["why"] for run in runs)
