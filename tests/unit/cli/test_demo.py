"""The demo's story, played by fakes: what it reports, and that it leaves nothing behind."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edgeagent.demo import story as demo
from edgeagent.demo.agents import (
    AgentFiles,
    Team,
    agent_environment,
    free_ports,
    run_command,
    session_members,
)
from edgeagent.demo.story import DemoFailed, compare_files, run_demo
from edgeagent.demo.view import LiveView, NodeLine, PlainView, Scene, view_for
from tests.unit.cli.test_console import Clock, Terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STEPS = 30
FAKE = str(Path(__file__).with_name("fake_agent.py"))


def fakes(
    wrong: str = "nothing", steps: int = STEPS
) -> Callable[[AgentFiles, Sequence[str]], list[str]]:
    """Return the function that builds a fake agent's command."""

    def command(files: AgentFiles, peers: Sequence[str]) -> list[str]:
        folder = os.path.dirname(files.events)
        return [sys.executable, "-S", FAKE, files.name, str(steps), folder, wrong]

    return command


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the demo make its temporary folder here."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(demo, "POLL_S", 0.005)
    return tmp_path


def test_a_good_demo(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_demo(steps=STEPS, as_json=True, command=fakes()) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert captured.out.count("\n") == 1
    assert report == {
        "accuracy": 0.97,
        "digests_equal": True,
        "steps": STEPS,
        "joins": [
            {
                "node": "dave",
                "bytes": 1000,
                "seconds": 0.1,
                "lower_bound_s": None,
                "sources": [
                    {"node": "alice", "bytes": 500, "seconds": 0.1},
                    {"node": "bob", "bytes": 500, "seconds": 0.1},
                ],
            }
        ],
        "leaves": [{"node": "carol", "stall_s": 0.002}],
        "failures": [{"node": "alice", "stall_s": 0.05}],
        "problems": [],
    }
    told = [line.partition(" s  ")[2] for line in captured.err.splitlines()]
    for line in (
        "alice, the scheduler, is killed (kill -9)",
        "bob takes over as scheduler (term 2)",
        "dave goes on without alice, after a stall of 50 ms",
    ):
        assert told.count(line) == 1
    assert "dave joined and pulled 1.0 kB" in captured.err
    assert list(folder.iterdir()) == []


def test_nobody_is_killed_who_alone_has_a_part_of_the_optimizer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_demo(steps=STEPS, divided=True, command=fakes()) == 0
    assert "is killed" in capsys.readouterr().out
    # So small a state may come from one source.
    assert run_demo(steps=STEPS, divided=True, command=fakes("one source")) == 0
    capsys.readouterr()
    monkeypatch.setattr(demo, "SILENCE_S", 0.5)
    with pytest.raises(DemoFailed, match="no agent has reported anything"):
        run_demo(steps=STEPS, divided=True, command=fakes("no copies"))
    assert "is killed" not in capsys.readouterr().out


def test_the_report_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_demo(steps=STEPS, command=fakes()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "alice, bob, carol start" in lines[0]
    assert "accuracy       97.00% on held-out digits" in lines
    assert "digests equal  yes, every replica to the last bit" in lines
    assert "leave          carol: the others stalled 2.0 ms" in lines
    assert "failure        alice: the others stalled 50 ms" in lines


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("accuracy", "the accuracy is 50.00%, not over 95%"),
        ("digest", "the replicas differ from step 10 on"),
        ("file", "the saved models of the nodes that finished differ"),
        ("one source", "dave pulled the state from 1 source, not 2"),
        ("crash", "bob ended with exit status 1: edgeagent: bob has no luck"),
        ("too fast", "over too early"),
        ("unseen", "bob did not see alice fail; bob did not see its link to alice go down"),
        ("no heir", "nobody took the scheduler's role over from alice"),
        ("late crash", "dave ended with exit status 1: edgeagent: dave has no luck"),
    ],
)
def test_a_demo_that_goes_wrong_says_why(
    wrong: str, reason: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DemoFailed) as caught:
        run_demo(steps=STEPS, as_json=True, command=fakes(wrong))
    text = str(caught.value)
    assert reason in text or (wrong == "too fast" and "nobody saw" in text)
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert report["problems"]
    (kept,) = folder.iterdir()
    assert str(kept) in str(caught.value)
    assert not (kept / "home").exists()


def test_a_run_shorter_than_asked_for_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DemoFailed, match="the run ended at step 30 of 31"):
        run_demo(steps=31, command=fakes(steps=30))


def test_a_silent_demo_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SILENCE_S", 0.05)
    quiet = [sys.executable, "-S", "-c", "import signal; signal.pause()"]
    with pytest.raises(DemoFailed, match="no agent has reported anything"):
        run_demo(steps=STEPS, command=lambda files, peers: quiet)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stopping_the_demo_leaves_nothing_behind(
    number: signal.Signals, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgeagent.demo.agents.LEAVE_GRACE_S", 0.01)
    monkeypatch.setattr("edgeagent.demo.agents.TERMINATE_GRACE_S", 0.01)
    leaders: list[int] = []

    def interrupt(seconds: float) -> None:
        hanging = [int(p.name.removeprefix("hangs-")) for p in folder.glob("*/hangs-*")]
        if len(hanging) == 3:
            leaders.extend(hanging)
            assert all(len(session_members(leader)) == 2 for leader in hanging)
            os.kill(os.getpid(), number)

    monkeypatch.setattr(demo.Story.__init__, "__defaults__", (time.monotonic, interrupt))
    with pytest.raises(KeyboardInterrupt):
        run_demo(steps=STEPS, command=fakes("hang"))
    assert len(leaders) == 3
    assert [session_members(leader) for leader in leaders] == [[], [], []]
    assert list(folder.iterdir()) == []


def test_a_child_of_an_agent_that_ended_is_killed_too(folder: Path) -> None:
    orphan = (
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
    )
    team = Team(
        str(folder),
        ["a"],
        lambda files, peers: [sys.executable, "-S", "-c", orphan],
        {**os.environ},
    )
    team.start("a")
    process = team.agents["a"].process
    assert isinstance(process, subprocess.Popen)
    assert process.wait(60) == 0
    assert len(session_members(process.pid)) == 1
    team.stop()
    assert session_members(process.pid) == []


def test_the_real_command_and_its_environment() -> None:
    files = AgentFiles("al", "127.0.0.1:9", "e", "s", "l")
    command = run_command(600)(files, ["127.0.0.1:7", "127.0.0.1:8"])
    assert command[:6] == [sys.executable, "-P", "-m", "edgeagent", "run", "digits"]
    rest = "--no-mdns --threads 1 --name al --listen 127.0.0.1:9 --steps 600 --events e --save s"
    rest += " --peer 127.0.0.1:7 --peer 127.0.0.1:8"
    assert command[6:] == rest.split()
    assert "--shard-optimizer" in run_command(600, divided=True)(files, [])
    environment = agent_environment("/h", "t", {"EDGEAGENT_PEERS": "x", "PATH": "/bin"})
    kept = {k: v for k, v in environment.items() if k != "PYTHONPATH"}
    assert kept == {
        "PATH": "/bin",
        "EDGEAGENT_HOME": "/h",
        "EDGEAGENT_TOKEN": "t",
        "OMP_NUM_THREADS": "1",
    }


def test_free_ports_are_distinct() -> None:
    assert len(set(free_ports(8))) == 8


def test_saved_files_are_compared(folder: Path) -> None:
    paths = [str(folder / name) for name in "abc"]
    for path in paths[:2]:
        Path(path).write_bytes(b"same")
    assert compare_files(paths[:2]) == ""
    assert compare_files(paths) == "not saved: c"
    Path(paths[2]).write_bytes(b"else")
    assert "differ" in compare_files(paths)


def scene(iteration: int) -> Scene:
    """Return a scene with two nodes."""
    nodes = (
        NodeLine("alice", "training", iteration, 0.5, 1234.0),
        NodeLine("dave", "joining", 0, None, 0.0),
    )
    return Scene(nodes, iteration, 600, 3, 0.5, 1234.0)


def test_plain_view() -> None:
    out, clock = io.StringIO(), Clock()
    view = PlainView(out, clock)
    view.show(scene(0))
    view.happened("alice starts")
    for iteration in (1, 2, 3):
        view.show(scene(iteration))
        clock.now += 1
    view.close()
    rest = "/600  loss 0.5000  1234 samples/s  members 3"
    assert out.getvalue().splitlines() == [
        "   0.0 s  alice starts",
        f"   0.0 s  step 1{rest}",
        f"   2.0 s  step 3{rest}",
    ]


def test_live_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    out, clock = Terminal(), Clock()
    view = view_for(out)
    assert isinstance(view, LiveView)
    view.close()
    view = LiveView(out, clock)
    view.happened("alice starts")
    view.show(scene(5))
    view.show(scene(6))  # too soon to be shown
    clock.now += 1
    view.show(scene(7))
    view.close()
    view.close()
    text = out.getvalue()
    assert "alice starts" in text
    assert "7/600" in text
    assert "6/600" not in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h")
    assert "edgeagent demo" in text


def test_other_stories_have_a_title_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    out = Terminal()
    view = view_for(out, "edgeagent testbed")
    view.show(scene(5))
    view.close()
    assert "edgeagent testbed" in out.getvalue()
    assert "edgeagent demo" not in out.getvalue()
