"""`scripts/failures` itself, with real agents: its figures, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.scenarios.cluster import POLL_S, WAIT_S
from tests.scenarios.processes import session_lives

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "failures"


def started(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start the script with its temporary files in `folder`."""
    command = [sys.executable, str(SCRIPT), *arguments]
    environment = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


@pytest.mark.long
@pytest.mark.slow
def test_pairs(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    assert started(tmp_path, "pairs", "--times", "1", "--json", str(figures)).wait(3 * WAIT_S) == 0
    result = json.loads(figures.read_text())
    assert result["problems"] == []
    assert [case["case"] for case in result["cases"]] == ["worker of 2", "scheduler of 2"]
    for case in result["cases"]:
        assert 0 < case["noticed_s"]["worst"] <= case["decision_s"]["worst"]
        assert case["decision_s"]["worst"] < case["step_s"]["worst"]
    assert list(tmp_path.glob("edgeagent-failures-*")) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    script = started(tmp_path, "pairs")
    deadline = time.monotonic() + WAIT_S
    while not (records := list(tmp_path.glob("*/pairs/home/*/slot-1/agent.json"))):
        assert time.monotonic() < deadline
        time.sleep(POLL_S)
    leader = json.loads(records[0].read_text())["pid"]
    assert session_lives(leader)
    script.send_signal(number)
    assert script.wait(WAIT_S) == 130
    assert not session_lives(leader)
    assert list(tmp_path.glob("edgeagent-failures-*")) == []
