"""Streams of samples: the same micro-batches on any number of devices, in whatever order asked."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, RandomSampler

from edgeagent.errors import UsageError
from edgeagent.trainer import Trainer
from edgeagent.trainer.loader import LoaderOptions
from edgeagent.trainer.stream import Stream, StreamData
from edgeagent.trainer.streams import RandomStreams
from tests.unit.trainer.replicas import CLASSES, FEATURES, network, run_cluster, train

GLOBAL, MICRO = 12, 4


class Numbers(IterableDataset[tuple[int, int, float]]):
    """`length` samples a pass: the pass, the number, and what all three generators draw."""

    def __init__(self, length: int = 20) -> None:
        self.length = length
        self.epoch = -1
        self.made = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[int, int, float]]:
        for number in range(self.length):
            self.made += 1
            drawn = random.random() + float(np.random.rand()) + float(torch.rand(()))
            yield self.epoch, number, drawn


class Augmented(IterableDataset[tuple[torch.Tensor, int]]):
    """A stream that the network of the tests can learn."""

    def __init__(self, first: float = 0.0) -> None:
        self.first = first

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        for number in range(50):
            x = torch.randn(FEATURES) + (self.first if number == 0 else 0.0)
            yield x, number % CLASSES


def streams() -> RandomStreams:
    return RandomStreams(7, [torch.device("cpu")])


def data(dataset: Any = None) -> StreamData:
    return StreamData(dataset or Numbers(), None, streams(), GLOBAL, MICRO)


def fetched(of: StreamData, *keys: tuple[int, int]) -> list[Any]:
    source = of.source(list, LoaderOptions(), None, lambda: 0)
    return [source.fetch(i, m, ()) for i, m in keys]


def test_positions_follow_the_stream_from_pass_to_pass() -> None:
    batches = fetched(data(), *((i, m) for i in range(4) for m in range(3)))
    seen = [(epoch, number) for batch in batches for epoch, number, _ in batch]
    assert seen == [(k // 20, k % 20) for k in range(48)]
    assert len({drawn for batch in batches for *_, drawn in batch}) == 48


def test_a_micro_batch_is_the_same_whatever_was_fetched_before() -> None:
    every = {(i, m): batch for i in range(6) for m in range(3) for batch in fetched(data(), (i, m))}
    orders: list[list[tuple[int, int]]] = [
        [(0, 2), (0, 0), (0, 1), (1, 1), (1, 0)],  # dealt to this device late
        [(3, 1), (4, 2), (5, 0)],  # a joiner, or a device without a share meanwhile
        [(5, 2), (1, 0), (1, 2)],  # another state was adopted
    ]
    for keys in orders:
        assert fetched(data(), *keys) == [every[key] for key in keys]


def test_no_more_is_made_than_is_needed_and_no_more_kept_than_a_global_batch() -> None:
    numbers = Numbers()
    stream = Stream(numbers, streams())
    stream.between(0, 0, 4)
    assert numbers.made == 4
    stream.between(24, 28, 32)
    assert numbers.made == 32
    assert len(stream._kept) == 8
    stream.between(24, 24, 28)
    assert numbers.made == 32


def test_a_long_way_to_the_first_sample_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    stream = Stream(Numbers(1000), streams())
    stream.between(9_000, 9_000, 9_001)
    assert capsys.readouterr().err == ""
    stream.between(30_000, 30_000, 30_001)
    said = "edgeagent: making and dropping 20999 samples of the stream that are past\n"
    assert capsys.readouterr().err == said


def test_the_fingerprint_takes_nothing_from_the_stream() -> None:
    of, numbers = data(), Numbers()
    fields = of.fields(LoaderOptions())
    assert fields == data().fields(LoaderOptions()) == data(numbers).fields(LoaderOptions())
    assert numbers.made == 16
    assert fetched(of, (0, 0)) == fetched(data(), (0, 0))
    assert data(Numbers(15)).fields(LoaderOptions()) != fields


def test_the_scripts_own_streams_stay_as_they_are() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state(), random.getstate()
    data().fields(LoaderOptions())
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


class Once(IterableDataset[int]):
    """A stream that iter() does not begin again."""

    def __init__(self) -> None:
        self.samples = iter(range(20))

    def __iter__(self) -> Iterator[int]:
        return self.samples


def test_a_stream_that_cannot_begin_again_is_named() -> None:
    of = data(Once())
    fetched(of, (0, 0), (0, 1), (0, 2), (1, 0), (1, 1))
    with pytest.raises(UsageError, match="Once gave no sample in pass 1"):
        fetched(of, (1, 2))


def test_an_empty_stream_is_named() -> None:
    with pytest.raises(UsageError, match="Numbers gave no sample in pass 0"):
        data(Numbers(0)).fields(LoaderOptions())


def trainer() -> Trainer:
    model = nn.Linear(2, 2)
    return Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), 8)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"workers": 2}, "Numbers is an IterableDataset, of which each of the 2 workers"),
        ({"sampler": RandomSampler(range(3))}, "RandomSampler chooses samples by their numbers"),
    ],
)
def test_what_a_stream_cannot_have_is_named_before_anything_is_joined(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        trainer().loader(Numbers(), **options)


def make() -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return model, optimizer, {"global_batch": 24, "micro_batch": 4, "seed": 3}


def test_one_device_and_two_of_which_one_joins_late() -> None:
    alone = run_cluster(make, 1, 12, Augmented)
    late = run_cluster(make, 2, 12, Augmented, {"join_at": {1: 5}})
    assert late.losses == pytest.approx(alone.losses, rel=1e-5)


def test_streams_that_begin_differently_do_not_train_together() -> None:
    def loop(trainer: Trainer, model: nn.Module, dataset: Augmented) -> None:
        dataset.first = float(os.getpid())
        train(trainer, model, dataset)

    with pytest.raises(AssertionError, match="fingerprints differ"):
        run_cluster(make, 2, 3, Augmented, loop=loop)
