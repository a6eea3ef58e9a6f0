"""One replica of a small job on a device, in this process and without an agent."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from edgeagent.handover import Contributed, Reduced
from edgeagent.shared_memory import SharedMemory, create_shared_memory
from edgeagent.trainer.state import TrainingState
from edgeagent.trainer.streams import RandomStreams
from tests.unit.trainer.fake_agent import square_sums

MICRO_BATCHES = 4
FEATURES = 32
CLASSES = 8
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=3e-3),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5, centered=True),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
}


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return a net with a convolution, batch norm and dropout, always with the same weights."""
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Unflatten(1, (2, 4, 4)),
        nn.Conv2d(2, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(128, CLASSES),
    ).to(dtype)


class Replica:
    """Computes its own share and applies sums. Also on the CPU, its state is apart from the shared
    memory."""

    def __init__(
        self,
        device: torch.device,
        kind: str = "AdamW",
        *,
        loaded: bool = False,
        dtype: torch.dtype = torch.float32,
        amp: torch.dtype | None = None,
        table: bool = False,
    ) -> None:
        """`loaded`: its optimizer has stepped before. `table`: it has a frozen parameter that stays
        on the CPU."""
        self.device = device
        self.dtype = dtype
        self.amp = amp
        self.model = network(dtype).to(device)
        if table:
            frozen = nn.Parameter(torch.arange(5.0), requires_grad=False)
            self.model.register_parameter("table", frozen)
        self.optimizer = OPTIMIZERS[kind](self.model.parameters())
        if loaded:
            for parameter in self.model.parameters():
                parameter.grad = torch.full_like(parameter, 0.1)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.optimizer.load_state_dict(self.optimizer.state_dict())
        self.scaler = None
        if amp is torch.float16:
            self.scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
        self.state = TrainingState(
            self.model, self.optimizer, max_grad_norm=1.0, grad_scaler=self.scaler, mirror=True
        )
        vector = self.state.vector
        self.memory: SharedMemory = create_shared_memory(
            self.state.layout.size, vector.elements, vector.accumulate
        )
        self.state.attach(self.memory)
        self.streams = RandomStreams(3, [device])

    def share(self, micro_batches: range) -> Contributed:
        """Compute these micro-batches and return the message that contributes their sum."""
        self.state.start_iteration(0)
        for number in micro_batches:
            self.state.start_micro_batch()
            self.streams.enter(self.state.iteration, number)
            x = torch.randn(16, FEATURES).to(self.device, self.dtype)
            y = torch.randint(CLASSES, (16,)).to(self.device)
            context: Any = contextlib.nullcontext()
            if self.amp is not None:
                context = torch.autocast(self.device.type, self.amp)
            with context:
                loss = nn.functional.cross_entropy(self.model(x), y)
            (self.scaler.scale(loss) if self.scaler else loss).backward()
            self.state.collect(number, loss)
            self.streams.leave()
        return self.state.contribution()

    def apply(self, total: Any, said: Contributed, loss_sum: float, *, is_read: bool) -> None:
        """Apply the sum `total` over all replicas."""
        self.memory.reduced[0].array(self.state.vector.accumulate)[:] = total
        self.state.apply(
            Reduced(
                iteration=said.iteration,
                buffer=0,
                weight=MICRO_BATCHES,
                loss_sum=loss_sum,
                gradient_bitmap=said.gradient_bitmap,
                integer_buffers=said.integer_buffers,
                integer_buffers_agree=said.integer_buffers_agree,
                square_sums=square_sums(total, self.state.vector.chunk_elements),
                members=1,
                is_read=is_read,
            )
        )
        self.state.guards.script_ran()

    def bytes(self) -> bytes:
        """Return the state's bytes as the agent sees them."""
        self.state.bring_home()
        return bytes(self.memory.state.view())

    def adopt(self, other: Replica) -> None:
        """Take over the state of `other`, as a joiner does."""
        self.memory.state.view()[:] = other.bytes()
        self.state.adopt(other.state.iteration, other.state.meta())


def step(replicas: list[Replica], *, is_read: bool = True) -> None:
    """Do one iteration of all replicas: each computes a part, and all apply the same sum."""
    cuts = [k * MICRO_BATCHES // len(replicas) for k in range(len(replicas) + 1)]
    said = [r.share(range(cuts[k], cuts[k + 1])) for k, r in enumerate(replicas)]
    dtype = replicas[0].state.vector.accumulate
    total = sum(replica.memory.contribution.array(dtype) for replica in replicas)
    for replica in replicas:
        replica.apply(total, said[0], sum(s.loss_sum for s in said), is_read=is_read)
