"""How this device computes, in words, for the refusal of a device whose updates differ.

These fields explain a refusal and never cause one. Devices with different processors may train
together as long as their updates round alike, so the names of these fields begin with `ABOUT`, and
fingerprints are compared without them.
"""

from __future__ import annotations

import hashlib
import platform
from typing import TYPE_CHECKING

import numpy as np
import torch

from edgeagent.trainer.exact_arithmetic import ExactArithmetic
from edgeagent.transport.job import ABOUT

if TYPE_CHECKING:
    from collections.abc import Callable

# The most characters of a field: room for the digests of all operations in `_OPERATIONS`.
MOST = 160
# The most characters of what is said of the processor or the device, for one line of a refusal.
_SHOWN = 80
# How many numbers each operation computes. The count is odd, so that both the vector instructions
# and the scalar code for the remainder run: they may round differently.
_COUNT = 771
# How many hexadecimal digits of each digest are shown: enough to see that two differ.
_DIGITS = 8
# One name for each architecture, which operating systems call differently.
_ARCHITECTURES = {"x86_64": "x86-64", "AMD64": "x86-64", "arm64": "aarch64"}
# What torch calls the vector instructions that it uses, and what they are called here.
_INSTRUCTIONS = {"DEFAULT": "", "NO AVX": "", "AVX512": "AVX-512"}
# The operations of which optimizers consist and that processors may round differently.
_OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "square roots": lambda a, b, _: torch.sqrt(a * b),
    "divisions": lambda a, b, _: a / b,
    "multiply-adds": lambda a, b, c: torch.addcmul(c, a, b, value=0.1),
    "divide-adds": lambda a, b, c: torch.addcdiv(c, a, b, value=-0.1),
    "interpolations": lambda a, b, _: torch.lerp(a, b, 0.1),
}


def numeric_fields(device: torch.device) -> tuple[tuple[str, str], ...]:
    """Return (field, value) pairs about torch, the processor, `device` and how it rounds."""
    pairs = (
        ("torch", f"torch {torch.__version__}"),
        ("processor", processor()),
        ("device", accelerator(device)),
        ("rounding", rounding(device)),
    )
    return tuple((f"{ABOUT}{name}", value[:MOST]) for name, value in pairs)


def processor() -> str:
    """Return the processor's architecture, the vector instructions torch uses, and its name."""
    machine = platform.machine()
    text = _ARCHITECTURES.get(machine, machine) or "unknown processor"
    capability = torch.backends.cpu.get_cpu_capability()
    if instructions := _INSTRUCTIONS.get(capability, capability):
        text += f" with {instructions}"
    name = _processor_name()
    return (f"{text} ({name})" if name else text)[:_SHOWN]


def accelerator(device: torch.device) -> str:
    """Return in words what computes the updates of a model on `device`."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        return f"on {name} with CUDA {torch.version.cuda or torch.version.hip}"[:_SHOWN]
    return "on the processor" if device.type == "cpu" else f"on {device.type}"


def rounding(device: torch.device) -> str:
    """Return the digest of what each operation makes of fixed numbers on `device`.

    The operations are computed as in an update (`exact_arithmetic.py`).
    """
    numbers = [_fixed_numbers(label).to(device) for label in range(3)]
    found = []
    for name, operation in _OPERATIONS.items():
        with ExactArithmetic():
            result = operation(*numbers)
        data = result.cpu().numpy().tobytes()
        found.append(f"{name} {hashlib.sha256(data).hexdigest()[:_DIGITS]}")
    return ", ".join(found)


def _fixed_numbers(label: int) -> torch.Tensor:
    """Return fixed numbers in [0.5, 1.5), float32 [_COUNT]; `label` chooses which.

    They come from integer arithmetic and a division by a power of two, which round nowhere.
    """
    mixed = (np.arange(1, _COUNT + 1, dtype=np.uint64) + np.uint64(label * _COUNT)) * np.uint64(
        2654435761
    )
    values = ((mixed >> np.uint64(9)) & np.uint64(0x3FFFFF)).astype(np.float32) / 2**22 + 0.5
    return torch.from_numpy(values.astype(np.float32))


def _processor_name() -> str:
    """Return what the system calls the processor, "" where it does not say."""
    names: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                key, colon, value = line.partition(":")
                if not colon and names:
                    break  # the next processor
                names.setdefault(key.strip(), value.strip())
    except OSError:
        return ""
    name = names.get("model name") or names.get("Model") or ""
    return "".join(letter for letter in name if letter.isprintable())[:40].strip()
