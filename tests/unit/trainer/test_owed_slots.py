"""Divided slots are stepped while the trainer waits, and nobody sees them before."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch

from edgeagent.errors import EdgeAgentError
from edgeagent.handover import Applied, Begin, Decoder, Message, Settle, Stepped, Work, encode
from edgeagent.marks import (
    MARK_OWED,
    MARK_STEPPED_CHUNKS,
    OWES_NOTHING,
    OWES_STEP,
    STEPS_NOW,
)
from edgeagent.slot_steps import SlotStep
from edgeagent.trainer import owed_slots
from edgeagent.trainer.client import AgentClient
from edgeagent.trainer.saving import Saving
from edgeagent.trainer.service import Service
from tests.unit.trainer.divided import Device, squares_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgeagent.handover import Reduced

ADAMW: tuple[Any, dict[str, Any]] = (torch.optim.AdamW, {"weight_decay": 0.1})
PUT_OFF = [
    ADAMW,
    (torch.optim.Adam, {"amsgrad": True}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
]
AT_ONCE = [
    (torch.optim.Adam, {"weight_decay": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    (torch.optim.NAdam, {}),
]


def owes(device: Device) -> bool:
    mark = int(device.memory.marks.array("int64")[MARK_OWED])
    assert mark in (OWES_NOTHING, OWES_STEP)
    assert (mark == OWES_STEP) is (device.shards.owed.owed is not None)
    return mark == OWES_STEP


@pytest.mark.parametrize(("kind", "options"), PUT_OFF)
def test_the_first_step_is_made_at_once_and_each_further_one_later(kind: Any, options: Any) -> None:
    device = Device(kind, options, shards=True)
    device.step(0)
    assert not owes(device), "there were no slots before"
    for seed in (1, 2):
        device.step(seed)
        assert owes(device)
    device.step(3, replay=True)
    assert not owes(device), "a late trainer gets the next update at once"


@pytest.mark.parametrize(("kind", "options"), AT_ONCE)
def test_steps_that_depend_on_weights_or_are_not_known_are_made_at_once(
    kind: Any, options: Any
) -> None:
    device = Device(kind, options, shards=True)
    for seed in range(3):
        device.step(seed)
        assert not owes(device)


@pytest.mark.parametrize(("other", "later"), [({"lr": 0.5}, True), ({"betas": (0.5, 0.6)}, False)])
def test_all_groups_must_step_slots_alike(other: dict[str, Any], later: bool) -> None:
    device = Device(*ADAMW, shards=True)
    groups = device.optimizer.param_groups
    groups.append({**groups[0], "params": groups[0]["params"][1:], **other})
    groups[0]["params"] = groups[0]["params"][:1]
    mean = Mock(weight=1, scale=1.0, coefficient=None)
    steps = {owed_slots._step(device.optimizer, group, mean) for group in groups}
    assert (len(steps) == 1) is later


def test_parameters_without_a_gradient_keep_their_slots() -> None:
    device = Device(*ADAMW, shards=True)
    device.step(0)
    mean = Mock(weight=1, scale=1.0, coefficient=None)
    known = device.shards.owed.step_for, (mean, device.shards.stand_ins)
    assert known[0](*known[1], all_have=True) is not None
    assert known[0](*known[1], all_have=False) is None


def test_slots_that_begin_anew_are_stepped_at_once() -> None:
    device = Device(*ADAMW, shards=True)
    device.step(0)
    device.step(1)
    assert owes(device)
    device.state.begin_anew((0,))
    device.step(2)
    assert not owes(device), "those that begin anew have no slots yet"
    device.step(3)
    assert owes(device)


def test_bits_that_differ_here_are_not_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(*ADAMW, shards=True)
    monkeypatch.setattr(owed_slots, "_same", lambda *_: False)
    device.step(0)
    device.step(1)
    assert not owes(device)


def test_weights_are_new_at_once_and_slots_once_the_step_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owed_slots, "AT_ONCE", 1)
    device = Device(*ADAMW, shards=True)
    device.step(0)
    marks, raw = device.memory.marks.array("int64"), device.memory.held.array("float32")
    slots = slice(0, device.shards.layout.slots * device.shards.layout.elements)
    before = raw[slots].copy()
    device.step(1)
    assert np.array_equal(raw[slots], before)
    done: list[int] = []
    device.shards.owed.done = lambda: done.append(1)
    parts = 0
    while not done:
        assert (marks[MARK_OWED], marks[MARK_STEPPED_CHUNKS]) == (OWES_STEP, parts)
        device.shards.owed.some()
        parts += 1
    assert not owes(device)
    assert parts == device.shards.gradient_chunks + 1
    assert done == [1]
    assert not np.array_equal(raw[slots], before)
    device.shards.owed.some()
    assert done == [1], "nothing is owed any more"


def test_a_step_that_was_broken_off_is_never_taken_for_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A signal handler of the script may end the process with `sys.exit()` anywhere."""
    device = Device(*ADAMW, shards=True)
    device.step(0)
    device.step(1)
    marks, real = device.memory.marks.array("int64"), SlotStep._mean

    def ends(_step: SlotStep, _total: Any) -> Any:
        assert marks[MARK_OWED] == STEPS_NOW
        raise SystemExit

    monkeypatch.setattr(SlotStep, "_mean", ends)
    with pytest.raises(SystemExit):
        device.shards.owed.some()
    monkeypatch.setattr(SlotStep, "_mean", real)
    for _ in range(2):
        with pytest.raises(EdgeAgentError, match="was broken off"):
            device.shards.owed.all()
    assert marks[MARK_OWED] == STEPS_NOW


def test_scripts_that_have_numpy_raise_are_none_of_our_business() -> None:
    device = Device(*ADAMW, shards=True)
    with np.errstate(all="raise"):
        for seed in range(3):
            device.step(seed)
        device.shards.owed.all()


def test_each_kind_of_step_is_tried_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    same = Mock(wraps=owed_slots._same)
    monkeypatch.setattr(owed_slots, "_same", same)
    device = Device(*ADAMW, shards=True)
    for seed in range(4):
        device.step(seed)
        for group in device.optimizer.param_groups:
            group["betas"] = (0.9 - seed / 100, 0.99)  # as a schedule with cycles does
        device.state._settings.note()
        assert owes(device) is (seed > 0)
    same.assert_called_once()


def test_where_slots_are_learned_they_are_stepped_at_once() -> None:
    device = Device(*ADAMW, shards=True)
    device.step(0)
    device.step(1, slots_now=True)
    assert not owes(device)


def test_what_is_saved_has_the_step(tmp_path: Path) -> None:
    device = Device(*ADAMW, shards=True)
    device.step(0)
    device.step(1)
    assert owes(device)
    saving = Saving(Mock(save="", save_every=0, beside="", keep=0), device.state, print)
    saving.memory = device.memory
    saving.changed(device.state.meta())
    saving.now(str(tmp_path / "a.safetensors"))
    assert not owes(device)
    assert (tmp_path / "a-slots.safetensors").exists()


# --- the trainer's loop ---------------------------------------------------------------------------


class Served:
    """A trainer's service and the agent's end of its socket, which are to be closed."""

    def __init__(self) -> None:
        self.device = Device(*ADAMW, shards=True)
        self.device.step(0)
        ours, self.agent = socket.socketpair()
        self.decoder = Decoder()
        self.service = Service(self.device.state, Mock(), 0)
        self.service.client = AgentClient(ours, -1, lambda: None)
        self.service.agent = Mock(connection=ours)
        self.service.began = True

    def close(self) -> None:
        assert self.service.client is not None
        self.service.client.close()
        self.agent.close()

    def say(self, *messages: Message) -> None:
        self.agent.sendall(b"".join(encode(message) for message in messages))

    def heard(self) -> list[Message]:
        self.agent.setblocking(False)
        try:
            return self.decoder.feed(self.agent.recv(1 << 16))
        except BlockingIOError:
            return []

    def reduced(self) -> Reduced:
        """Return the next update, whose sums are in place."""
        sent: list[Reduced] = []
        device = self.device
        said = device.compute(7)
        total = device.memory.contribution.array("float32").copy()
        squares = squares_of(total, device.state.vector.chunk_elements)
        device.put_sums(total)
        result = device.publish(said, squares)
        with patch.object(device.state, "apply", sent.append):
            device.apply(said, squares, result)
        return sent[0]


@pytest.fixture
def served() -> Iterator[Served]:
    """Yield such a trainer."""
    found = Served()
    yield found
    found.close()


def test_slots_are_stepped_while_nothing_else_is_to_be_done(served: Served) -> None:
    served.say(served.reduced())
    served.service.advance()
    told = served.heard()
    assert [type(message) for message in told] == [Applied]
    assert isinstance(told[0], Applied)
    assert told[0].rule == "adam"
    served.say(Work(2, (4, 5)))
    served.service.advance()
    assert list(served.service.pending) == [4, 5]
    assert served.heard() == [], "computing comes first"
    served.service.pending.clear()
    served.say(Begin(2, False, b"", 0))
    served.service.client.poll()  # type: ignore[union-attr]  # it is there
    served.service.advance()
    assert served.heard() == [Stepped(1)], "before anything else is begun"


def test_a_waiting_trainer_makes_the_step_without_being_asked(served: Served) -> None:
    served.say(served.reduced())
    served.service.advance()
    assert len(served.heard()) == 1
    some = served.device.shards.owed.some

    def and_then() -> None:
        some()
        served.say(Work(2, (4,)))

    served.device.shards.owed.some = and_then  # type: ignore[method-assign]  # the agent's answer
    served.service.advance()
    assert served.heard() == [Stepped(1)]
    assert list(served.service.pending) == [4]


@pytest.mark.parametrize("decides", [False, True])
def test_between_micro_batches_the_step_is_made_if_somebody_waits(
    served: Served, decides: bool
) -> None:
    served.say(served.reduced())
    served.service.advance()
    served.say(Work(2, (4, 5)))
    served.service.advance()
    served.heard()
    assert not served.service.settle_early()
    assert served.heard() == []
    served.say(Settle(decides))
    assert served.service.settle_early() is decides
    assert served.heard() == [Stepped(1)]
    assert bool(served.service.pending) is not decides
    if not decides:
        served.service.advance()
        assert served.heard() == [], "there is nothing to do any more"
