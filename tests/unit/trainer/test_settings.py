"""Rates and other scalars that a script sets by hand: the same on all replicas, or refused."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.trainer import Trainer
from edgeagent.trainer.meta import decode_meta, encode_value
from edgeagent.trainer.settings import GroupSettings
from protocols import limits
from tests.unit.trainer.replicas import Points, Served, network, run_cluster

STEPS = 9


def make() -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
    model = network()
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": weights, "weight_decay": 0}, {"params": others, "lr": 2e-3}]
    return model, torch.optim.AdamW(groups, lr=1e-3), {"global_batch": 40, "micro_batch": 8}


def rate(iteration: int) -> float:
    return 1e-3 / (1 + iteration // 3)  # the same for three iterations


def loop_setting(when: str) -> Any:
    """Return nanoGPT's loop, with the rates set before backward(), after it, or after update()."""

    def loop(trainer: Trainer, model: nn.Module, dataset: Any) -> None:
        groups = trainer._optimizer.param_groups

        def set_rates() -> None:
            for number, group in enumerate(groups):
                group["lr"] = rate(trainer.iteration) * (number + 1)
                group["betas"] = (0.9 - rate(trainer.iteration), 0.99)
                group["weight_decay"] = 0.1 * number

        for x, y in trainer.loader(dataset):
            if when == "before backward":
                set_rates()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            if when == "after backward":
                set_rates()
            if trainer.update(loss) and when == "after update":
                set_rates()

    return loop


def shares(iteration: int, active: int) -> list[int]:
    """Return shares in which node 0 has none in some iterations, and the joiner none in its
    first."""
    return {1: [5], 2: [[0, 5], [5, 0], [2, 3]][iteration % 3]}[active]


@pytest.mark.parametrize("when", ["before backward", "after backward", "after update"])
def test_rates_by_hand_give_the_same_bits_everywhere(when: str) -> None:
    served = run_cluster(
        make, 2, STEPS, cluster={"join_at": {1: 4}, "shares": shares}, loop=loop_setting(when)
    )
    meta = decode_meta(served.metas[-1])
    last = STEPS - 1
    assert [group["lr"] for group in meta.groups] == [rate(last), 2 * rate(last)]
    assert [group["weight_decay"] for group in meta.groups] == [0.0, 0.1]
    assert meta.groups[0]["betas"] == (0.9 - rate(last), 0.99)
    alone = run_cluster(make, 1, STEPS, loop=loop_setting(when))
    assert alone.metas[-1] == served.metas[-1]
    assert served.losses == pytest.approx(alone.losses, rel=1e-4)


def test_rates_that_differ_are_applied_nowhere() -> None:
    model, optimizer, options = make()
    served = Served(1)
    trainer = Trainer(model, optimizer, **{**options, "micro_batch": 20}, _agent=served.agent)
    before = [p.detach().clone() for p in model.parameters()]

    def run() -> None:
        for number, (x, y) in enumerate(trainer.loader(Points()), 1):
            optimizer.param_groups[0]["lr"] = number / 10
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            trainer.update(loss)

    with pytest.raises(EdgeAgentError, match=r"lr of parameter group 0 .* 0.1 and 0.2\. What"):
        run()
    for parameter, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
    trainer.close()
    with pytest.raises(AssertionError, match="Finished"):
        served.done()


def settings() -> tuple[torch.optim.Optimizer, GroupSettings]:
    optimizer = make()[1]
    return optimizer, GroupSettings(optimizer, None)


def test_nothing_set_is_no_opinion_and_the_same_number_is_one() -> None:
    optimizer, mine = settings()
    mine.collect()
    assert (mine.settings, mine.other_settings) == (b"", b"")
    optimizer.param_groups[0]["lr"] = 1e-3
    optimizer.param_groups[1]["betas"] = (0.9, 0.999)  # as it is: no floating-point number
    mine.collect()
    assert mine.settings == encode_value([(0, "lr", 1e-3)], "")
    mine.collect()
    assert mine.other_settings == b""
    mine.clear()
    assert mine.settings == b""


def test_what_others_set_replaces_what_was_set_here() -> None:
    optimizer, mine = settings()
    groups = optimizer.param_groups
    groups[0]["lr"], groups[1]["weight_decay"] = 0.5, 7
    mine.put(encode_value([(1, "lr", 1), (1, "betas", (0.5, 0.6))], ""), b"")
    assert (groups[0]["lr"], groups[1]["lr"], groups[1]["weight_decay"]) == (1e-3, 1, 0.01)
    assert groups[1]["betas"] == (0.5, 0.6)
    groups[0]["lr"] = 0.5
    mine.put(b"", b"")
    assert groups[0]["lr"] == 1e-3


@pytest.mark.parametrize(
    "wishes",
    [
        [(2, "lr", 0.1)],
        [(-1, "lr", 0.1)],
        [(0, "rate", 0.1)],
        [(0, "params", 0.1)],
        [(0, "betas", (0.1,))],
        [(0, "lr", "much")],
        [(0, "lr")],
        [0],
        {"lr": 0.1},
    ],
)
def test_what_does_not_fit_changes_nothing(wishes: Any) -> None:
    optimizer, mine = settings()
    with pytest.raises(EdgeAgentError):
        mine.put(encode_value(wishes, ""), b"")
    assert optimizer.param_groups[0]["lr"] == 1e-3


@given(st.binary(max_size=40))
def test_random_bytes_are_read_or_refused(data: bytes) -> None:
    _, mine = settings()
    with contextlib.suppress(EdgeAgentError):
        mine.put(data, b"")
        assert len(data) < 2


def test_the_difference_is_named() -> None:
    _, mine = settings()
    one = encode_value([(0, "lr", 0.1), (1, "lr", 0.1)], "")
    other = encode_value([(0, "lr", 0.1), (1, "lr", 0.2)], "")
    with pytest.raises(EdgeAgentError, match=r"lr of parameter group 1 .*: 0.1 and 0.2"):
        mine.put(*sorted((one, other)))
    with pytest.raises(EdgeAgentError, match=r"lr of parameter group 1 .*not set"):
        mine.put(*sorted((one, encode_value([(0, "lr", 0.1)], ""))))


def test_what_a_script_cannot_set_is_refused_by_name() -> None:
    def refused(match: str, change: Any) -> None:
        optimizer, mine = settings()
        change(optimizer.param_groups[0])
        with pytest.raises(UsageError, match=match):
            mine.collect()

    refused("added 'mine' to parameter group 0", lambda group: group.update(mine=1))
    refused("removed 'lr' from parameter group 0", lambda group: group.pop("lr"))
    refused("a value of the same kind", lambda group: group.update(betas=0.9))
    refused("same kind", lambda group: group.update(lr=torch.tensor(0.1)))
    refused("removed 'lr'", lambda group: (group.pop("lr"), group.update(rate=1)))
    optimizer, _ = settings()
    optimizer.param_groups[0]["note"] = "short"
    mine = GroupSettings(optimizer, None)
    optimizer.param_groups[0]["note"] = "x" * limits.MAX_SETTINGS_BYTES
    with pytest.raises(UsageError, match="is the most"):
        mine.collect()


def test_a_schedule_and_rates_by_hand_do_not_mix() -> None:
    optimizer, _ = settings()
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    told = GroupSettings(optimizer, schedule)
    optimizer.param_groups[0]["weight_decay"] = 0.5
    told.collect()
    optimizer.param_groups[0]["lr"] = 0.5
    with pytest.raises(UsageError, match="which the lr_scheduler sets"):
        told.collect()
    other = GroupSettings(optimizer, None)
    optimizer.step()
    schedule.step()
    with pytest.raises(UsageError, match="does not know"):
        other.collect()
    optimizer.param_groups[0]["betas"] = (0.5, 0.5)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)
    mixed = GroupSettings(optimizer, cycle)
    optimizer.param_groups[0]["betas"] = (0.6, 0.5)
    with pytest.raises(UsageError, match="set betas of parameter group 0"):
        mixed.collect()
