"""`scripts/bench` `steps`, `gpu`, `frozen` and `small`, as far as little time allows."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from tests.testbed.bench import frozen, gpu, small, steps
from tests.testbed.bench.gpu_job import network
from tests.testbed.namespaces import TestbedError


def test_all_contenders_make_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "SHAPES", {"2 of 6": [(2, 3)] * 2})
    args = argparse.Namespace(out=tmp_path / "out", threads=[1], repeat=2)
    assert steps.run(args) == 0
    found = json.loads((args.out / "steps.json").read_text())
    assert len(found) == len(steps.OPTIMIZERS)
    assert all(entry[name] > 0 for entry in found for name in steps.CONTENDERS)
    assert "2 of 6" in (args.out / "steps.md").read_text()


def test_without_a_gpu_there_is_one_line(tmp_path: Path) -> None:
    args = argparse.Namespace(device="cuda:77", out=tmp_path)
    with pytest.raises(TestbedError, match="cuda:77 cannot be used"):
        gpu.run(args)


def test_only_the_measured_steps_count() -> None:
    assert gpu.median_step([0.0, 9.0, 10.0, 11.0, 13.0], 3) == 1.0
    assert sum(p.numel() for p in network(1, 64).parameters()) > 300_000


@pytest.mark.long
def test_a_frozen_base_is_trained_beside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = argparse.Namespace(
        out=tmp_path, millions=0.1, milliseconds=1.0, steps=30, repeat=1, tree=[frozen.ROOT]
    )
    assert frozen.run(args) == 0
    steps = json.loads((tmp_path / "frozen.json").read_text())["steps_s"]
    assert list(steps) == [frozen.TORCH, f"edgeagent, {frozen.ROOT.name}"]
    assert all(len(several) == 30 - frozen.WARM - 1 for several in steps.values())
    assert min(steps[frozen.TORCH]) >= 0.001
    assert "torch alone |" in capsys.readouterr().out


@pytest.mark.long
def test_small_gradients_are_summed_by_both(tmp_path: Path) -> None:
    args = argparse.Namespace(out=tmp_path, mb=[0.1], steps=5, repeat=1, tree=[frozen.ROOT])
    assert small.run(args) == 0
    runs = json.loads((tmp_path / "small.json").read_text())["runs"]
    assert sorted(run["contender"].partition(",")[0] for run in runs) == [small.DDP, "edgeagent"]
    assert all(run["s"] > 0 for run in runs)
