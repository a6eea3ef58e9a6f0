"""Micro-batches fetched ahead by worker processes of torch's DataLoader.

Which micro-batches a node computes is known only when the agent gives work, which is too late to
begin fetching. So workers are also told to fetch what this node will be given if its share stays
the same, one micro-batch at a time. A wrong guess costs time and nothing else: a micro-batch that
nobody asks for is dropped, and one that was not guessed is fetched next. Each worker seeds its
generators for the micro-batch (`streams.py`), so the samples do not depend on who fetched them.

A worker ends with this process, whatever ends that. It holds no descriptor of the agent's, because
the agent would not notice then that the trainer has gone. It leaves Ctrl+C to the trainer.
"""

from __future__ import annotations

import signal
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from edgeagent.errors import EdgeAgentError
from edgeagent.lifetime import dies_with_parent
from edgeagent.trainer.loader import DEFAULT_PREFETCH, SAMPLES, Delivered, InProcess
from edgeagent.trainer.streams import RandomStreams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from edgeagent.trainer.loader import LoaderOptions, MicroBatchSource, Samples
    from edgeagent.trainer.order import SampleOrder

Key = tuple[int, int]  # iteration and micro-batch
# The iteration in a key that asks for nothing; with it the second number only makes the key unique.
_NOTHING = -1
# Functions that close what a forked worker must not hold.
_not_for_workers: list[Callable[[], None]] = []
# What a forked worker has to call first. It is set while workers are started and inherited by fork;
# a worker that is spawned imports this module anew, finds none and holds nothing, either.
_fork_duties: list[Callable[[], None]] = []


def keep_from_workers(close: Callable[[], None]) -> None:
    """Have each worker that is forked from now on call `close` on what it must not hold."""
    _not_for_workers.append(close)


class Prefetching:
    """Keeps `options.workers` processes busy with what this node is expected to need.

    `steps()` returns how many iterations there are, 0 for no end: nothing beyond is fetched.
    """

    def __init__(
        self,
        samples: Samples,
        order: SampleOrder,
        seed: int,
        options: LoaderOptions,
        steps: Callable[[], int],
    ) -> None:
        self._order = order
        self._steps = steps
        prefetch = options.prefetch or DEFAULT_PREFETCH
        self._ahead = options.workers * prefetch
        self._loader: DataLoader[Any] = DataLoader(
            _InWorker(samples, seed),
            batch_size=None,
            sampler=_Told(self._next_to_send),
            num_workers=options.workers,
            prefetch_factor=prefetch,
            collate_fn=_as_it_is,
            pin_memory=options.pin_memory and torch.cuda.is_available(),
            worker_init_fn=_WorkerStart(options.worker_init_fn),
            generator=torch.Generator(),  # otherwise DataLoader draws from the script's stream
        )
        self._arrivals: Iterator[Any] | None = None
        self._iteration = _NOTHING
        self._share: tuple[int, ...] = ()  # the micro-batches of it that this node was given
        self._guessed = 0  # the next iteration for which the same share is to be planned
        self._planned: deque[Key] = deque()  # what workers will be told to fetch
        self._sent: dict[Key, None] = {}  # what workers were told, oldest first
        self._ready: dict[Key, Any] = {}  # what they have fetched and nobody has asked for yet
        self._blanks = 0  # how often they were told to fetch nothing

    def fetch(self, iteration: int, micro_batch: int, pending: Sequence[int]) -> Any:
        """Return a micro-batch that was fetched ahead, or have it fetched next."""
        self._expect(iteration, (micro_batch, *pending))
        if self._arrivals is None:
            self._arrivals = _started(self._loader)
        wanted = (iteration, micro_batch)
        while wanted not in self._ready:
            self._receive(self._arrivals, wanted)
        return self._ready.pop(wanted)

    def close(self) -> None:
        """End the workers and drop what they have fetched; idempotent."""
        self._arrivals = None  # torch ends the workers when nobody refers to this iterator
        self._ready.clear()

    def _expect(self, iteration: int, micro_batches: tuple[int, ...]) -> None:
        """Plan what to fetch next: first what is missing of `micro_batches`, in their order.

        After that `_next_to_send` plans the same share of one iteration after the other.
        """
        if iteration != self._iteration:
            self._iteration, self._share = iteration, ()
            self._planned.clear()
            self._guessed = iteration + 1
        self._share = tuple(dict.fromkeys((*self._share, *micro_batches)))
        self._ready = {key: batch for key, batch in self._ready.items() if self._is_wanted(key)}
        known = {*self._sent, *self._ready, *self._planned}
        missing = [(iteration, m) for m in micro_batches if (iteration, m) not in known]
        self._planned.extendleft(reversed(missing))

    def _receive(self, arrivals: Iterator[Any], wanted: Key) -> None:
        """Take in what was sent first: DataLoader returns batches in the order of the requests."""
        key = next(iter(self._sent))
        try:
            answer = next(arrivals)
        except Exception:
            del self._sent[key]
            if key == wanted or not self._sent:
                raise
            return  # a guess failed; if it is ever asked for, it is fetched again and fails then
        del self._sent[key]
        told, batch = answer if answer is not None else (None, None)
        if told != (None if key[0] == _NOTHING else key):
            # torch drops what it has asked of a worker that has died, and so the order is lost.
            raise RuntimeError(
                "a worker of the loader has ended unexpectedly (killed for memory? see dmesg)"
            )
        if self._is_wanted(key):
            self._ready[key] = batch

    def _is_wanted(self, key: Key) -> bool:
        """Return whether this node still has to compute the micro-batch, as far as is known."""
        return key[0] >= self._iteration and key[1] in self._share

    def _next_to_send(self) -> tuple[int, int, list[int]] | None:
        """Return iteration, micro-batch and sample indices to send to a worker, None for nothing.

        DataLoader asks whenever a worker has room, and takes an answer each time.
        """
        last = self._steps()
        # Without this limit micro-batches that were fetched in vain would pile up.
        room = len(self._ready) < self._ahead
        while room and not self._planned and self._share and not 0 < last <= self._guessed:
            expected = [(self._guessed, m) for m in self._share]
            self._planned += [k for k in expected if k not in self._sent and k not in self._ready]
            self._guessed += 1
        if not self._planned:
            self._blanks += 1
            self._sent[_NOTHING, self._blanks] = None
            return None
        key = self._planned.popleft()
        self._sent[key] = None
        return (*key, self._order.indices(*key))


def fetching(
    samples: Samples,
    order: SampleOrder,
    streams: RandomStreams,
    options: LoaderOptions,
    device: torch.device | None,
    steps: Callable[[], int],
) -> MicroBatchSource:
    """Return the source of micro-batches that `options` ask for.

    `device` is where they shall be, as in `Delivered`, and `steps` as in `Prefetching`.
    """
    if not options.workers:
        return Delivered(InProcess(samples, order, streams), device, pin=options.pin_memory)
    source = Prefetching(samples, order, streams.seed, options, steps)
    return Delivered(source, device, pin=False)


class _Told:
    """What torch calls a sampler: an endless iterator over what `tell` returns."""

    def __init__(self, tell: Callable[[], Any]) -> None:
        self._tell = tell

    def __iter__(self) -> _Told:
        return self

    def __next__(self) -> Any:
        return self._tell()


def done_in_a_worker(task: Callable[[Any], Any], dataset: Any, options: LoaderOptions) -> Any:
    """Return what `task(dataset)` returns in a worker of its own, which then ends.

    So this process opens no file of the data set that workers would inherit. The worker begins as
    all others do, because a data set may need what `worker_init_fn` has done.
    """
    loader: DataLoader[Any] = DataLoader(
        _OneTask(task, dataset),
        batch_size=None,
        sampler=[0],
        num_workers=1,
        collate_fn=_as_it_is,
        worker_init_fn=_WorkerStart(options.worker_init_fn),
        generator=torch.Generator(),  # otherwise DataLoader draws from the script's stream
    )
    found = next(_started(loader))
    if isinstance(found, EdgeAgentError):
        raise found
    return found


class _OneTask(Dataset[Any]):
    """What torch calls a data set: its only item is what `task(dataset)` returns, or the error for
    the user that it raises, which torch would wrap in a traceback."""

    def __init__(self, task: Callable[[Any], Any], dataset: Any) -> None:
        self._task = task
        self.dataset = dataset

    def __getitem__(self, _: int) -> Any:
        try:
            return self._task(self.dataset)
        except EdgeAgentError as error:
            return error


class _InWorker(Dataset[Any]):
    """What torch calls a data set: its items are whole micro-batches, made in a worker."""

    def __init__(self, samples: Samples, seed: int) -> None:
        self._samples = samples
        self.dataset = samples.dataset
        self._seed = seed
        self._streams: RandomStreams | None = None

    def __getitem__(self, told: tuple[int, int, list[int]] | None) -> Any:
        if told is None:
            return None
        iteration, micro_batch, indices = told
        if self._streams is None:
            self._streams = RandomStreams(self._seed, ())
        self._streams.enter(iteration, micro_batch, SAMPLES)
        return (iteration, micro_batch), self._samples.collated(indices)


class _WorkerStart:
    """What a worker does first; `then` is the script's own `worker_init_fn`.

    It has torch say that the worker's data set is the script's, as it is with a `DataLoader` of the
    script's own: what `worker_init_fn` does to it would otherwise be done to a wrapper.
    The worker was started with SIGINT blocked, so that Ctrl+C cannot end it before it ignores the
    signal.
    """

    def __init__(self, then: Callable[[int], Any] | None) -> None:
        self._then = then

    def __call__(self, number: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        for duty in _fork_duties:
            duty()
        info: Any = get_worker_info()
        if info is not None:
            object.__setattr__(info, "dataset", info.dataset.dataset)  # it lets nobody set anything
        if self._then is not None:
            self._then(number)


def _started(loader: DataLoader[Any]) -> Iterator[Any]:
    """Start the workers and return the iterator over what they fetch."""
    bind = dies_with_parent()
    _fork_duties[:] = [*_not_for_workers, *([bind] if bind is not None else [])]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _fork_duties.clear()


def _as_it_is(batch: Any) -> Any:
    """Return `batch`: a collate function for batches that are collated already."""
    return batch
