"""A trainer whose optimizer's state is divided, without an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import numpy as np
import torch

from edgeagent.dataplane.weight_chunks import WeightChunks
from edgeagent.handover import REPLAY_BUFFER, Publish, Reduced
from edgeagent.trainer.image import CPU
from edgeagent.trainer.state import TrainingState

if TYPE_CHECKING:
    from edgeagent.shared_memory import SharedMemory
    from edgeagent.trainer.shards import Shards

Classes = tuple[type[torch.optim.Optimizer], dict[str, Any]]
OPTIMIZERS: list[Classes] = [
    (torch.optim.AdamW, {"lr": 1e-3}),
    (torch.optim.Adam, {"amsgrad": True}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
    (torch.optim.NAdam, {}),
    (torch.optim.RMSprop, {"momentum": 0.5}),
]


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(90)
    return torch.nn.Sequential(
        torch.nn.Linear(70, 90), torch.nn.ReLU(), norm, torch.nn.Linear(90, 10)
    )


def squares_of(vector: np.ndarray[Any, Any], size: int) -> tuple[float, ...]:
    """Return the sum of squares of each chunk of `size` elements."""
    cuts = range(0, len(vector), size)
    return tuple(float(np.sum(vector[k : k + size].astype(np.float64) ** 2)) for k in cuts)


class Device:
    """A trainer's state without an agent: this class hands the sums round. Its model is on the
    device `at`; with `mirror` it is apart from the shared memory, also on the CPU."""

    def __init__(
        self,
        kind: type[torch.optim.Optimizer],
        options: Any,
        *,
        shards: bool,
        at: torch.device = CPU,
        mirror: bool = False,
    ) -> None:
        self.at = at
        self.model = net().to(at)
        self.optimizer = kind(self.model.parameters(), **options)
        schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.state = TrainingState(
            self.model, self.optimizer, schedule, 0.5, shards=shards, mirror=mirror
        )
        self.memory: SharedMemory = self.state.share()

    @property
    def shards(self) -> Shards:
        assert self.state.shards is not None
        return self.state.shards

    @property
    def held(self) -> np.ndarray[Any, Any]:
        """The region with slots and sums, once the slots are stepped: the agent waits for that
        before it reads slots or puts other sums there."""
        self.shards.owed.all()
        return self.memory.held.array("float32")

    def compute(self, seed: int) -> Any:
        """Compute one micro-batch; return what the trainer says of it."""
        state = self.state
        state.start_iteration(0)
        state.start_micro_batch(0)
        torch.manual_seed(seed)
        inputs, labels = torch.randn(16, 70).to(self.at), torch.randint(0, 10, (16,)).to(self.at)
        loss = torch.nn.functional.cross_entropy(self.model(inputs), labels)
        loss.backward()
        state.collect(0, loss)
        return state.contribution()

    def put_sums(self, total: np.ndarray[Any, Any], *, missed: bool = False) -> None:
        layout = self.shards.layout
        where = layout.missed if missed else layout.sums
        for chunk in range(1, layout.chunks + 1):
            self.held[where(chunk)] = total[slice(*layout.span(chunk))]

    def publish(
        self,
        said: Any,
        squares: tuple[float, ...],
        attempt: int = 0,
        anew: tuple[int, ...] = (),
        lost: tuple[int, ...] = (),
    ) -> Any:
        """Make the results of all stripes; return them as the vector R."""
        layout = self.shards.layout
        every = tuple(range(layout.stripes))
        about = (1, said.gradient_bitmap, squares, b"", b"", anew, lost)
        wanted = Publish(self.state.iteration, attempt, every, *about)
        told = self.state.publish(wanted)
        assert (told.iteration, told.attempt) == (self.state.iteration, attempt)
        return self.memory.contribution.array("float32").copy()

    def apply(
        self,
        said: Any,
        squares: tuple[float, ...],
        result: Any,
        *,
        replay: bool = False,
        stripes: tuple[int, ...] | None = None,
        anew: tuple[int, ...] = (),
        slots_now: bool = False,
    ) -> None:
        at = self.state.iteration
        region = self.memory.replay if replay else self.memory.reduced[at % 2]
        region.array("float32")[:] = result
        if self.state.shards is not None and not replay:  # weights have one place in all iterations
            start = self.state.vector.gradient_elements
            region.array("float32")[:start] = np.nan
            self.memory.reduced[0].array("float32")[:start] = result[:start]
        if stripes is None:
            stripes = tuple(range(self.shards.layout.stripes)) if self.state.shards else ()
        buffer = REPLAY_BUFFER if replay else at % 2
        about = (1, said.loss_sum, said.gradient_bitmap, said.integer_buffers, True, squares, 1)
        self.state.apply(Reduced(at, buffer, *about, b"", b"", True, stripes, anew, slots_now))

    def step(
        self, seed: int, *, spoilt: bool = False, replay: bool = False, slots_now: bool = False
    ) -> None:
        """Make one iteration alone."""
        said = self.compute(seed)
        total = self.memory.contribution.array("float32").copy()
        if spoilt:
            total[5] = np.inf
        squares = squares_of(total, self.state.vector.chunk_elements)
        result = total
        if self.state.shards is not None:
            self.put_sums(total)
            result = self.publish(said, squares)
            assert np.array_equal(result, self.publish(said, squares, 1), equal_nan=True)
            if replay:
                self.put_sums(total, missed=True)
                self.put_sums(np.zeros_like(total))
        self.apply(said, squares, result, replay=replay, slots_now=slots_now)
        if self.state.shards is not None:
            self.check_weights(result)

    def check_weights(self, result: np.ndarray[Any, Any]) -> None:
        """The agent finds in the state what the owners have published."""
        vector = self.state.vector
        size, places = vector.chunk_elements, self.shards.places(self.state.layout)
        hello = Mock(elements=vector.elements, chunk_elements=size, weights=places)
        weights = WeightChunks(hello, self.memory)
        assert weights.chunks == vector.gradient_chunks
        assert weights.are_of(self.state.iteration - 1)
        for chunk in range(1, weights.chunks + 1):
            assert np.array_equal(weights.read(chunk), result[(chunk - 1) * size : chunk * size])
