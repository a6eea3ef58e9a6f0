"""The device that `edgeagent run --device` names: whether it can be used, and moving a model there.

A device that cannot be used is refused before anything is started or joined, in one line that says
which devices can be used. The agent does not import torch, so it runs this module as a program
(`python -m edgeagent.trainer.devices NAME`) to find out. The exit status is 0 if the device can be
used; otherwise it is 2 and the line is on stdout.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from edgeagent.errors import UsageError

if TYPE_CHECKING:
    from torch.optim import Optimizer

MPS_NOTE = (
    "mps: float64 does not exist there, so a model or buffer that has it is refused; its updates"
    " round in their own way, so devices without mps can train with it only if all start the job"
    " with --shard-optimizer; and it has never been tested"
)


def usable_device(name: str) -> torch.device:
    """Return the device called `name`, with its number.

    Raises `UsageError` if it does not exist or cannot add two numbers: some builds of torch list a
    device for which they have no code.
    """
    problem = ""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"device {name!r}: use cpu, cuda, cuda:N or mps") from None
    if device.type == "cuda":
        problem = _cuda_problem(device)
    elif device.type == "mps":
        problem = _mps_problem(device)
    elif device.type != "cpu":
        problem = "edgeagent trains on cpu, cuda, cuda:N or mps"
    if problem:
        raise UsageError(f"device {name} cannot be used: {problem}")
    try:
        ready = torch.ones(2, device=device).sum().item() == 2.0
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device {name} cannot be used: {str(error).splitlines()[0]}") from None
    if not ready:
        raise UsageError(f"device {name} cannot be used: it adds 1 and 1 wrongly")
    return torch.empty(0, device=device).device


def place_as_told(name: str, model: torch.nn.Module, optimizer: Optimizer) -> None:
    """Move both to the device called `name`, or leave them where they are if it is "".

    Raises `UsageError` if that fails.
    """
    if name:
        place_on(model, optimizer, usable_device(name))


def place_on(model: torch.nn.Module, optimizer: Optimizer, device: torch.device) -> None:
    """Move a model and its optimizer's slots to `device`; both stay the same objects.

    Raises `UsageError` if a tensor has a dtype that `device` does not have, or if moving makes new
    parameters, of which the optimizer would know nothing.
    """
    if device.type == "mps":
        refuse_on_mps({**dict(model.named_parameters()), **dict(model.named_buffers())})
    before = [id(parameter) for parameter in model.parameters()]
    at: dict[Any, torch.device] = {p: p.device for p in model.parameters()}
    model.to(device)
    if [id(parameter) for parameter in model.parameters()] != before:
        raise UsageError(
            f"moving the model to {device} replaced its parameters: move it there yourself before"
            " the optimizer is made"
        )
    for parameter, slots in optimizer.state.items():
        for slot, value in slots.items():
            beside = isinstance(value, torch.Tensor) and value.device == at.get(parameter)
            if beside and slot != "step":  # torch's optimizers keep this counter on the CPU
                slots[slot] = value.to(device)


def refuse_on_mps(tensors: dict[str, Any]) -> None:
    """Raise `UsageError`, naming it, if a tensor has a dtype that mps does not have."""
    for name, tensor in tensors.items():
        if tensor.dtype == torch.float64:
            raise UsageError(f"{name} is float64, which mps does not have: make it float32")


def _cuda_problem(device: torch.device) -> str:
    """Return why a CUDA device cannot be used, and what to do; "" if nothing speaks against it."""
    if not torch.backends.cuda.is_built():
        return (
            f"torch {torch.__version__} here is built without CUDA: install a build with CUDA"
            " (on a Jetson: NVIDIA's), or use --device cpu"
        )
    count = torch.cuda.device_count()
    if count == 0:
        return (
            f"torch {torch.__version__} finds no CUDA device: is there one, and does its driver"
            f" serve CUDA {torch.version.cuda}? `nvidia-smi` tells; or use --device cpu"
        )
    if (device.index or 0) >= count:
        known = ", ".join(f"cuda:{k} ({torch.cuda.get_device_name(k)})" for k in range(count))
        return f"there is {known}"
    return ""


def _mps_problem(device: torch.device) -> str:
    """Return why an MPS device cannot be used; "" if nothing speaks against it."""
    if not torch.backends.mps.is_built():
        return f"torch {torch.__version__} here is built without MPS, which only macOS has"
    if not torch.backends.mps.is_available():
        return "MPS needs macOS 12.3 or newer on a Mac with Apple silicon or an AMD GPU"
    if device.index:
        return "there is mps only, without a number"
    return ""


def main(arguments: list[str]) -> int:
    """Say whether the device that `arguments[0]` names can be used; return the exit status."""
    try:
        device = usable_device(arguments[0])
    except UsageError as error:
        print(error)
        return error.exit_status
    if device.type == "mps":
        print(MPS_NOTE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
