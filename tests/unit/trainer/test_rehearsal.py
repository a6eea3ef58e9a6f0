"""A dry run's stand-in for the agent: what the trainer is given, what is reported, how it ends."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from edgeagent.config import RUN_VARIABLE, TrainerConfig, trainer_config_text
from edgeagent.handover import Decoder, Rehearsed
from edgeagent.trainer import Trainer, rehearsal
from edgeagent.trainer.process import AgentConnection

INPUTS, OUTPUTS = 300, 200
# Bytes that the forward pass takes on purpose: so many that glibc asks the system for them,
# whatever earlier tests have left on the heap, of whose end it keeps up to 64 MiB.
HELD = 160 << 20


class Ended(Exception):
    """Instead of the end of the process."""


def train(trainer: Trainer, model: nn.Module, data: Any, seen: list[Any], held: int) -> None:
    """What the script does."""
    for (batch,) in trainer.loader(data):
        seen.append(batch)
        taken = torch.ones(held // 4)
        loss = model(batch).square().mean() + 0 * taken.sum()
        loss.backward()
        trainer.update(loss)


def rehearsed(
    monkeypatch: pytest.MonkeyPatch, *, seen: list[Any], held: int = 0
) -> tuple[list[Rehearsed], Trainer]:
    """Run a script's loop in a dry run; return what was reported."""

    def end() -> None:
        raise Ended

    monkeypatch.setitem(os.environ, RUN_VARIABLE, trainer_config_text(TrainerConfig(dry_run=True)))
    monkeypatch.setattr(rehearsal, "end_process", end)
    ours, theirs = socket.socketpair()
    model = nn.Sequential(nn.Linear(INPUTS, OUTPUTS), nn.BatchNorm1d(OUTPUTS))
    trainer = Trainer(
        model,
        torch.optim.AdamW(model.parameters()),
        global_batch=32,
        micro_batch=16,
        steps=9,
        _agent=AgentConnection(theirs, None),
    )
    data = torch.utils.data.TensorDataset(torch.ones(64, INPUTS).cumsum(0))
    with pytest.raises(Ended):
        train(trainer, model, data, seen, held)
    messages = Decoder().feed(ours.recv(1 << 16))
    ours.close()
    theirs.close()
    trainer._closed = True  # there is nobody to say goodbye to
    return [message for message in messages if isinstance(message, Rehearsed)], trainer


def test_one_micro_batch_and_one_update(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    (planned, measured), trainer = rehearsed(monkeypatch, seen=seen)
    assert [tuple(batch.shape) for batch in seen] == [(16, INPUTS)]
    assert trainer.iteration == 1
    assert trainer.skipped == 0
    count = INPUTS * OUTPUTS + 3 * OUTPUTS
    assert (planned.parameters, planned.gradient_bytes) == (count, 4 * count)
    assert planned.state_bytes >= 3 * 4 * count  # AdamW remembers two for each
    assert (planned.micro_batch_size, planned.device) == (16, "cpu")
    assert not planned.is_measured
    assert measured.is_measured
    assert measured.elements == planned.elements >= count


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_what_a_micro_batch_takes_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    found = rehearsed(monkeypatch, seen=[], held=HELD)[0][-1]
    assert HELD * 0.9 < found.micro_batch < HELD + (40 << 20)
    # The code of the optimizer, which the update loads, takes up to a few MiB.
    assert found.update <= found.micro_batch + (4 << 20)
    assert found.process > 50 << 20
