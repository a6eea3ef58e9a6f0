"""How many threads this trainer computes with when several agents share the device.

Torch gives each process a thread for every core. The threads of one process wait for each other
busily, so two processes that do this on the same cores slow each other down many times over: with
two agents on two cores, a step of `digits` took eight times as long as with one thread each.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from edgeagent.config import THREAD_VARIABLES
from edgeagent.terminal.text import plural
from edgeagent.trainer import endings

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from edgeagent.trainer.options import Options

CORES = os.cpu_count() or 1
DEFAULT = torch.get_num_threads()  # torch's own choice, unless the script was faster than this
# Optimizers that treat each number by itself. What others add up, or multiply, depends on the
# number of threads, and all replicas have to step with the same bits.
ELEMENT_WISE = frozenset(
    [
        "SGD",
        "ASGD",
        "Adadelta",
        "Adagrad",
        "Adam",
        "AdamW",
        "Adamax",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
    ]
)


class OwnThreads:
    """The threads of torch in this process.

    `wanted` is the number that the user wants, 0 for torch's own choice, which is divided among the
    agents of the device. A number that the script sets after it has imported edgeagent stays, as
    does one in a variable such as OMP_NUM_THREADS. `fixed`: why the number must not change, "" if
    it may; the user is told then. `cores` and `usable`: how many the device has, and how many this
    process may use.
    """

    def __init__(
        self, wanted: int, fixed: str = "", *, cores: int = CORES, usable: int | None = None
    ) -> None:
        if wanted > 0:
            torch.set_num_threads(wanted)
        self._most = self._set = torch.get_num_threads()
        named = any(os.environ.get(name) for name in THREAD_VARIABLES)
        self._is_free = wanted == 0 and not named and self._most == DEFAULT
        self._fixed = fixed
        self._cores = cores
        self._is_bound = (usable_cores() if usable is None else usable) < cores
        self._agents = 1

    def divide_among(self, agents: int) -> None:
        """Take this trainer's part of the cores if `agents` run on this device, itself included.

        To be called between two micro-batches, because torch then changes how it computes.
        """
        if agents == self._agents or not self._is_free:
            return
        self._agents = agents
        part = self._part(agents)
        if torch.get_num_threads() != self._set:  # the script has decided
            self._is_free = False
        elif part != self._set and self._fixed:
            self._is_free = False  # tell it once
            endings.say(
                f"{agents} agents share the processor cores of this device, so steps take longer: "
                f"give each --threads {part} ({self._fixed}, so the number does not change now)"
            )
        elif part != self._set:
            torch.set_num_threads(part)
            self._set = part
            who = f"{agents} agents share" if agents > 1 else "no other agent shares"
            endings.say(
                f"{who} the processor cores of this device: computing with "
                f"{plural(part, 'thread')} (--threads N decides otherwise)"
            )

    def _part(self, agents: int) -> int:
        """Return the number of threads of each of so many agents."""
        if self._is_bound:  # others may be bound to other cores, so that all have some of their own
            return max(1, min(self._most, self._cores // agents))
        return max(1, self._most // agents)


def usable_cores() -> int:
    """Return how many cores this process may use: fewer than all with `taskset`, for example."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return CORES  # where processes cannot be bound, as on macOS


def why_fixed(model: torch.nn.Module, optimizer: Optimizer, options: Options) -> str:
    """Return why the number of threads must not change while this job is trained, "" if it may."""
    if options.exact_count:
        return "with --exact all devices need the same number"
    kind = type(optimizer)
    if not kind.__module__.startswith("torch.optim.") or kind.__name__ not in ELEMENT_WISE:
        return f"updates of {kind.__name__} may be rounded by it"
    parts = list(model.modules())
    if any(getattr(m, "_compiled_call_impl", None) or hasattr(m, "_orig_mod") for m in parts):
        return "the model is compiled for one number"
    return ""
