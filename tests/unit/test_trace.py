"""Traces as text: what is written can be read again, and anything else is refused."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, Any

import pytest

from edgeagent.errors import UsageError
from edgeagent.planner.standard import StandardPlanner
from edgeagent.trace import keep_trace, read_trace, trace_lines, write_trace
from protocols import effects, events
from protocols.cluster.ancestry import Past
from protocols.member.context import NodeConfig
from protocols.member.node import Node
from protocols.member.plain import to_plain
from protocols.member.recorder import PingCalled, Recorder
from tests.unit.protocols.records import LINEAGE, member

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def recorder(**options: int) -> Recorder:
    """Return a recorder with the recording of a founder."""
    found = Recorder(**options)
    node = Node(NodeConfig(member(1), 5, 100, 8, 32, 100), StandardPlanner())
    found.found(node, 1.0, LINEAGE, Past(), b"meta", bytes(32))
    found.ping(node, 1.25)
    found.handle(node, 1.5, events.Contributed(0, (0,), float("nan"), b"", b"", True))
    return found


def text(made: Recorder) -> list[str]:
    return list(trace_lines(made, 9.5, {"node": "n1"}))


def test_what_is_written_is_read() -> None:
    made = recorder()
    lines = text(made)
    assert all(line.endswith("\n") and "NaN" not in line for line in lines)
    trace = read_trace(lines)
    header = trace.header
    assert (header["node"], header["now"], header["entries"], header["dropped"]) == (
        "n1",
        9.5,
        3,
        0,
    )
    assert trace.replays_from == 1
    entries = made.entries()
    assert [(x.number, x.now, x.error) for x in trace.lines] == [
        (e.number, e.now, e.error) for e in entries
    ]
    assert trace.lines[0].call == entries[0].call
    assert trace.lines[1].call == PingCalled()
    assert [x.effects for x in trace.lines] == [to_plain(e.effects) for e in entries]


def test_a_shortened_entry_has_no_call_that_can_be_read() -> None:
    made = recorder(most_entry_bytes=0)
    trace = read_trace(text(made))
    assert trace.replays_from is None
    assert [x.call for x in trace.lines] == [None] * 3
    assert any(effect["is"] == "Report" for effect in trace.lines[0].effects or [])
    assert effects.Report.__name__ == "Report"


def test_later_events_are_not_in_a_trace_that_is_being_written() -> None:
    made = recorder(most=3)
    lines = trace_lines(made, 9.5, {})
    for _ in range(3):
        made._keep(2.0, events.Tick(), [])
    assert len(list(lines)) == 4
    assert read_trace(text(made)).lines[-1].call == events.Tick()


def changed(line: str, **values: Any) -> str:
    return json.dumps({**json.loads(line), **values})


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["{}"],
        ["[]"],
        ["no JSON"],
        [changed(text(recorder())[0], trace=2)],
        text(recorder())[:-1],
        [*text(recorder())[:-1], text(recorder())[-1].replace("1.5", "NaN")],
        [*text(recorder())[:-1], text(recorder())[-1].replace("1.5", "1e999")],
        [*text(recorder())[:-1], changed(text(recorder())[-1], more=1)],
        [*text(recorder())[:-1], changed(text(recorder())[-1], call={"is": "Report"})],
    ],
)
def test_nothing_else_is_a_trace(lines: list[str]) -> None:
    with pytest.raises(ValueError):
        read_trace(lines)


def test_a_trace_file_is_its_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    write_trace(str(path), ["a\n", "b\n"])
    assert path.read_text() == "a\nb\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    write_trace("/dev/null", ["a\n"])
    with pytest.raises(UsageError, match="Is a directory"):
        write_trace(str(tmp_path), [])


def test_a_trace_lies_beside_the_events_or_in_the_agents_folder(tmp_path: Path) -> None:
    beside = str(tmp_path / "events")
    assert keep_trace(["a"], beside, "nowhere") == f"{beside}.trace.jsonl"
    for events_path in ("", "-"):
        path = keep_trace(["a"], events_path, str(tmp_path))
        assert path == os.path.join(tmp_path, "trace.jsonl")
        assert (tmp_path / "trace.jsonl").read_text() == "a"


def test_a_trace_that_cannot_be_written_hides_no_error(tmp_path: Path) -> None:
    def broken() -> Iterator[str]:
        yield "a"
        raise TypeError("a set has no plain form")

    assert keep_trace(broken(), "", str(tmp_path)) == ""
    assert keep_trace(["a"], "", str(tmp_path / "nowhere")) == ""
