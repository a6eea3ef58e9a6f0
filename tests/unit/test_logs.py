"""The log: off by default, one JSON object per line, without tokens, and never blocking."""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Any, cast

import pytest

from edgeagent.errors import UsageError
from edgeagent.logs import LOGGER, log_error, node_log, start_logging, stop_logging
from protocols import effects, events
from protocols.wire import messages as m
from protocols.wire.envelope import Envelope
from tests.unit.protocols.records import member, tags

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from protocols.member.context import Context

TOKEN = b"a secret that nobody may read"


class FakeContext:
    """Has what the log reads from a node's context."""

    iteration = 7

    def name(self, node: bytes) -> str:
        return node.decode()


CONTEXT = cast("Context", FakeContext())


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    yield
    stop_logging()


def tell_all(name: str = "alice") -> None:
    """Log one line of each kind."""
    log = node_log(name)
    assert log is not None
    log.event(CONTEXT, events.Tick())
    log.event(CONTEXT, events.TokenWanted(TOKEN))
    message = m.NewToken(TOKEN, 1, 2, 3, ())
    log.event(CONTEXT, events.Received(b"bob", Envelope(tags(), message)))
    log.event(CONTEXT, events.LinkUp(member(1)))
    log.report(CONTEXT, effects.Report("delay", {"id": b"\1", "seconds": 0.5}))
    log.report(CONTEXT, effects.Report("member_joined", {"node": "bob"}))
    log.report(CONTEXT, effects.Report("link_down", {"node": "bob"}))
    log_error(name, "a bug", 7)
    stop_logging()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_there_is_no_log_unless_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    start_logging("", "")
    assert node_log("alice") is None
    log_error("alice", "a bug", None)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("level", "count"), [("debug", 8), ("info", 3), ("warning", 2), ("error", 1)]
)
def test_levels(tmp_path: Path, level: str, count: int) -> None:
    start_logging(level, str(tmp_path / "log"))
    tell_all()
    found = lines(tmp_path / "log")
    assert len(found) == count
    assert found[-1]["event"] == "error"
    assert found[-1]["message"] == "a bug"
    assert all(line["node"] == "alice" and line["t"] > 1e9 for line in found)


def test_what_is_in_a_line_and_that_no_token_is(tmp_path: Path) -> None:
    path = tmp_path / "log"
    start_logging("debug", str(path))
    tell_all()
    tick, _, received, _, delay, joined, down, error = lines(path)
    del tick["t"], received["t"], delay["t"], joined["t"]
    who = {"node": "alice", "iteration": 7}
    assert tick == {"level": "debug", **who, "event": "Tick"}
    more = {"from": "bob", "message": "NewToken"}
    assert received == {"level": "debug", **who, "event": "Received", **more}
    assert delay["values"] == {"id": "01", "seconds": 0.5}
    assert joined == {"level": "info", **who, "event": "member_joined", "values": {"node": "bob"}}
    assert down["level"] == "warning"
    assert error["iteration"] == 7
    data = path.read_bytes()
    assert TOKEN not in data
    assert TOKEN.hex().encode() not in data


def test_the_log_goes_to_stderr_and_is_appended_to_a_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stderr:
        def fileno(self) -> int:
            return 2

    monkeypatch.setattr(sys, "stderr", Stderr())
    start_logging("error", "")
    tell_all()
    assert json.loads(capfd.readouterr().err)["message"] == "a bug"
    for _ in range(2):
        start_logging("error", str(tmp_path / "log"))
        tell_all()
    assert len(lines(tmp_path / "log")) == 2
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_opened_is_a_wrong_option(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--log-file"):
        start_logging("info", str(tmp_path))
    assert node_log("alice") is None


def test_others_who_use_the_logger_are_heard(tmp_path: Path) -> None:
    start_logging("info", str(tmp_path / "log"))
    logging.getLogger("edgeagent.policy").warning("a chain of %d", 3)
    LOGGER.debug("not this one")
    stop_logging()
    (line,) = lines(tmp_path / "log")
    assert (line["level"], line["event"]) == ("warning", "a chain of 3")
