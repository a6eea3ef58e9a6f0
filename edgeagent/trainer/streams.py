"""Random numbers that follow from (seed, iteration, micro-batch) alone.

Any member may compute any micro-batch, and the result must not depend on which one does. Therefore
Python's `random`, numpy's global generator and torch's generators (of the CPU and of the model's
devices) are seeded from a hash of those three numbers before a micro-batch is computed, so that
dropout draws the same numbers everywhere. Before its samples are fetched they are seeded from the
same numbers and a label, so that augmentation does not depend on who fetches them, either. Between
micro-batches the script has its own streams back, as if nothing had happened.
"""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterable


def derived_seed(seed: int, *labels: object) -> int:
    """Return 64 bits that follow from `seed` and `labels` alone, on every machine and version.

    Python's own `hash` would not do: it differs between processes.
    """
    text = "/".join(["edgeagent", str(seed), *(str(label) for label in labels)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class RandomStreams:
    """Switches the global generators between the script's streams and a micro-batch's."""

    def __init__(self, seed: int, devices: Iterable[torch.device]) -> None:
        self.seed = seed
        others = dict.fromkeys(device for device in devices if device.type != "cpu")
        self._generators = [generator_of(device) for device in others]
        self._saved: tuple[Any, ...] | None = None

    def enter(self, *labels: object) -> None:
        """Seed all generators for what `labels` name; the script's streams are set aside.

        For a micro-batch the labels are its iteration and its number.
        """
        if self._saved is None:
            self._saved = self._state()
        torch_seed = derived_seed(self.seed, *labels, "torch") >> 1  # 63 bits: not negative in C
        torch.default_generator.manual_seed(torch_seed)  # torch.manual_seed is 50 times slower
        for generator in self._generators:
            generator.manual_seed(torch_seed)
        np.random.seed(derived_seed(self.seed, *labels, "numpy") & 0xFFFFFFFF)
        random.seed(derived_seed(self.seed, *labels, "random"))

    def leave(self) -> None:
        """Give the script its own streams back; nothing happens if they were not set aside."""
        if self._saved is None:
            return
        cpu, legacy, python, others = self._saved
        self._saved = None
        torch.default_generator.set_state(cpu)
        np.random.set_state(legacy)
        random.setstate(python)
        for generator, state in zip(self._generators, others, strict=True):
            generator.set_state(state)

    def _state(self) -> tuple[Any, ...]:
        others = [generator.get_state() for generator in self._generators]
        cpu = torch.default_generator.get_state()
        return (cpu, np.random.get_state(), random.getstate(), others)


def generator_of(device: torch.device) -> torch.Generator:
    """Return the default generator of `device`, which has its number, as in `tensor.device`.

    torch's own functions would use the current device, which may be another one.
    """
    module: Any = torch.get_device_module(device)
    generator: torch.Generator
    if device.type == "mps":
        generator = module._get_default_mps_generator()
        return generator
    module.init()  # until then there are no generators
    generator = module.default_generators[device.index]
    return generator
