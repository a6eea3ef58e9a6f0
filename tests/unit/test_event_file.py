"""The event file: whatever happens to its reader, the agent goes on."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from edgeagent import event_file
from edgeagent.errors import UsageError
from edgeagent.event_file import EventWriter
from edgeagent.plain_json import json_text


class Stdout:
    """A standard output with this descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor


def pipe(monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Return the two ends of a pipe, of which the second one is made standard output."""
    ends = os.pipe()
    monkeypatch.setattr(sys, "stdout", Stdout(ends[1]))
    return ends


def test_events_are_appended_line_by_line_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "events"
    for part in range(2):
        writer = EventWriter(str(path), lambda: 1.25)
        for number in range(500):
            writer.write("step", iteration=number, part=part)
        writer.close()
        writer.close()
        writer.write("step", iteration=-1)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [(e["part"], e["iteration"]) for e in lines] == [
        (part, number) for part in range(2) for number in range(500)
    ]
    assert lines[0] == {"t": 1.25, "event": "step", "iteration": 0, "part": 0}


def test_no_file_is_no_event() -> None:
    writer = EventWriter("")
    writer.write("step")
    writer.close()


def test_a_file_that_cannot_be_opened_is_a_wrong_option(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--events"):
        EventWriter(str(tmp_path))


def test_a_full_disk_is_said_once_and_ends_the_events(capsys: pytest.CaptureFixture[str]) -> None:
    writer = EventWriter("/dev/full")
    for number in range(100):
        writer.write("step", iteration=number)
    writer.close()
    said = capsys.readouterr().err
    assert said == (
        "edgeagent: no more events are written to --events /dev/full: No space left on device\n"
    )


def test_a_reader_that_is_gone_costs_nothing_but_events(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, writes = pipe(monkeypatch)
    os.close(reads)
    writer = EventWriter("-")
    for number in range(100):
        writer.write("step", iteration=number)
    writer.close()
    os.close(writes)
    assert capsys.readouterr().err.count("no more events are written") == 1


def test_a_reader_that_does_not_read_holds_nobody_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, writes = pipe(monkeypatch)
    monkeypatch.setattr(event_file, "CLOSE_S", 0.2)
    monkeypatch.setattr(event_file, "QUEUE_LINES", 50)
    begun = time.monotonic()
    writer = EventWriter("-")
    for number in range(200):
        writer.write("step", text="x" * 4096, iteration=number)
    assert writer.dropped > 0
    writer.close()
    assert time.monotonic() - begun < 5.0
    assert "events were not written" in capsys.readouterr().err
    os.close(reads)
    os.close(writes)
    for thread in threading.enumerate():
        if thread.name == "events":
            thread.join(5.0)


def test_a_pipe_that_somebody_made_non_blocking_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads, writes = pipe(monkeypatch)
    os.set_blocking(writes, False)
    read: list[bytes] = []

    def reader() -> None:
        while data := os.read(reads, 1 << 16):
            read.append(data)

    writer = EventWriter("-")
    for number in range(100):
        writer.write("step", text="x" * 4096, iteration=number)
    thread = threading.Thread(target=reader)
    thread.start()
    writer.close()
    os.close(writes)
    thread.join(5.0)
    os.close(reads)
    assert b"".join(read).count(b"\n") == 100


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": float("nan"), "b": [float("inf"), 1.5], "c": (-float("inf"),)}, None),
        ({"a": 1.0, "b": "NaN"}, '{"a": 1.0, "b": "NaN"}'),
    ],
)
def test_numbers_that_json_does_not_know_become_null(value: Any, text: str | None) -> None:
    assert json_text(value) == (text or '{"a": null, "b": [null, 1.5], "c": [null]}')
