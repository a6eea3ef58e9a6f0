"""Runs trainers as forked processes against the fake cluster, and the networks they train."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

import torch
import torch._dynamo  # what the first optimizer imports; forked trainers then need not
from torch import nn

from edgeagent.trainer import Trainer
from edgeagent.trainer.process import AgentConnection
from tests.unit.trainer.fake_agent import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[[], tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]]

SAMPLES = 200
FEATURES = 12
CLASSES = 4


class Points:
    """A small fixed classification data set with random augmentation."""

    def __init__(self, dtype: torch.dtype = torch.float32, noise: float = 0.05) -> None:
        generator = torch.Generator().manual_seed(3)
        self._x = torch.randn(SAMPLES, FEATURES, generator=generator, dtype=torch.float64).to(dtype)
        self._y = (self._x[:, :CLASSES].argmax(dim=1)).tolist()
        self._noise = noise

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        x = self._x[index]
        return x + self._noise * torch.randn(FEATURES, dtype=x.dtype), self._y[index]


def network(dtype: torch.dtype = torch.float32, dropout: float = 0.2) -> nn.Module:
    """Two layers with batch norm and dropout, the same weights every time."""
    torch.manual_seed(11)
    return nn.Sequential(
        nn.Linear(FEATURES, 24),
        nn.BatchNorm1d(24),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(24, CLASSES),
    ).to(dtype)


def train(trainer: Trainer, model: nn.Module, dataset: Any = None) -> list[float]:
    """The loop of the README; returns the losses this node saw."""
    losses = []
    for x, y in trainer.loader(dataset or Points()):
        output = model(x)
        loss = nn.functional.cross_entropy(output.float() if _half(output) else output, y)
        loss.backward()
        if trainer.update(loss):
            losses.append(trainer.loss)
        if trainer.capture_exit_event():
            trainer.request_node_exit()
            break
    return losses


def _half(output: torch.Tensor) -> bool:
    return output.dtype in (torch.float16, torch.bfloat16)


def run_cluster(
    make: Make,
    nodes: int,
    steps: int,
    dataset: Callable[[], Any] = Points,
    cluster: dict[str, Any] | None = None,
    loop: Callable[[Trainer, nn.Module, Any], Any] = train,
) -> Cluster:
    """Train on `nodes` forked trainers; returns the cluster, after checking all went well."""
    pairs = [socket.socketpair() for _ in range(nodes)]
    context = multiprocessing.get_context("fork")
    children = [
        context.Process(target=_child, args=(k, pairs, make, dataset, loop)) for k in range(nodes)
    ]
    for child in children:
        child.start()
    for _, theirs in pairs:
        theirs.close()
    served = Cluster([ours for ours, _ in pairs], steps, **(cluster or {}))
    served.run()
    for child in children:
        child.join(30)
        if child.is_alive():
            child.kill()
    if served.failure is not None:
        raise served.failure
    assert [child.exitcode for child in children] == [0] * nodes
    return served


def _child(
    number: int,
    pairs: list[tuple[socket.socket, socket.socket]],
    make: Make,
    dataset: Callable[[], Any],
    loop: Callable[[Trainer, nn.Module, Any], Any],
) -> None:
    status = 1
    try:
        torch.set_num_threads(1)
        for ours, _ in pairs:
            ours.close()
        torch.manual_seed(1000 + number)  # the script's own streams differ between nodes
        model, optimizer, options = make()
        agent = AgentConnection(pairs[number][1], None)
        trainer = Trainer(model, optimizer, _agent=agent, **options)
        loop(trainer, model, dataset())
        trainer.close()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


class Served:
    """One trainer in this process, its fake cluster in a thread."""

    def __init__(self, steps: int, **options: Any) -> None:
        ours, theirs = socket.socketpair()
        self.agent = AgentConnection(theirs, None)
        self.cluster = Cluster([ours], steps, **options)
        self._thread = threading.Thread(target=self.cluster.run, daemon=True)
        self._thread.start()

    def done(self) -> Cluster:
        """Return the cluster when it has ended; raise what it met."""
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self.cluster.failure is not None:
            raise self.cluster.failure
        return self.cluster
