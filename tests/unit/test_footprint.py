"""What a job needs, added up, and the verdict on it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from edgeagent import footprint as sums
from edgeagent.errors import EdgeAgentError
from edgeagent.footprint import check_it_fits, footprint, needed_at_start, remarks, verdict
from edgeagent.handover import Rehearsed
from edgeagent.memory import Room
from edgeagent.trainer import state
from edgeagent.trainer.state import TrainingState

MB = 1 << 20
AGENT = 50 * MB
PLANNED = Rehearsed(30 * MB, 10 * MB // 4, "float32", 10 * MB, "cpu", 10 * MB // 4, 8, 100 * MB)
MEASURED = replace(PLANNED, is_measured=True, micro_batch=17 * MB, update=25 * MB)


def has(free: int, swap: int = 0, shared_files: int = 1 << 40) -> Room:
    return Room(free, swap, None, shared_files)


def test_the_sum_is_what_is_there_at_one_time() -> None:
    planned, measured = footprint(PLANNED, AGENT), footprint(MEASURED, AGENT)
    always = 30 * MB + 3 * 10 * MB + 100 * MB + AGENT + 40 * MB  # the last: buffers for links
    assert planned.need == always + 10 * MB
    assert measured.need == always + 25 * MB
    assert [part.bytes for part in measured.micro_batch] == [10 * MB, 7 * MB]
    assert (planned.is_measured, measured.is_measured) == (False, True)
    assert [part.bytes for part in measured.later] == [30 * MB, 4 * 10 * MB, 3 * 10 * MB]
    frozen = footprint(replace(MEASURED, constant_bytes=25 * MB), AGENT)
    assert [part.bytes for part in frozen.later] == [5 * MB, 4 * 10 * MB, 3 * 10 * MB]
    assert frozen.need == measured.need
    larger = replace(MEASURED, micro_batch=99 * MB, workers=3 * MB)
    assert footprint(larger, AGENT).need == always + 99 * MB + 3 * MB
    assert footprint(replace(PLANNED, state_bytes=1 << 40), 0).always[-1].bytes == 96 * MB


def test_a_verdict_is_one_line() -> None:
    measured = footprint(MEASURED, AGENT)
    assert verdict(measured, Room(None, 0, None, None))[0] is None
    fits, line = verdict(measured, has(1000 * MB))
    assert fits
    assert line.startswith("fits: the job needs ")
    assert verdict(measured, has(measured.need))[0]
    fits, line = verdict(measured, has(measured.need - 1, swap=1))
    assert fits
    assert line.startswith("fits only with swap: ")
    fits, line = verdict(measured, has(measured.need - 1))
    assert fits is False
    assert line.startswith("does not fit: the job needs 288.4 MB and 288.4 MB are free; ")
    assert "at least" in verdict(footprint(PLANNED, AGENT), has(0))[1]


def test_what_is_divided_is_whole_on_few_devices_only() -> None:
    divided = footprint(replace(MEASURED, held=30 * MB, copies=1), AGENT)
    # One R of 10 MB takes the place of two, and 30 MB are divided.
    assert divided.need == footprint(MEASURED, AGENT).need + 20 * MB
    assert divided.need_beside(1) == divided.need_beside(2) == divided.need
    assert divided.need_beside(3) == divided.need - 10 * MB
    assert divided.need_beside(8) == divided.need - 30 * MB + 30 * MB // 4
    assert verdict(divided, has(divided.need))[1].startswith("fits: ")
    fits, line = verdict(divided, has(divided.need - 10 * MB))
    assert fits
    assert line.startswith("fits if at least 3 devices train together: each then needs 298")
    fits, line = verdict(divided, has(divided.need - 11 * MB))
    assert fits
    assert "at least 4 devices" in line
    fits, line = verdict(divided, has(divided.need - 30 * MB))
    assert fits is False


def test_what_else_is_said() -> None:
    assert remarks(MEASURED, has(0, shared_files=1)) == []
    (line,) = remarks(replace(MEASURED, workers=1), has(0, shared_files=64 * MB))
    assert "--shm-size" in line
    (line,) = remarks(replace(MEASURED, device="cuda:0"), has(0))
    assert "cuda:0" in line


def test_a_start_without_the_memory_is_refused_before_it_takes_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Linear(100, 100)
    replica = TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    sizes = (replica.layout.size, replica.vector.elements, replica.vector.accumulate)
    need = needed_at_start(*sizes)
    assert need > 6 * 4 * 10_100  # state of two, P, two R, the mean
    check_it_fits(*sizes, Room(None, 0, None, None))
    check_it_fits(*sizes, has(need))
    # With divided slots other devices may have all of these, and there is one R.
    less = needed_at_start(*sizes, divided=True)
    assert less < need - 2 * 4 * 10_100
    check_it_fits(*sizes, has(less), divided=True)
    check_it_fits(*sizes, has(0, swap=need))
    monkeypatch.setattr(state, "room", lambda: has(need - 1))
    monkeypatch.setattr(state, "create_shared_memory", lambda *_: pytest.fail("memory was taken"))
    with pytest.raises(EdgeAgentError) as caught:
        replica.share()
    line = str(caught.value)
    assert line.startswith("this device cannot hold the job: ")
    assert "\n" not in line
    assert sums.REMEDY in line
