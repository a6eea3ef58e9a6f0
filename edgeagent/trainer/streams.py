"""Random numbers that follow from (seed, iteration, micro-batch) alone.

Law: before a micro-batch's samples are fetched, Python's `random`, numpy's global generator and
torch's generators (CPU and the model's device) are seeded from a hash of those three numbers, so
augmentation and dropout do not depend on who computes the micro-batch. Between micro-batches the
script has its own streams back, as if none of this happened.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import torch


def derived_seed(seed: int, *labels: object) -> int:
    """Return 64 bits that follow from `seed` and `labels` on every machine and version."""
    text = "/".join(["edgeagent", str(seed), *(str(label) for label in labels)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class RandomStreams:
    """Switches the global generators between the script's streams and a micro-batch's."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._accelerator: Any = None  # torch.cuda, torch.mps, ...
        if device.type != "cpu":
            self._accelerator = torch.get_device_module(device)
        self._saved: tuple[Any, ...] | None = None

    def enter(self, *labels: object) -> None:
        """Seed all generators for what `labels` name; the script's streams are set aside.

        For a micro-batch the labels are its iteration and its number.
        """
        if self._saved is None:
            self._saved = self._state()
        torch_seed = derived_seed(self._seed, *labels, "torch") >> 1
        torch.default_generator.manual_seed(torch_seed)  # torch.manual_seed is 50 times slower
        if self._accelerator is not None:
            self._accelerator.manual_seed(torch_seed)
        np.random.seed(derived_seed(self._seed, *labels, "numpy") & 0xFFFFFFFF)
        random.seed(derived_seed(self._seed, *labels, "random"))

    def leave(self) -> None:
        """Give the script's streams back."""
        if self._saved is None:
            return
        cpu, legacy, python, accelerator = self._saved
        self._saved = None
        torch.default_generator.set_state(cpu)
        np.random.set_state(legacy)
        random.setstate(python)
        if self._accelerator is not None:
            self._accelerator.set_rng_state(accelerator)

    def _state(self) -> tuple[Any, ...]:
        accelerator = None
        if self._accelerator is not None:
            accelerator = self._accelerator.get_rng_state()
        cpu = torch.default_generator.get_state()
        return (cpu, np.random.get_state(), random.getstate(), accelerator)
