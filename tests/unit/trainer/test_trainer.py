"""The `Trainer` against one fake agent: leaving, re-assignment, adoption, refusals, endings."""

from __future__ import annotations

import math
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from edgeagent.config import RUN_VARIABLE, SOCKET_VARIABLE, TrainerConfig, trainer_config_text
from edgeagent.errors import AgentLost, EdgeAgentError, UsageError
from edgeagent.handover import (
    Begin,
    Contributed,
    End,
    Finished,
    Reduced,
    SaveAside,
    SavedAside,
    Work,
    encode,
)
from edgeagent.trainer import Trainer, endings
from edgeagent.trainer.process import AgentConnection
from tests.unit.trainer.fake_agent import Node, ask_to_leave, greet
from tests.unit.trainer.plain_child import PlainConnection
from tests.unit.trainer.replicas import Points, Served, network, train
from tests.variants import variants

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def simple(**options: Any) -> tuple[nn.Module, Trainer]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, Trainer(model, optimizer, **{"global_batch": 32, **options})


def test_trains_alone_to_the_end() -> None:
    served = Served(10)
    model, trainer = simple(_agent=served.agent)
    assert (trainer.iteration, trainer.skipped, trainer.end_reason) == (0, 0, "")
    assert math.isnan(trainer.loss)
    losses = train(trainer, model)
    trainer.report("accuracy", 0.5)
    trainer.check_state_replication()
    trainer.close()
    trainer.close()
    cluster = served.done()
    assert losses == cluster.losses
    assert len(losses) == trainer.iteration == 10
    assert trainer.end_reason == "steps"
    node = cluster.nodes[0]
    assert node.finished == ""
    assert [(e.iteration, e.name, e.value) for e in node.evaluated] == [(10, "accuracy", 0.5)]
    assert all(p.grad is None for p in model.parameters())
    assert model[1].num_batches_tracked == 10  # type: ignore[index]


def test_the_loader_goes_on_ending() -> None:
    served = Served(2)
    model, trainer = simple(_agent=served.agent)
    points = Points()
    train(trainer, model, points)
    assert list(trainer.loader(points)) == []
    with pytest.raises(UsageError, match="one data set"):
        trainer.loader(Points())
    trainer.close()
    served.done()


def test_leave_asked_is_captured_between_iterations() -> None:
    def before(iteration: int, nodes: list[Node]) -> None:
        if iteration == 3:
            ask_to_leave(nodes[0])

    served = Served(1000, before=before)
    model, trainer = simple(_agent=served.agent)
    losses = train(trainer, model)
    assert 3 <= len(losses) <= 5
    assert trainer.end_reason == "left"
    assert trainer.capture_exit_event()
    trainer.request_node_exit()
    trainer.close()
    assert served.done().nodes[0].finished == ""


def test_a_loop_that_never_asks_still_leaves() -> None:
    served = Served(1000)
    model, trainer = simple(_agent=served.agent)
    for count, (x, y) in enumerate(trainer.loader(Points()), 1):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        assert not (trainer.update(loss) is None and trainer.capture_exit_event())
        if count == 6:  # in the middle of the second iteration
            trainer.request_node_exit()
            assert not trainer.capture_exit_event()
    assert trainer.end_reason == "left"
    trainer.close()
    served.done()


def test_breaking_out_in_the_middle_hands_the_work_back_at_close() -> None:
    ours, theirs = socket.socketpair()
    said: list[Any] = []

    def agent() -> None:
        node = greet(ours)
        node.send(Begin(0, False, b"", 9))
        node.send(Work(0, (0, 1, 2)))
        said.append(node.expect(Contributed))
        said.append(node.leaving)
        node.send(End("left", "", 0))
        said.append(node.receive())

    thread = threading.Thread(target=agent, daemon=True)
    thread.start()
    model, trainer = simple(_agent=AgentConnection(theirs, None))
    for x, y in trainer.loader(Points()):
        loss = model(x).sum() * 0 + y.sum()
        loss.backward()
        trainer.update(loss)
        break
    trainer.close()
    thread.join(20)
    assert said[0].micro_batches == (0,)
    assert model[1].num_batches_tracked == 0, "as in the state that is saved"  # type: ignore[index]
    assert said[1] is True
    assert said[2].error == ""


def test_reassigned_work_is_yielded_and_added() -> None:
    ours, theirs = socket.socketpair()
    said: list[Any] = []

    def agent() -> None:
        node = greet(ours)
        node.send(Begin(0, False, b"", 9))
        node.send(Work(0, (0, 2)))
        said.append(node.expect(Contributed))
        node.send(Work(0, (1,)))
        said.append(node.expect(Contributed))
        node.send(Work(0, ()))
        said.append(node.expect(Contributed))
        node.send(End("steps", "", 0))
        node.receive()

    thread = threading.Thread(target=agent, daemon=True)
    thread.start()
    model, trainer = simple(_agent=AgentConnection(theirs, None))
    seen = 0
    for x, y in trainer.loader(Points()):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        assert trainer.update(loss) is None
        seen += 1
    trainer.close()
    thread.join(20)
    assert seen == 3
    assert [c.micro_batches for c in said] == [(0, 2), (0, 2, 1), (0, 2, 1)]
    assert said[1].loss_sum > said[0].loss_sum
    assert said[2] == said[1] or said[2].loss_sum == said[1].loss_sum


@pytest.mark.filterwarnings("ignore:every gradient of an iteration was exactly 0")
def test_a_round_completed_without_this_node_is_applied() -> None:
    """The agent gave this node's micro-batches to others while the script evaluated."""
    ours, theirs = socket.socketpair()
    order: list[Any] = []

    def agent() -> None:
        node = greet(ours)
        node.send(Begin(0, False, b"", 9))
        node.send(Work(0, (0, 1)))
        order.append(node.receive())  # Away True, Away False are notices; then Applied
        node.send(End("steps", "", 0))
        node.receive()

    thread = threading.Thread(target=agent, daemon=True)
    thread.start()
    model, trainer = simple(_agent=AgentConnection(theirs, None))
    iterator = trainer.loader(Points())
    x, y = next(iterator)
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    chunks = trainer._state.vector.chunks
    reduced = Reduced(0, 0, 4, 4.0, b"\x3f", b"", True, (0.0,) * chunks, 2)
    ours.sendall(encode(reduced))
    assert trainer.update(loss) is True
    assert trainer.iteration == 1
    assert trainer.loss == 1.0
    assert list(iterator) == []
    trainer.close()
    thread.join(20)
    assert type(order[0]).__name__ == "Applied"


def test_adoption_in_the_middle_drops_the_old_state() -> None:
    """A founder discards its state and goes on from another cluster's. The loss of the last
    iteration is then not its own, and a wish to stop that concerned the old state is forgotten."""
    donor_served = Served(7, keep_states=True)
    model, trainer = simple(_agent=donor_served.agent)
    train(trainer, model)
    trainer.close()
    donor = donor_served.done()
    ours, theirs = socket.socketpair()
    last: dict[str, Any] = {}

    def agent() -> None:
        node = greet(ours)
        node.send(Begin(0, False, b"", 9))
        node.send(Work(0, (0, 1)))
        last["before"] = node.expect(Contributed)
        node.memory.state.view()[:] = donor.states[-1]
        node.send(Begin(7, True, donor.metas[-1], 9))
        node.send(Work(7, (3,)))
        last["contributed"] = node.expect(Contributed)
        last["state"] = node.state()
        node.send(End("steps", "", 0))
        node.receive()

    thread = threading.Thread(target=agent, daemon=True)
    thread.start()
    other = network()
    nn.init.zeros_(other[0].weight)  # type: ignore[index]
    optimizer = torch.optim.SGD(other.parameters(), lr=0.05, momentum=0.9)
    adopter = Trainer(other, optimizer, global_batch=32, _agent=AgentConnection(theirs, None))
    for x, y in adopter.loader(Points()):
        loss = nn.functional.cross_entropy(other(x), y)
        loss.backward()
        if adopter.iteration == 0:
            adopter._service.loss = 0.5  # as after an update
            adopter.stop()
        assert adopter.update(loss) is None
    assert adopter.iteration == 7
    assert math.isnan(adopter.loss)
    adopter.close()
    thread.join(20)
    assert (last["before"].stop, last["contributed"].stop) == (True, False)
    assert last["contributed"].micro_batches == (3,)
    assert last["state"] == donor.states[-1]
    for mine, theirs_ in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs_)


def test_away_tells_the_agent() -> None:
    served = Served(4)
    model, trainer = simple(_agent=served.agent)
    with trainer.away():  # before joining: nobody to tell
        pass
    for x, y in trainer.loader(Points()):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        if trainer.update(loss) and trainer.iteration == 2:
            with trainer.away():
                model.eval()
            model.train()
    trainer.close()
    assert not served.done().nodes[0].away


def test_update_out_of_place() -> None:
    served = Served(1)
    _, trainer = simple(_agent=served.agent)
    with pytest.raises(UsageError, match="update"):
        trainer.update(torch.tensor(1.0))
    iterator = trainer.loader(Points())
    next(iterator)
    with pytest.raises(UsageError, match="not called"):
        next(iterator)
    with pytest.raises(UsageError, match="single number"):
        trainer.update(torch.ones(3))
    with pytest.raises(UsageError, match="update"):
        trainer.update(1.0)


def test_the_scripts_random_streams_survive() -> None:
    def draws() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    def seed() -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)

    seed()
    expected = [draws() for _ in range(4)]
    served = Served(3)
    model, trainer = simple(_agent=served.agent, global_batch=8)
    seed()
    got = [draws()]
    for x, y in trainer.loader(Points()):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        trainer.update(loss)
        got.append(draws())
    trainer.close()
    served.done()
    assert got == expected


def test_agent_that_ends_is_reported() -> None:
    ours, theirs = socket.socketpair()

    def agent() -> None:
        node = greet(ours)
        node.send(Begin(0, False, b"", 9))
        node.send(Work(0, (0,)))
        node.expect(Contributed)
        node.connection.close()

    thread = threading.Thread(target=agent, daemon=True)
    thread.start()
    model, trainer = simple(_agent=AgentConnection(theirs, None))
    with pytest.raises(AgentLost):
        train(trainer, model)
    thread.join(20)
    with pytest.raises(AgentLost):
        trainer.close()


@pytest.mark.parametrize("message", [End("error", "the token is wrong", 1)])
def test_error_from_the_agent_is_raised(message: End) -> None:
    ours, theirs = socket.socketpair()

    def agent() -> None:
        node = greet(ours)
        node.send(message)
        node.receive()

    thread = threading.Thread(target=agent, daemon=True)
    thread.start()
    model, trainer = simple(_agent=AgentConnection(theirs, None))
    with pytest.raises(EdgeAgentError, match="the token is wrong") as caught:
        train(trainer, model)
    assert caught.value.exit_status == 1
    trainer.close()
    thread.join(20)


@pytest.mark.parametrize(
    "message",
    [
        Begin(3, False, b"", 9),
        Begin(0, True, b"rubbish", 9),
        Work(0, (0,)),
    ],
)
def test_impossible_messages_end_with_one_clear_error(message: Any) -> None:
    ours, theirs = socket.socketpair()

    def agent() -> None:
        node = greet(ours)
        node.send(message)
        said.append(node.receive())

    said: list[Any] = []
    thread = threading.Thread(target=agent, daemon=True)
    thread.start()
    _, trainer = simple(_agent=AgentConnection(theirs, None))
    with pytest.raises(EdgeAgentError):
        trainer.loader(Points())
    trainer.close()
    thread.join(20)
    assert type(said[0]) is Finished
    assert said[0].error


@pytest.mark.parametrize("plain", [True, False])
def test_a_plain_script_that_is_expelled_fails(
    monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    statuses: list[int] = []
    monkeypatch.setattr(endings, "fail_at_exit", statuses.append)
    ours, theirs = socket.socketpair()

    def agent() -> None:
        node = greet(ours)
        node.send(Begin(0, False, b"", 9))
        node.send(End("left", "expelled", 1))
        node.expect(Finished)

    thread = threading.Thread(target=agent, daemon=True)
    thread.start()
    connection = PlainConnection if plain else AgentConnection
    _, trainer = simple(_agent=connection(theirs, None))
    assert list(trainer.loader(Points())) == []
    trainer.close()
    thread.join(20)
    assert statuses == ([1] if plain else [])  # else the agent ends with it


@pytest.mark.parametrize("save", ["model.safetensors", ""])
@pytest.mark.parametrize("again", [True, False])
def test_a_state_that_is_given_up_is_kept_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: str, again: bool
) -> None:
    path = str(tmp_path / save) if save else ""
    monkeypatch.setenv(RUN_VARIABLE, trainer_config_text(TrainerConfig(save=path)))
    ours, theirs = socket.socketpair()
    said: list[Any] = []

    def agent() -> None:
        node = greet(ours)
        node.send(Begin(0, False, b"", 9))
        node.send(SaveAside(True))
        said.append(node.receive())
        if again:  # the join came to nothing: found again from the same state
            node.send(Begin(0, False, b"", 9))
        node.send(SaveAside(False))
        said.append(node.receive())
        node.send(SaveAside(True))  # the same state once more
        said.append(node.receive())
        node.send(End("left", "", 0, whole=again))
        said.append(node.receive())

    thread = threading.Thread(target=agent, daemon=True)
    thread.start()
    _, trainer = simple(_agent=AgentConnection(theirs, None))
    assert list(trainer.loader(Points())) == []
    trainer.close()
    thread.join(20)
    kept = str(tmp_path / "model-before-joining.safetensors") if save else ""
    saved = path if again else ""
    aside = [SavedAside(kept, ""), SavedAside("", ""), SavedAside(kept, "")]
    assert said == [*aside, Finished("", saved)]
    files = sorted(path.name for path in tmp_path.iterdir())
    expected = ["model-before-joining.safetensors", *(["model.safetensors"] if again else [])]
    assert files == (expected if save else [])


def test_run_overrides_the_scripts_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainerConfig(global_batch=64, micro_batch=16, steps=3, seed=9)
    monkeypatch.setenv(RUN_VARIABLE, trainer_config_text(config))
    ours, theirs = socket.socketpair()
    seen: list[Any] = []

    def agent() -> None:
        node = greet(ours)
        seen.append(node.hello)
        node.send(End("left", "", 0))
        node.receive()

    thread = threading.Thread(target=agent, daemon=True)
    thread.start()
    descriptor = os.dup(theirs.fileno())
    theirs.close()
    monkeypatch.setenv(SOCKET_VARIABLE, str(descriptor))
    _, trainer = simple(global_batch=32, steps=100, seed=1)
    assert trainer.steps == 3
    assert list(trainer.loader(Points())) == []
    trainer.close()
    thread.join(20)
    hello = seen[0]
    assert (hello.micro_batches, hello.micro_batch_size, hello.steps) == (4, 16, 3)
    assert dict(hello.job)["seed"] == "9"
    _, second = simple()
    with pytest.raises(UsageError, match="one Trainer"):
        second.loader(Points())


@pytest.mark.parametrize(
    ("run", "script", "expected"), [(None, 7, 7), (0, 7, 0), (3, 7, 3), (None, None, 0)]
)
def test_the_runs_seed_wins_over_the_scripts(
    monkeypatch: pytest.MonkeyPatch, run: int | None, script: int | None, expected: int
) -> None:
    monkeypatch.setenv(RUN_VARIABLE, trainer_config_text(TrainerConfig(seed=run)))
    _, trainer = simple(seed=script)
    assert trainer._seed == expected


SCRIPT = """
import os, socket, sys, torch
from edgeagent import Trainer
from edgeagent.trainer import endings
from edgeagent.trainer.process import AgentConnection
from tests.unit.trainer.replicas import Points, network
import tests.unit.trainer.plain_child as plain
model = network()
trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), global_batch=32,
                  _agent=plain.connection())
for x, y in trainer.loader(Points()):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    trainer.update(loss)
    if trainer.iteration == 2:
        print("ready", flush=True)
print("ended", trainer.end_reason, flush=True)
"""


UNSAVED = """
import os, sys, torch
from edgeagent import Trainer
from tests.unit.trainer.replicas import Points, network
import tests.unit.trainer.plain_child as plain
model = network()
trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), global_batch=32,
                  _agent=plain.connection(os.environ["TEST_PLAIN"] == "1"))
for x, y in trainer.loader(Points()):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    if trainer.update(loss):
        os.rmdir(os.environ["TEST_FOLDER"])
        trainer.request_node_exit()
        break
print("still here", flush=True)
if os.environ["TEST_CLOSE"] == "1":
    trainer.close()
"""


@pytest.mark.parametrize("case", variants(["11", "00"], long=["10", "01"]))
def test_a_failed_save_is_a_failure_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    plain, close = case[0], case[1]
    folder = tmp_path / "gone"
    folder.mkdir()
    config = TrainerConfig(save=str(folder / "x"))
    monkeypatch.setenv(RUN_VARIABLE, trainer_config_text(config))
    monkeypatch.setenv("TEST_FOLDER", str(folder))
    monkeypatch.setenv("TEST_PLAIN", plain)
    monkeypatch.setenv("TEST_CLOSE", close)
    child = run_script(UNSAVED, tmp_path)  # where the state is rescued to
    out, err = child.communicate(timeout=60)
    assert child.returncode == 1, err
    assert out == "still here\n"
    assert err.count("edgeagent: cannot save") == int(plain)  # else the agent says it
    assert "Traceback" not in err


def run_script(text: str, folder: Path = ROOT) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", text],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )


def test_ctrl_c_in_a_plain_script_leaves_gracefully() -> None:
    child = run_script(SCRIPT)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 0, err
    assert "ended left" in out
    assert err.count("press Ctrl+C again") == 1


def test_usage_error_of_a_script_is_one_line_and_exit_status_2() -> None:
    text = "import torch\nfrom edgeagent import Trainer\n"
    text += "m = torch.nn.Linear(2, 2)\nTrainer(m, torch.optim.LBFGS(m.parameters()))\n"
    child = run_script(text)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 2
    assert out == ""
    assert err.startswith("edgeagent: LBFGS")
    assert err.count("\n") == 1
