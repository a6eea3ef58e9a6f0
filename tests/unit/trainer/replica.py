"""One replica that takes local steps, driven by hand, and the network that it trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from edgeagent.handover import Applied, Contributed, Reduced
from edgeagent.trainer.local_steps import LocalSteps
from edgeagent.trainer.state import TrainingState
from tests.unit.trainer.fake_agent import square_sums
from tests.unit.trainer.replicas import CLASSES, FEATURES

if TYPE_CHECKING:
    from collections.abc import Callable

MICRO = 4  # samples of a local step
RATE = 0.05


def network(norm: bool = False) -> nn.Module:
    torch.manual_seed(11)
    middle: list[nn.Module] = [nn.BatchNorm1d(24)] if norm else []
    layers = [nn.Linear(FEATURES, 24), *middle, nn.Tanh(), nn.Linear(24, CLASSES)]
    return nn.Sequential(*layers).double()


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.5)


class Replica:
    """A state in shared memory, its local steps, and the script's model and optimizer."""

    def __init__(
        self,
        inner: Callable[[nn.Module], torch.optim.Optimizer] = adamw,
        *,
        model: nn.Module | None = None,
        outer: Any = "nesterov",
        factor: Callable[[int], float] | None = None,
        average: Callable[[nn.Module], Any] | None = None,
    ) -> None:
        """`factor` makes a schedule; `average` is called after each round."""
        self.model = model = network() if model is None else model
        self.inner = inner(model)
        plan = factor and torch.optim.lr_scheduler.LambdaLR(self.inner, factor)
        self.local = LocalSteps(model, self.inner, outer)
        self.state = TrainingState(model, self.inner, plan, local=self.local)
        if average is not None:
            self.state.replicated.add("average", {"kept": torch.zeros(3)}, average)
            self.state.plan()
        self.memory = self.state.share()
        self.state.start_iteration(0)

    def compute(self, *micro_batches: int, scale: float = 1.0) -> None:
        """Compute these micro-batches, whose samples follow from their numbers."""
        for number in micro_batches:
            generator = torch.Generator().manual_seed(number)
            x = torch.randn(MICRO, FEATURES, generator=generator, dtype=torch.float64)
            self.state.start_micro_batch(number)
            self.state.guards.script_ran()
            loss = scale * self.model(x).square().mean()
            loss.backward()
            self.state.collect(number, loss)

    def held(self) -> bytes:
        """Return the state as the agent reads it."""
        return bytes(self.memory.state.view())

    @property
    def contribution(self) -> np.ndarray[Any, Any]:
        """P as the agent reads it."""
        return self.memory.contribution.array("float64")

    def apply(self, said: list[tuple[Replica, Contributed]], poison: float = 0.0) -> Applied:
        """Apply the round that consists of these contributions."""
        total = sum((r.contribution for r, _ in said), np.zeros(self.state.vector.elements))
        total[0] += poison
        words = [word for _, word in said]
        self.memory.reduced[self.state.iteration % 2].array("float64")[:] = total
        bitmaps = zip(*(word.gradient_bitmap for word in words), strict=True)
        return self.state.apply(
            Reduced(
                iteration=self.state.iteration,
                buffer=self.state.iteration % 2,
                weight=sum(len(word.micro_batches) for word in words),
                loss_sum=sum(word.loss_sum for word in words),
                gradient_bitmap=bytes(map(max, bitmaps)),
                integer_buffers=max(word.integer_buffers for word in words),
                integer_buffers_agree=True,
                square_sums=square_sums(total, self.state.vector.chunk_elements),
                members=len(words),
                settings=max(word.settings for word in words),
            )
        )


def play(*replicas: Replica, poison: float = 0.0) -> list[Applied]:
    """End the round of these replicas; return what each of them says."""
    said = [(replica, replica.state.contribution()) for replica in replicas]
    return [replica.apply(said, poison) for replica in replicas]


def begin(*replicas: Replica) -> None:
    """Begin the next round."""
    for replica in replicas:
        replica.state.start_iteration(0)
