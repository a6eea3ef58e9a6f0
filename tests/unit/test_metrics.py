"""What Prometheus, `--log-dir` and `edgeagent plot` make of an agent's events and status."""

from __future__ import annotations

import asyncio
import csv
import json
import math
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from edgeagent import log_dir
from edgeagent.cli import main
from edgeagent.errors import UsageError
from edgeagent.event_file import EventWriter
from edgeagent.event_series import series_of
from edgeagent.log_dir import NO_TENSORBOARD, LogDir
from edgeagent.metrics import HELP, MAX_REPORTED, Metrics
from edgeagent.metrics_server import MAX_CONNECTIONS, MetricsServer, metrics_address
from tests.unit.cli.samples import sample_status
from tests.unit.transport.helpers import run

if TYPE_CHECKING:
    from edgeagent.local.status_model import Status

ROOT = Path(__file__).resolve().parents[2]
STEP = {
    "iteration": 7,
    "loss": 0.5,
    "samples": 64,
    "members": 3,
    "compute_s": 0.25,
    "sync_s": 0.125,
    "stall_s": 0.0,
}
SAMPLE = re.compile(r'edgeagent_(\w+?)(?:\{((?:\w+="(?:[^"\\\n]|\\.)*",?)+)\})? (\S+)')


def step(iteration: int, t: float, **values: Any) -> str:
    return json.dumps({"t": t, "event": "step", **STEP, "iteration": iteration, **values})


# --- /metrics -------------------------------------------------------------------------------------


def test_every_line_is_in_the_format_and_every_name_is_explained() -> None:
    metrics = Metrics()
    metrics.note("step", STEP)
    metrics.note("step", {**STEP, "samples": 32})
    metrics.note("member_joined", {"node": "bob"})
    metrics.note("member_left", {"node": "bob", "reason": "failure", "stall_s": None})
    metrics.note("restarted", {})
    metrics.note("link_up", {"node": "bob"})
    metrics.note("evaluated", {"iteration": 7, "name": 'a "b"\\\n', "value": math.nan})
    text = metrics.text(sample_status())
    assert text.endswith("\n")
    found: dict[str, list[tuple[str, str]]] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP|TYPE) edgeagent_\w+ [^\n]+", line)
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        found.setdefault(match[1], []).append((match[2] or "", match[3]))
    assert set(found) <= set(HELP)
    assert found["samples_total"] == [("", "96")]
    assert ('part="compute"', "0.5") in found["step_seconds_total"]
    assert found["departures_total"] == [('reason="failure"', "1")]
    assert found["reported"] == [('name="a \\"b\\"\\\\\\n"', "NaN")]
    assert found["members"] == [("", str(len(sample_status()["members"])))]
    assert all(name.endswith("_total") == (HELP[name][0] == "counter") for name in HELP)


def test_names_that_a_script_makes_up_are_bounded() -> None:
    metrics = Metrics()
    for k in range(2 * MAX_REPORTED):
        metrics.note("evaluated", {"iteration": k, "name": f"n{k}", "value": k})
    metrics.note("evaluated", {"iteration": 1, "name": "n0", "value": 5.5})
    text = metrics.text(sample_status())
    assert text.count("edgeagent_reported{") == MAX_REPORTED
    assert 'edgeagent_reported{name="n0"} 5.5\n' in text


def test_the_page_and_the_board_name_what_is_served() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `edgeagent_(\w+)` \| (\w+) \|", page, re.MULTILINE))
    assert rows == {name: kind for name, (kind, _) in HELP.items()}
    board = (ROOT / "docs" / "grafana.json").read_text(encoding="utf-8")
    panels = json.loads(board)["panels"]
    assert len(panels) >= 6
    for panel in panels:
        for target in panel["targets"]:
            names = re.findall(r"edgeagent_(\w+)", target["expr"])
            assert names
            assert set(names) <= set(HELP)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9100", ("127.0.0.1", 9100)),
        ("0.0.0.0:9100", ("0.0.0.0", 9100)),
        ("[::1]:9100", ("::1", 9100)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_without_a_host_it_is_loopback(text: str, expected: tuple[str, int]) -> None:
    assert metrics_address(text) == expected


@pytest.mark.parametrize("text", ["", "99999", "::1", "0.0.0.0", "a b:1", "x:", ":9100", "-1"])
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--metrics"):
        metrics_address(text)


def test_metrics_are_served_on_loopback_to_loopback_names_only() -> None:
    async def serve() -> None:
        events = EventWriter("")
        server = MetricsServer("0", events, sample_status)
        url = await server.start()
        taken = MetricsServer(url.split("/")[2], events, sample_status)
        with pytest.raises(UsageError, match="--metrics 127"):
            await taken.start()
        events.write("step", **STEP)
        async with aiohttp.ClientSession() as session:
            async with session.get(url) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                assert "edgeagent_seen_steps_total 1\n" in await answer.text()
            async with session.get(url, headers={"Host": "evil.example"}) as answer:
                assert answer.status == 403
            async with session.post(url) as answer:
                assert answer.status == 405
        await server.close()
        await server.close()
        events.close()

    run(serve)


def test_many_connections_and_requests_cost_little() -> None:
    made: list[int] = []

    def status() -> Status:
        made.append(1)
        return sample_status()

    async def serve() -> None:
        server = MetricsServer("0", EventWriter(""), status)
        url = await server.start()
        host, port = url.split("/")[2].split(":")
        idle = [await asyncio.open_connection(host, port) for _ in range(3 * MAX_CONNECTIONS)]
        async with aiohttp.ClientSession() as session:
            for _ in range(5):
                async with session.get(url) as answer:
                    assert answer.status == 200
        open_ = [reader for reader, _ in idle if not reader.at_eof()]
        assert len(open_) < MAX_CONNECTIONS
        assert idle[-1][0] in open_, "the oldest make room"
        assert len(made) <= 2
        for _, writer in idle:
            writer.close()
        await server.close()

    run(serve)


# --- --log-dir ------------------------------------------------------------------------------------


class FakeBoard:
    """Stands in for TensorBoard's writer."""

    rows: list[tuple[float, int, dict[str, float]]] = []  # noqa: RUF012 - one for all of a test

    def __init__(self, folder: str) -> None:
        self.rows.clear()

    def write(self, t: float, iteration: int, scalars: dict[str, float]) -> None:
        self.rows.append((t, iteration, dict(scalars)))

    def close(self) -> None:
        """Do nothing."""


def test_steps_and_reports_are_csv_and_a_later_run_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_dir, "_Board", FakeBoard)
    for _ in range(2):
        events = EventWriter("", lambda: 1.5)
        logs = LogDir(str(tmp_path), "bob/..", events, lambda line: pytest.fail(line))
        events.write("step", **{**STEP, "loss": None})
        events.write("link_up", node="bob")
        events.write("evaluated", iteration=7, name='top, "5"', value=0.25)
        logs.close()
        logs.close()
    folder = tmp_path / "bob%2F.."
    steps = list(csv.DictReader((folder / "steps.csv").open()))
    assert [row["t"] for row in steps] == ["1.5", "1.5"]
    assert (steps[0]["loss"], steps[0]["samples"]) == ("", "64")
    reports = list(csv.DictReader((folder / "reports.csv").open()))
    assert reports == [{"t": "1.5", "iteration": "7", "name": 'top, "5"', "value": "0.25"}] * 2
    assert FakeBoard.rows[-1] == (1.5, 7, {'top, "5"': 0.25})
    assert "loss" not in FakeBoard.rows[0][2]


@pytest.mark.parametrize("node", ["..", "."])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, node: str) -> None:
    events = EventWriter("")
    LogDir(str(tmp_path / "logs"), node, events, lambda _: None).close()
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]
    assert all(path.is_dir() for path in (tmp_path / "logs").iterdir())


def test_without_tensorboard_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    lines: list[str] = []
    LogDir(str(tmp_path), "bob", EventWriter(""), lines.append).close()
    assert lines == [NO_TENSORBOARD]
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="--log-dir"):
        LogDir(str(tmp_path / "file"), "bob", EventWriter(""), lines.append)


def test_tensorboard_itself_reads_what_was_written(tmp_path: Path) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    events = EventWriter("", lambda: 2.0)
    logs = LogDir(str(tmp_path), "bob", events, lambda line: pytest.fail(line))
    events.write("step", **STEP)
    logs.close()
    (path,) = (tmp_path / "bob").glob("events.out.*")
    found = [e for e in loader.LegacyEventFileLoader(str(path)).Load() if e.HasField("summary")]
    values = {value.tag: value.simple_value for event in found for value in event.summary.value}
    assert (values["loss"], found[0].step, found[0].wall_time) == (0.5, 7, 2.0)


# --- edgeagent plot -------------------------------------------------------------------------------


def test_curves_follow_from_the_events() -> None:
    lines = [
        '{"t": 1, "event": "started", "node": "a", "address": ""}',
        step(1, 10.0),
        step(2, 10.5, loss=None),
        '{"t": 11, "event": "member_left", "node": "bob", "reason": "leave", "stall_s": null}',
        step(5, 12.0, members=2),
        '{"t": 13, "event": "evaluated", "iteration": 5, "name": "accuracy", "value": 0.5}',
        "no json",
        '{"t": 1}',
        '["step"]',
        '{"t": 13, "event": "step"}',
        "",
        '{"t": 20, "event": "started", "node": "a", "address": ""}',
        step(6, 30.0),
    ]
    series = series_of(lines)
    assert series.iterations == [1, 2, 5, 6]
    assert math.isnan(series.losses[1])
    assert [s if s == s else None for s in series.seconds] == [None, 0.5, None, None]
    assert series.members == [3, 3, 2, 3]
    assert series.changes == [(2, "bob gone")]
    assert series.reported == {"accuracy": [(5, 0.5)]}
    assert series.skipped == 4


def test_a_picture_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    events = tmp_path / "run.jsonl"
    joined = [json.dumps({"t": 1, "event": "member_joined", "node": f"$n{k}"}) for k in range(20)]
    events.write_text("\n".join([step(1, 1.0), *joined, step(2, 2.0), "cut o"]))
    assert main(["plot", str(events)]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{tmp_path / 'run.png'}\n"
    assert captured.err == "edgeagent: left out 1 line that are no events\n"
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("argv", "status", "told"),
    [
        (["missing"], 2, "there is no readable file missing"),
        (["empty"], 2, "has no steps to draw"),
        (["run", "-o", "run"], 2, "that is the event file itself"),
        (["run", "-o", "run.nonsense"], 2, "cannot write"),
        (["run", "-o", "no/where.png"], 2, "there is no folder"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    status: int,
    told: str,
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").touch()
    (tmp_path / "run").write_text(step(1, 1.0))
    assert main(["plot", *argv]) == status
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_without_matplotlib_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (tmp_path / "run").write_text(step(1, 1.0))
    assert main(["plot", str(tmp_path / "run")]) == 1
    assert "pip install matplotlib" in capsys.readouterr().err
