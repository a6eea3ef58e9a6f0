"""How many threads this trainer computes with when several agents share the device.

Torch gives each process a thread for every core. The threads of one process wait for each other
busily, so two processes that do this on the same cores slow each other down many times over: with
two agents on two cores, a step of `digits` took eight times as long as with one thread each.
"""

from __future__ import annotations

import os

import torch

from edgeagent.trainer import endings

CORES = os.cpu_count() or 1


class OwnThreads:
    """The threads of torch in this process.

    `wanted` is the number that the user wants, 0 for torch's own choice, which is divided among the
    agents of the device. A number that the script sets itself stays. With `fixed`, for runs in
    which all devices have to round alike, the user is only told.
    """

    def __init__(self, wanted: int, *, fixed: bool, cores: int = CORES) -> None:
        if wanted > 0:
            torch.set_num_threads(wanted)
        self._is_free = wanted == 0
        self._fixed = fixed
        self._cores = cores
        self._most = self._set = torch.get_num_threads()
        self._agents = 1

    def divide_among(self, agents: int) -> None:
        """Take this trainer's part of the cores if `agents` run on this device, itself included.

        To be called between two micro-batches, because torch then changes how it computes.
        """
        if agents == self._agents or not self._is_free:
            return
        self._agents = agents
        # Who is bound to some of the cores (`taskset`) has few threads already.
        part = max(1, min(self._most, self._cores // agents))
        if torch.get_num_threads() != self._set:  # the script has decided
            self._is_free = False
        elif part != self._set and self._fixed:
            self._is_free = False  # tell it once
            endings.say(
                f"{agents} agents share the processor cores of this device: with --exact, give all "
                f"devices the same small number, as in --threads {part}, or steps take much longer"
            )
        elif part != self._set:
            torch.set_num_threads(part)
            self._set = part
            who = f"{agents} agents share" if agents > 1 else "no other agent shares"
            many = "1 thread" if part == 1 else f"{part} threads"
            endings.say(
                f"{who} the processor cores of this device: computing with {many} (--threads N "
                "decides otherwise)"
            )
