"""`scripts/gpu-check`: a rehearsal on the CPU, and what it says on a machine without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgeagent.trainer.image import CPU
from tests.gpu.checks import CHECKS, Skip

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "gpu-check"
WITH_AGENTS = (  # as the scenarios do
    "one-agent-trains",
    "two-agents-on-one-device",
    "divided-agents-on-device-and-processor",
)
NEEDS_A_GPU = (
    "second-device-has-its-own-stream",
    "few-copies-in-an-iteration",
    "agents-on-device-and-processor",
)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("name", [n for n in CHECKS if n not in (*WITH_AGENTS, *NEEDS_A_GPU)])
def test_a_check_passes_in_rehearsal(name: str) -> None:
    assert CHECKS[name](CPU)


@pytest.mark.parametrize("name", NEEDS_A_GPU)
def test_a_check_that_needs_a_gpu_says_so(name: str) -> None:
    with pytest.raises(Skip, match="device"):
        CHECKS[name](CPU)


def test_without_a_gpu_nothing_is_checked() -> None:
    ended = run()
    assert ended.returncode == 3
    assert ended.stderr.startswith("gpu-check: nothing was checked: device cuda cannot be used: ")
    assert ended.stdout == ""


def test_results_are_lines_and_json(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    names = ("script-model-is-moved", "few-copies-in-an-iteration")
    only = [option for name in names for option in ("--only", name)]
    ended = run("--device", "cpu", *only, "--json", str(path))
    assert ended.returncode == 0, ended.stderr
    *lines, total = ended.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [["pass", names[0]], ["skip", names[1]]]
    assert total == "1 pass, 0 fail, 1 skip on cpu"
    assert [result["outcome"] for result in json.loads(path.read_text())] == ["pass", "skip"]
