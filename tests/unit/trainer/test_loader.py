"""Samples that workers fetch ahead are the same as without workers, however shares change."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from edgeagent.errors import UsageError
from edgeagent.trainer.data import NumberedData
from edgeagent.trainer.loader import InProcess, LoaderOptions, Samples
from edgeagent.trainer.order import SampleOrder, SamplerOrder, sample_order
from edgeagent.trainer.streams import RandomStreams
from edgeagent.trainer.workers import Prefetching
from tests.unit.trainer.replicas import network, run_cluster
from tests.variants import variants

if TYPE_CHECKING:
    from edgeagent.trainer import Trainer

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
ROOT = Path(__file__).resolve().parents[3]
CPU = torch.device("cpu")
GLOBAL, MICRO = 24, 4


class Noisy:
    """Samples that draw from all three global generators; sample `poisoned` cannot be read."""

    poisoned = -1

    def __len__(self) -> int:
        return 30

    def __getitem__(self, number: int) -> tuple[int, float, float, torch.Tensor]:
        if number == self.poisoned:
            raise OSError("unreadable")
        return number, random.random(), float(np.random.rand()), torch.randn(2)


def in_script(sampler: Any = None) -> InProcess:
    streams = RandomStreams(7, [CPU])
    order = sample_order(sampler, 30, streams, 7, GLOBAL, MICRO)
    return InProcess(Samples(Noisy(), None), order, streams)


def ahead(workers: int, steps: int = 0, data: Any = None, **options: Any) -> Prefetching:
    order = SampleOrder(7, 30, GLOBAL, MICRO)
    chosen = LoaderOptions(workers, **options)
    return Prefetching(Samples(data or Noisy(), None), order, 7, chosen, lambda: steps)


def as_lists(batch: list[torch.Tensor]) -> list[Any]:
    return [part.tolist() for part in batch]


# Micro-batches of this device in each iteration: steady, growing, moved to others, handed back in
# mid-iteration.
DEALS = (
    [(0, (0, 1, 2))] * 1 + [(i, (0, 1, 2)) for i in range(1, 5)],
    [(0, (0, 1)), (1, (0, 1, 2, 3)), (2, (4, 5)), (3, (4, 5)), (7, (1, 3)), (8, (3, 1))],
    [(0, (2,)), (0, (5, 3)), (1, (2,)), (1, (0,)), (2, (2, 5)), (2, (2, 5)), (3, (0,))],
)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("deals", DEALS)
def test_workers_fetch_what_the_script_would(
    workers: int, deals: list[tuple[int, tuple[int, ...]]]
) -> None:
    one, other = in_script(), ahead(workers)
    try:
        for iteration, micro_batches in deals:
            for k, m in enumerate(micro_batches):
                rest = micro_batches[k + 1 :]
                wanted = one.fetch(iteration, m, rest)
                assert as_lists(other.fetch(iteration, m, rest)) == as_lists(wanted)
            assert len(other._ready) + len(other._sent) <= 6 * workers + 6
    finally:
        other.close()


def test_answers_that_are_not_those_to_the_questions_end_the_loader() -> None:
    """As torch gives them once a worker has died: it drops what it had asked of that one."""
    answers: tuple[Any, ...] = (((0, 2), []), None)
    for answer in answers:
        source = ahead(1)
        source.fetch(0, 0, (1,))
        source._ready.clear()
        source._arrivals = iter([answer] * 20)
        with pytest.raises(RuntimeError, match="ended unexpectedly"):
            source.fetch(0, 1, ())
        source.close()


def test_what_is_fetched_ahead_is_bounded_and_dropped() -> None:
    source = ahead(2, prefetch=1)
    try:
        for iteration in range(30):
            source.fetch(iteration, iteration % 6, ())
            assert len(source._sent) == 2
            assert len(source._ready) <= 4
    finally:
        source.close()
        assert not source._ready


def test_nothing_is_fetched_beyond_the_last_step() -> None:
    source = ahead(2, steps=2)
    try:
        for iteration in (0, 1):
            for m in (0, 1):
                source.fetch(iteration, m, (1,)[m:])
        assert all(iteration < 0 for iteration, _ in source._sent)
    finally:
        source.close()


def test_an_unreadable_sample_ends_who_computes_it_and_nobody_else() -> None:
    data = Noisy()
    indices = [SampleOrder(7, 30, GLOBAL, MICRO).indices(i, 0) for i in (0, 1)]
    data.poisoned = next(k for k in indices[1] if k not in indices[0])
    source = ahead(1, data=data)
    try:
        source.fetch(0, 0, ())
        source.fetch(1, 1, ())  # micro-batch 0 was fetched ahead for nothing, and in vain
        with pytest.raises(OSError, match="unreadable"):
            source.fetch(1, 0, ())
    finally:
        source.close()


def test_the_scripts_own_streams_stay_as_they_are() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    source = ahead(1)
    source.fetch(0, 0, ())
    source.close()
    assert torch.equal(torch.get_rng_state(), before)


def test_workers_end_with_their_source() -> None:
    source = ahead(2)
    source.fetch(0, 0, ())
    workers = [w.pid for w in source._arrivals._workers]  # type: ignore[union-attr]  # torch's own
    assert len(workers) == 2
    source.close()
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SequentialSampler(range(30)),
        lambda: RandomSampler(range(30)),
        lambda: RandomSampler(range(30), replacement=True, num_samples=50),
        lambda: SubsetRandomSampler(range(5, 25)),
        lambda: WeightedRandomSampler([1.0 + k for k in range(30)], 17),
    ],
)
def test_samplers_decide_the_order_for_who_joins_late_too(make: Any) -> None:
    first = SamplerOrder(make(), 30, RandomStreams(7, [CPU]), 7, GLOBAL, MICRO)
    whole = [k for i in range(12) for m in range(6) for k in first.indices(i, m)]
    late = SamplerOrder(make(), 30, RandomStreams(7, [CPU]), 7, GLOBAL, MICRO)
    torch.manual_seed(99)
    assert late.indices(11, 5) == whole[-MICRO:]
    assert late.fields() == first.fields() == (("sampler", type(make()).__name__), late.fields()[1])
    sampler = make()
    RandomStreams(7, [CPU]).enter("epoch", 0)
    assert list(sampler) == whole[: len(sampler)]


class Stubborn(Sampler[int]):
    """A sampler that behaves in ways that cannot be supported."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.asked = 0

    def __len__(self) -> int:
        if self.how == "endless":
            raise TypeError
        return 0 if self.how == "empty" else 3

    def __iter__(self) -> Any:
        self.asked += self.how == "counts"
        values = {"counts": [0, 1, self.asked % 3], "short": [0], "far": [0, 1, 30], "words": "abc"}
        return iter(values.get(self.how, [0, 1, 2]))


@pytest.mark.parametrize(
    ("sampler", "said"),
    [
        (
            DistributedSampler(torch.utils.data.TensorDataset(torch.ones(30)), 2, 0),
            "DistributedSampler divides",
        ),
        (BatchSampler(SequentialSampler(range(30)), 3, False), "BatchSampler makes batches"),
        (RandomSampler(range(30), generator=torch.Generator()), "leave generator= away"),
        (Stubborn("endless"), "needs __iter__ and a length"),
        (Stubborn("empty"), "is empty"),
        (Stubborn("counts"), "gives another order"),
        (Stubborn("short"), "has not 3 samples"),
        (Stubborn("far"), "that the data set has not"),
        (Stubborn("words"), "no numbers of samples"),
    ],
)
def test_samplers_that_cannot_be_had_are_named(sampler: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        SamplerOrder(sampler, 30, RandomStreams(7, [CPU]), 7, GLOBAL, MICRO)


def test_a_sampler_hears_of_the_epoch() -> None:
    class Shifted(Stubborn):
        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Any:
            return iter([(k + self.epoch) % 3 for k in range(3)])

    order = SamplerOrder(Shifted(""), 30, RandomStreams(7, [CPU]), 7, 3, 3)
    assert [order.indices(i, 0) for i in (0, 4, 2)] == [[0, 1, 2], [1, 2, 0], [2, 0, 1]]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"workers": -1}, "workers is -1"),
        ({"workers": True}, "workers is True"),
        ({"workers": 1.5}, "workers is 1.5"),
        ({"workers": None}, "workers is None"),
        ({"workers": 1, "prefetch": 0}, "prefetch is 0"),
        ({"prefetch": 2}, "with workers only"),
        ({"worker_init_fn": print}, "with workers only"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        LoaderOptions(**options)


def test_a_distributed_sampler_of_one_replica_chooses_among_all_samples() -> None:
    sampler: Any = DistributedSampler(torch.utils.data.TensorDataset(torch.ones(30)), 1, 0)
    order = SamplerOrder(sampler, 30, RandomStreams(7, [CPU]), 7, 3, 3)
    epochs = [[k for i in range(10) for k in order.indices(10 * e + i, 0)] for e in (0, 1, 0)]
    assert sorted(epochs[0]) == list(range(30))
    assert epochs[0] == epochs[2] != epochs[1]


def make() -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return model, optimizer, {"global_batch": 32, "micro_batch": 4, "seed": 3}


def with_workers(count: int) -> Any:
    def loop(trainer: Trainer, model: nn.Module, data: Any) -> None:
        sampler = WeightedRandomSampler([1.0 + k for k in range(len(data))], 150)
        for x, y in trainer.loader(data, workers=count, sampler=sampler):
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            trainer.update(loss)

    return loop


def test_two_devices_train_with_workers_as_without() -> None:
    """Their shares change in each iteration; the losses and every byte of the state are equal."""
    without = run_cluster(make, 2, 14, cluster={"keep_states": True}, loop=with_workers(0))
    ahead = run_cluster(make, 2, 14, cluster={"keep_states": True}, loop=with_workers(2))
    assert without.losses == ahead.losses
    assert without.states == ahead.states


class OnDisk:
    """Float32 rows in a file that is opened at the first sample, as with h5py, LMDB or zip."""

    def __init__(self, path: Path) -> None:
        torch.randn(len(self), 8, generator=torch.Generator().manual_seed(1)).numpy().tofile(path)
        self.path = path
        self.file: int | None = None
        self.opened_by = 0

    def __len__(self) -> int:
        return 200

    def __getitem__(self, number: int) -> tuple[int, torch.Tensor, int]:
        if self.file is None:
            self.file, self.opened_by = os.open(self.path, os.O_RDONLY), os.getpid()
        assert self.opened_by == os.getpid(), "the place where it reads is another process's, too"
        os.lseek(self.file, 32 * number, os.SEEK_SET)
        return number, torch.frombuffer(bytearray(os.read(self.file, 32)), dtype=torch.float32), 0


def test_no_file_is_opened_before_workers_begin(tmp_path: Path) -> None:
    data, streams = OnDisk(tmp_path / "rows"), RandomStreams(7, [CPU])
    rows = np.fromfile(data.path, np.float32).reshape(-1, 8)
    numbered = NumberedData(data, None, streams, GLOBAL, MICRO)
    options = LoaderOptions(3)
    told = numbered.fields(options)
    assert data.file is None
    source = numbered.source(None, options, None, lambda: 0)
    try:
        for m in range(GLOBAL // MICRO):
            numbers, found, _ = source.fetch(0, m, range(m + 1, GLOBAL // MICRO))
            assert np.array_equal(found.numpy(), rows[numbers.numpy()])
    finally:
        source.close()
    assert data.file is None
    assert numbered.fields(LoaderOptions()) == told, "workers are a device's own matter"


class Prepared(Noisy):
    """A data set that `worker_init_fn` makes ready in each worker."""

    ready = -1

    def __getitem__(self, number: int) -> Any:
        info: Any = get_worker_info()
        assert info.dataset is self
        assert self.ready == info.id
        return super().__getitem__(number)


def make_ready(number: int) -> None:
    info: Any = get_worker_info()
    assert type(info.dataset) is Prepared
    info.dataset.ready = number


def test_workers_find_the_data_set_where_torch_keeps_it() -> None:
    options = LoaderOptions(2, worker_init_fn=make_ready)
    data = NumberedData(Prepared(), None, RandomStreams(7, [CPU]), GLOBAL, MICRO)
    same = NumberedData(Noisy(), None, RandomStreams(7, [CPU]), GLOBAL, MICRO)
    assert data.fields(options) == same.fields(LoaderOptions())
    source = data.source(None, options, None, lambda: 0)
    try:
        assert as_lists(source.fetch(0, 3, ())) == as_lists(in_script().fetch(0, 3, ()))
    finally:
        source.close()


def test_an_unreadable_sample_is_found_before_the_cluster_is_joined() -> None:
    data = Noisy()
    data.poisoned = 0
    numbered = NumberedData(data, None, RandomStreams(7, [CPU]), GLOBAL, MICRO)
    with pytest.raises(OSError, match="unreadable"):
        numbered.fields(LoaderOptions(1))


SCRIPT = """
import sys, time, torch
from tests.unit.trainer.test_loader import *
source = ahead(2)
for m in range(6):  # then they have nothing to do and wait, which torch ends after 5 s
    source.fetch(0, m, range(m + 1, 6))
print(*(w.pid for w in source._arrivals._workers), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", variants([signal.SIGKILL], [signal.SIGTERM, signal.SIGINT]))
def test_workers_end_with_their_process(number: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SCRIPT],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        workers = [int(pid) for pid in process.stdout.readline().split()]
        assert len(workers) == 2
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as Ctrl+C in a terminal does
        else:
            process.send_signal(number)
        process.wait(30)
        deadline = time.monotonic() + 2.0
        while any(_lives(pid) for pid in workers):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        said = process.stderr.read().decode()
        assert "Process" not in said, said  # as a worker's own traceback begins
        assert said.count("Traceback") == (number == signal.SIGINT), said
    finally:
        process.kill()
        process.wait()


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
