"""An agent that trains alone, with a fake trainer: how it ends, and what it says then."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgeagent import agent as module
from edgeagent import handover
from edgeagent.agent import Agent, run_agent
from edgeagent.config import AgentConfig
from edgeagent.marks import MARK_ITERATION
from edgeagent.shared_memory import create_shared_memory, send_descriptors
from edgeagent.shell import Shell, trainer_side
from edgeagent.trace import read_trace
from edgeagent.transport.api import Standing
from edgeagent.transport.identity import renew_identity
from protocols import effects, events
from protocols.member import cycle
from protocols.member.node import Node
from tests.simulation.replay import replay

STATE_BYTES, ELEMENTS = 256, 32
LIMIT_S = 30.0
KILLED = "signal 9 (killed; often because memory was used up: see --dry-run)"


class Trainer:
    """A trainer that computes nothing. `wrong(trainer, message)` is called first and may handle the
    message in another way. `apart`: its state is in the shared memory only when it may be read."""

    def __init__(
        self, wrong: Callable[[Trainer, handover.Message], bool], *, apart: bool = False
    ) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.theirs.settimeout(LIMIT_S)
        self.heard: list[handover.Message] = []
        self.failure: BaseException | None = None
        self._wrong = wrong
        self._apart = apart
        self._thread = threading.Thread(target=self._live, daemon=True)

    def run(self, folder: Path, **options: Any) -> int:
        """Run its agent to the end; return the exit status."""
        self._thread.start()
        config = AgentConfig(
            name="al",
            job="train",
            events=str(folder / "events"),
            state_dir=str(folder / "home"),
            quiet=True,
            mdns=False,
            **options,
        )
        status = run_agent(config, self.ours, None)
        self.ours.close()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        self.theirs.close()
        if self.failure is not None:
            raise self.failure
        return status

    def send(self, message: handover.Message) -> None:
        self.theirs.sendall(handover.encode(message))

    def _live(self) -> None:
        try:
            self._greet()
            decoder = handover.Decoder()
            while data := self.theirs.recv(1 << 16):
                for message in decoder.feed(data):
                    self.heard.append(message)
                    if not self._wrong(self, message):
                        self._answer(message)
                if self.theirs.fileno() < 0:
                    return
        except BaseException as error:
            self.failure = error

    def _greet(self) -> None:
        memory = create_shared_memory(STATE_BYTES, ELEMENTS, "float32")
        self._marks = memory.marks.array("int64")
        send_descriptors(self.theirs, memory)
        job = (("model", "none"),)
        tensors = (("model.x", 0, STATE_BYTES),)
        shape = (STATE_BYTES, tensors, "float32", ELEMENTS, 16, 2, 8)
        self.send(handover.Hello(handover.HANDOVER_VERSION, 1, job, *shape, 5, 0, b"m"))
        memory.close_descriptors()

    def _answer(self, message: handover.Message) -> None:
        match message:
            case handover.Work(iteration, numbers):
                said = (iteration, numbers, 1.0, b"", b"", True, 0.01)
                self.send(handover.Contributed(*said))
            case handover.Reduced(iteration):
                if message.is_read or not self._apart:
                    self._marks[MARK_ITERATION] = iteration + 1
                self.send(handover.Applied(iteration, 1.0, False, b"m%d" % iteration))
            case handover.End():
                self.send(handover.Finished(""))


def at_end(answer: Callable[[Trainer], None]) -> Callable[[Trainer, handover.Message], bool]:
    """Return a function for `wrong` that answers the end of training by `answer`."""

    def wrong(trainer: Trainer, message: handover.Message) -> bool:
        if isinstance(message, handover.End):
            answer(trainer)
            return True
        return False

    return wrong


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], list[dict[str, Any]]]:
    """Return the function that reads the events of one kind."""

    def read(kind: str) -> list[dict[str, Any]]:
        lines = (tmp_path / "events").read_text().splitlines()
        return [e for e in map(json.loads, lines) if e["event"] == kind]

    return read


Events = Callable[[str], list[dict[str, Any]]]


def test_a_good_end(tmp_path: Path, written: Events) -> None:
    assert Trainer(lambda trainer, message: False).run(tmp_path) == 0
    assert written("left")[0]["iteration"] == 5
    assert not written("error")
    assert [e["event"] for e in written("digest")] == ["digest"]


def test_the_trainer_is_told_when_its_state_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(kept_at_least_s: float) -> list[bool]:
        monkeypatch.setattr(trainer_side, "KEPT_AT_LEAST_S", kept_at_least_s)
        trainer = Trainer(lambda trainer, message: False)
        assert trainer.run(tmp_path) == 0
        return [m.is_read for m in trainer.heard if isinstance(m, handover.Reduced)]

    assert told(1000.0) == [False] * 4 + [True]  # the last one is hashed
    assert told(0.0) == [True] * 5


def claims(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *, apart: bool, kept_at_least_s: float = 1000.0
) -> list[tuple[int, bool]]:
    """Train; return each iteration, and whether the state at its start was claimed and, when asked
    to be, cut to pieces."""
    monkeypatch.setattr(trainer_side, "KEPT_AT_LEAST_S", kept_at_least_s)
    found: list[tuple[int, bool]] = []
    handle = Shell.handle

    def watch(shell: Shell, event: events.Event) -> None:
        if isinstance(event, events.Applied):
            found.append((event.iteration + 1, bool(event.claim)))
            shell.trainer.perform(effects.TakePieces(event.iteration + 1))
        elif isinstance(event, events.PiecesTaken):
            assert (event.iteration, bool(event.pieces)) == found[-1]
        handle(shell, event)

    monkeypatch.setattr(Shell, "handle", watch)
    assert Trainer(lambda trainer, message: False, apart=apart).run(folder) == 0
    return found


def test_a_trainer_on_the_cpu_claims_every_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert claims(monkeypatch, tmp_path, apart=False) == [(i, True) for i in range(1, 6)]


def test_of_a_state_that_is_not_here_nothing_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cycle, "DIGEST_EVERY", 2)
    assert claims(monkeypatch, tmp_path, apart=True) == [
        (1, False),
        (2, True),
        (3, False),
        (4, True),
        (5, True),  # the last
    ]


def test_a_state_that_was_brought_here_for_another_reason_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = claims(monkeypatch, tmp_path, apart=True, kept_at_least_s=0.0)
    assert found == [(i, True) for i in range(1, 6)]


def test_the_last_digest_is_waited_for(
    tmp_path: Path, written: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(_is_wanted: object, _state: memoryview, _meta: bytes) -> str:
        time.sleep(0.3)
        return "ab"

    monkeypatch.setattr(trainer_side, "HASH_INLINE_BYTES", 0)
    monkeypatch.setattr(trainer_side, "state_digest_while", slowly)
    assert Trainer(lambda trainer, message: False).run(tmp_path) == 0
    (digest,), (left,) = written("digest"), written("left")
    assert (digest["iteration"], digest["state"]) == (5, "ab")
    assert digest["t"] <= left["t"]


def test_a_save_that_failed(
    tmp_path: Path, written: Events, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "cannot save x: No space left on device"
    assert Trainer(at_end(lambda t: t.send(handover.Finished(text)))).run(tmp_path) == 1
    assert [e["message"] for e in written("error")] == [text]
    assert written("left")
    assert capfd.readouterr().err.count(f"edgeagent: {text}\n") == 1


def test_a_save_that_takes_for_ever(
    tmp_path: Path, written: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgeagent.trainer_end.SAVE_SECONDS", 0.05)
    assert Trainer(at_end(lambda t: None)).run(tmp_path) == 1
    assert "did not end within" in written("error")[0]["message"]


def test_a_trainer_that_dies_while_it_saves(tmp_path: Path, written: Events) -> None:
    assert Trainer(at_end(lambda t: t.theirs.shutdown(socket.SHUT_RDWR))).run(tmp_path) == 1
    assert "ended before it said" in written("error")[0]["message"]


def test_a_script_may_take_its_time_once_the_model_is_saved(
    tmp_path: Path, written: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgeagent.trainer_end.SAVE_SECONDS", 0.2)
    monkeypatch.setattr("edgeagent.trainer_end.SCRIPT_SECONDS", 0.05)

    def evaluate(trainer: Trainer) -> None:
        trainer.send(handover.Saved("m.safetensors", ""))
        time.sleep(0.6)
        trainer.send(handover.Evaluated(5, "accuracy", 0.5))
        trainer.send(handover.Finished("", "m.safetensors"))

    assert Trainer(at_end(evaluate)).run(tmp_path) == 0
    assert not written("error")
    assert [e["value"] for e in written("evaluated")] == [0.5]


def test_how_a_script_ends_that_has_saved_is_not_for_the_agent_to_say(
    tmp_path: Path, written: Events
) -> None:
    def end(trainer: Trainer) -> None:
        trainer.send(handover.Saved("m.safetensors", ""))
        trainer.theirs.shutdown(socket.SHUT_RDWR)

    assert Trainer(at_end(end)).run(tmp_path) == 0
    assert not written("error")


def test_a_script_that_fails_leaves(
    tmp_path: Path, written: Events, capfd: pytest.CaptureFixture[str]
) -> None:
    def wrong(trainer: Trainer, message: handover.Message) -> bool:
        if isinstance(message, handover.Work) and message.iteration == 2:
            trainer.send(handover.Finished("the script failed with ValueError"))
            trainer.theirs.shutdown(socket.SHUT_WR)
            return True
        return isinstance(message, handover.End)

    trainer = Trainer(wrong)
    assert trainer.run(tmp_path) == 1
    assert [e["message"] for e in written("error")] == ["the script failed with ValueError"]
    assert [m.why for m in trainer.heard if isinstance(m, handover.End)] == ["left"]
    assert written("left")[0]["iteration"] == 2
    (line,) = (s for s in capfd.readouterr().err.splitlines() if "the script failed" in s)
    assert line == (
        "edgeagent: the script failed with ValueError; nothing of what was trained is saved: with"
        " --save-every N there are files from which --resume goes on"
    )


def test_ctrl_c_before_the_trainer_is_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    listen = module.Agent._listen

    async def interrupted(agent: module.Agent) -> None:
        agent._interrupted()
        await listen(agent)

    monkeypatch.setattr(module.Agent, "_listen", interrupted)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        config = AgentConfig(name="al", state_dir=str(tmp_path), quiet=True, mdns=False)
        assert run_agent(config, ours, None) == 0
        assert handover.Decoder().feed(theirs.recv(4096)) == [handover.End("left", "", 0)]
    assert "leaving before training begins; Ctrl+C again ends at once" in capfd.readouterr().err


def test_a_copied_key_is_renewed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    renewed: list[str] = []
    listened: list[int] = []

    def counted(folder: str) -> Any:
        renewed.append(folder)
        return renew_identity(folder)

    async def listen(agent: module.Agent) -> None:
        listened.append(1)
        if len(listened) == 2:
            agent.end("left")
            return
        me = agent._lonely_peer()
        copy = Standing(replace(me, incarnation=0), "founding", 0, 0, b"", b"", ())
        agent.same_identity(copy, "h:1")
        agent.same_identity(copy, "h:2")

    monkeypatch.setattr(module, "renew_identity", counted)
    monkeypatch.setattr(module.Agent, "_listen", listen)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        config = AgentConfig(name="al", state_dir=str(tmp_path), quiet=True, mdns=False)
        assert run_agent(config, ours, None) == 0
    assert (len(renewed), len(listened)) == (1, 2)
    assert capfd.readouterr().err.count("copy of this device's key") == 1


class Child:
    """A trainer process that ends a moment after its socket is closed."""

    def __init__(self, status: int) -> None:
        self.pid = 1
        self._status = status
        self._asked = 0

    def poll(self) -> int | None:
        self._asked += 1
        return self._status if self._asked > 2 else None

    def terminate(self) -> None: ...

    def dismiss(self) -> None: ...

    def kill(self) -> None: ...


@pytest.mark.parametrize(
    ("ended", "status", "line"),
    [
        (0, 1, "train ended with exit status 0 before training began (it never called loader())"),
        (1, 1, "train ended with exit status 1 before training began"),
        (2, 2, ""),
        (-9, 1, f"train ended with {KILLED} before training began"),
    ],
)
def test_a_trainer_that_ends_before_it_says_anything(
    ended: int,
    status: int,
    line: str,
    tmp_path: Path,
    written: Events,
    capfd: pytest.CaptureFixture[str],
) -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    config = AgentConfig(
        name="al", job="train", state_dir=str(tmp_path), events=str(tmp_path / "events"), mdns=False
    )
    with ours:
        assert run_agent(config, ours, Child(ended)) == status
    said = [text for text in capfd.readouterr().err.splitlines() if "ended" in text]
    assert said == ([f"edgeagent: {line}"] if line else [])
    (error,) = written("error")
    assert error["message"].startswith("train ended with ")


def test_a_trainer_for_which_the_device_was_let_go_has_had_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "HUNG_END_HEARD_SECONDS", 0.01)
    hung = SimpleNamespace(
        shell=None,
        observer=SimpleNamespace(compute_seconds=0.0),
        _life=SimpleNamespace(is_hung=True),
    )
    assert Agent._answer_seconds(cast("Agent", hung)) == 0.01


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Put the signal handlers back; give up on an agent that hangs."""
    before = signal.getsignal(signal.SIGINT)

    def hang() -> None:
        os.kill(os.getpid(), signal.SIGABRT)

    timer = threading.Timer(LIMIT_S * 2, hang)
    timer.daemon = True
    timer.start()
    started = time.monotonic()
    yield
    timer.cancel()
    signal.signal(signal.SIGINT, before)
    assert time.monotonic() - started < LIMIT_S


def test_an_internal_error_leaves_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: Events
) -> None:
    take = Node._take

    def break_down(node: Node, now: float, event: events.Event) -> None:
        if isinstance(event, events.Applied) and event.iteration == 2:
            raise RuntimeError("a planted bug")
        take(node, now, event)

    monkeypatch.setattr(Node, "_take", break_down)
    log = tmp_path / "log"
    wrong = Trainer(lambda trainer, message: False)
    assert wrong.run(tmp_path, log_level="debug", log_file=str(log)) == 1
    path = tmp_path / "events.trace.jsonl"
    (error,) = written("error")
    assert "RuntimeError('a planted bug') (test_agent.py:" in error["message"]
    assert error["message"].endswith(f"please report it with the trace in {path}")
    with open(path, encoding="utf-8") as file:
        trace = read_trace(file)
    assert trace.lines[-1].error == "RuntimeError: a planted bug"
    assert trace.lines[-1].effects is None
    assert replay(trace) is None
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines[-1]["event"] == "error" or "left" in [line["event"] for line in lines]
    assert {"Tick", "Applied", "scheduler"} & {line["event"] for line in lines}
    monkeypatch.setattr(Node, "_take", take)
    found = replay(trace)
    assert found is not None
    assert found.line.number == trace.lines[-1].number
