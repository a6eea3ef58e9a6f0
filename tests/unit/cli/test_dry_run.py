"""`run --dry-run`: what is printed, and what of a trainer that did not live to report."""

from __future__ import annotations

import json
import signal
from dataclasses import replace

import pytest

from edgeagent import memory
from edgeagent.commands import dry_run as command
from edgeagent.commands.dry_run import dry_run
from edgeagent.config import TrainerConfig
from edgeagent.errors import EdgeAgentError
from edgeagent.handover import Rehearsed
from edgeagent.launch import Job
from edgeagent.memory import Room

MB = 1 << 20
JOB = Job("net", ("true",), built_in=False)
PLANNED = Rehearsed(3 * MB, MB // 4, "float32", MB, "cpu", MB // 4, 8, 100 * MB)
MEASURED = replace(PLANNED, is_measured=True, micro_batch=17 * MB, update=25 * MB)


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "room", lambda: Room(1 << 30, 0, None, 1 << 30))


def run(
    monkeypatch: pytest.MonkeyPatch, found: Rehearsed | None, status: int, *, as_json: bool
) -> int:
    monkeypatch.setattr(command, "_rehearse", lambda *_: (found, status))
    return dry_run(JOB, TrainerConfig(), as_json=as_json)


def test_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, MEASURED, 0, as_json=True) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report) == list(command.DryRun.__annotations__)
    assert all(list(p) == list(command.PartFigures.__annotations__) for p in report["parts"])
    assert (report["job"], report["fits"], report["measured"]) == ("net", True, True)
    assert report["free_bytes"] == 1 << 30
    kept = sum(part["bytes"] for part in report["parts"] if part["when"] == "always")
    assert report["need_bytes"] == kept + 25 * MB


def test_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, replace(MEASURED, device="cuda:0"), 0, as_json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "net: 262,144 parameters, 8 samples in a micro-batch"
    assert all(len(line) <= 80 for line in lines[:-2])
    assert sum(" MB  " in line for line in lines) > 4, "no size is cut"
    assert lines[-2].startswith("note: the memory of cuda:0")
    assert lines[-1].startswith("fits: ")


def test_a_trainer_that_the_system_killed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, PLANNED, -signal.SIGKILL, as_json=False) == 1
    assert "does not fit: the system killed the trainer" in capsys.readouterr().out


def test_a_job_that_failed_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, status, what in (
        (None, 3, "exit status 3 before its first loader()"),
        (PLANNED, 1, "exit status 1 in its first micro-batch"),
    ):
        with pytest.raises(EdgeAgentError, match="its memory is not known") as caught:
            run(monkeypatch, found, status, as_json=False)
        assert what in str(caught.value)


def test_sums_alone_are_enough_for_no(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, replace(PLANNED, state_bytes=1 << 31), 1, as_json=True) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["fits"], report["measured"]) == (False, False)
