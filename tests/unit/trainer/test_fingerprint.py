"""Modules with their settings, and samples of the data, are part of the job."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from edgeagent.config import RUN_VARIABLE, TrainerConfig, trainer_config_text
from edgeagent.trainer.fingerprint import digest_of_samples, job_fields
from edgeagent.trainer.options import resolve_options
from edgeagent.trainer.state import TrainingState
from edgeagent.transport.job import JOB_NAME, difference_text, first_difference


class Odd(nn.Module):
    """A module whose text contains its address in memory, or is empty."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.fails = fails

    def extra_repr(self) -> str:
        if self.fails:
            raise RuntimeError("no")
        return f"f={object()!r}"


def fields_of(*modules: nn.Module) -> tuple[tuple[str, str], ...]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), *modules, nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return job_fields(TrainingState(model, optimizer, None, None), optimizer, None, {})


@pytest.mark.parametrize(
    ("ours", "theirs", "text"),
    [
        (nn.Tanh(), nn.ReLU(), "module 1 is ReLU there and Tanh here"),
        (nn.Dropout(0.1), nn.Dropout(0.5), "module 1: p is 0.5 there and 0.1 here"),
        (nn.ReLU(), nn.ReLU(inplace=True), "module 1: "),
    ],
)
def test_a_module_without_tensors_makes_another_job(
    ours: nn.Module, theirs: nn.Module, text: str
) -> None:
    difference = first_difference(fields_of(ours), fields_of(theirs))
    assert difference is not None
    assert difference_text(difference).startswith(text)


def test_addresses_and_modules_that_cannot_say_what_they_are_make_none() -> None:
    assert fields_of(Odd()) == fields_of(Odd())
    assert ("module 1", "Odd()") in fields_of(Odd(fails=True))


def test_very_many_modules_are_one_field() -> None:
    many, more = ([nn.Identity() for _ in range(count)] for count in (2100, 2101))
    one, other = fields_of(*many), fields_of(*more)
    assert [name for name, _ in one if name.startswith("module")] == ["modules"]
    difference = first_difference(one, other)
    assert difference is not None


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.array([f"cat{len(str(3))}", 1.5, None], dtype=object),
        lambda: np.array([(1, f"dog{len(str(3))}")], dtype=[("n", int), ("name", object)]),
        lambda: torch.tensor([0.0, 2.0, 0.0]).to_sparse(),
    ],
)
def test_samples_with_equal_contents_have_equal_digests(make: Any) -> None:
    """Arrays of objects hold addresses, and sparse tensors are stored in several ways."""
    one, other = make(), make()
    assert digest_of_samples([one]) == digest_of_samples([other])
    assert digest_of_samples([one]) != digest_of_samples([one, one])


def test_the_name_of_a_job_explains_but_makes_no_other_job(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for config in (TrainerConfig(job="digits"), None):
        monkeypatch.setattr("sys.argv", ["/x/my train.py"])
        environment = {} if config is None else {RUN_VARIABLE: trainer_config_text(config)}
        monkeypatch.delenv(RUN_VARIABLE, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        options = resolve_options(environment, 32, None, None, None, None, None)
        names.append(options.job_field)
    assert names == [(JOB_NAME, "digits"), (JOB_NAME, "my train")]
    assert first_difference((names[0],), (names[1],)) is None
