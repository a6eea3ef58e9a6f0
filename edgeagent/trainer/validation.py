"""What edgeagent cannot train, refused before anything is joined, each with one clear line."""

from __future__ import annotations

import inspect
import math
import warnings
from typing import TYPE_CHECKING, Any

import torch

from edgeagent.errors import UsageError
from protocols import limits

if TYPE_CHECKING:
    from torch.optim import Optimizer

TRAINABLE_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
MOST_SAMPLES = 1 << 20  # of one micro-batch, whose indices and samples a trainer holds in memory
_QUANTISED = (torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4)


def check_job(
    model: Any,
    optimizer: Any,
    scheduler: Any,
    max_grad_norm: float | None,
    *,
    is_replicated: bool = True,
) -> None:
    """Raise `UsageError` if model, optimizer, schedule or clipping cannot be used. `is_replicated`:
    the optimizer's memory is part of the training state; with local steps it is not."""
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"the model is a {type(model).__name__}, not a torch.nn.Module")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"the optimizer is a {type(optimizer).__name__}, not a torch.optim one")
    _check_model(model)
    _check_ownership(model, optimizer)
    check_optimizer(optimizer, is_replicated=is_replicated)
    _check_scheduler(optimizer, scheduler)
    if max_grad_norm is not None and not (math.isfinite(max_grad_norm) and max_grad_norm > 0):
        raise UsageError(f"max_grad_norm is {max_grad_norm}; it must be a positive number")


def check_batches(global_batch: Any, micro_batch: Any, local_steps: int = 1) -> None:
    """Raise `UsageError` unless `global_batch` consists of whole micro-batches, and `local_steps`
    global batches of not too many."""
    check_positive("global_batch", global_batch)
    check_positive("micro_batch", micro_batch)
    if global_batch % micro_batch:
        raise UsageError(
            f"global_batch {global_batch} is not divisible by micro_batch {micro_batch}"
        )
    if global_batch // micro_batch * local_steps > limits.MAX_MICRO_BATCHES:
        fewer = ", or take fewer local_steps" if local_steps > 1 else ""
        most = limits.MAX_MICRO_BATCHES
        raise UsageError(f"more than {most} micro-batches; make them larger{fewer}")
    if micro_batch > MOST_SAMPLES:
        raise UsageError(f"a micro-batch of {micro_batch} samples; use at most {MOST_SAMPLES}")


def check_positive(name: str, value: Any) -> None:
    """Raise `UsageError` unless `value` is a positive integer."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{name} is {value}; it must be a positive integer")


def check_dataset(dataset: Any) -> int:
    """Return the data set's length; raise `UsageError` if it has none or no samples."""
    if isinstance(dataset, torch.utils.data.DataLoader):
        raise UsageError("loader() takes the data set itself, not a DataLoader")
    try:
        length = len(dataset)
    except (TypeError, NotImplementedError):
        length = -1
    if length < 0 or not hasattr(dataset, "__getitem__"):
        raise UsageError("the data set needs a length and numbered samples (__len__, __getitem__)")
    if length == 0:
        raise UsageError("the data set is empty")
    return length


def settle_implementation(optimizer: Optimizer, stacklevel: int = 3) -> None:
    """Choose one implementation of the update for the whole job; warns if `fused` goes off, at the
    line that `stacklevel` names as for `warnings.warn`.

    `foreach` becomes False where the script left it open: the loop is what every device has.
    """
    fused = False
    for group in optimizer.param_groups:
        if group.get("fused"):
            group["fused"] = False
            fused = True
        if "foreach" in group and group["foreach"] is None:
            group["foreach"] = False
    if fused:
        said = "edgeagent switched fused=True off: replicas must round alike"
        warnings.warn(said, stacklevel=stacklevel)


def _check_model(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) is True:
            raise UsageError(f"{name or 'the model'} makes sparse gradients; use sparse=False")
    places: dict[int, str] = {}
    for name, parameter in sorted(model.named_parameters()):
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            raise UsageError(f"{name} has no shape yet; run the model once before Trainer()")
        _check_dtype(name, parameter)
        if parameter.device.type == "meta":
            raise UsageError(f"{name} is on the meta device and has no values")
        place = parameter.data_ptr()
        if parameter.numel() and place in places:
            raise UsageError(
                f"{name} and {places[place]} share memory; tie weights by sharing the Parameter"
            )
        places[place] = name
    if not any(p.requires_grad for p in model.parameters()):
        raise UsageError("the model has no trainable parameters")
    for name, buffer in sorted(model.named_buffers()):
        _check_dtype(name, buffer)


def _check_dtype(name: str, tensor: torch.Tensor) -> None:
    if tensor.layout != torch.strided:
        raise UsageError(f"{name} is sparse; edgeagent replicates dense tensors only")
    if tensor.is_complex():
        raise UsageError(f"{name} is complex, which edgeagent does not train")
    if tensor.is_quantized or tensor.dtype in _QUANTISED:
        raise UsageError(f"{name} is quantised, which edgeagent does not train")
    if tensor.requires_grad and tensor.dtype not in TRAINABLE_DTYPES:
        raise UsageError(f"{name} has dtype {tensor.dtype}, which edgeagent does not train")


def _check_ownership(model: torch.nn.Module, optimizer: Optimizer) -> None:
    names = {parameter: name for name, parameter in model.named_parameters()}
    seen: set[torch.nn.Parameter] = set()
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if parameter not in names:
                raise UsageError(
                    f"parameter {place} of the optimizer's group {number} is not in the model"
                )
            if parameter in seen:
                raise UsageError(f"{names[parameter]} is in two places of the optimizer's groups")
            seen.add(parameter)
    for parameter, name in names.items():
        if parameter.requires_grad and parameter not in seen:
            raise UsageError(f"{name} is trainable and in none of the optimizer's groups")


def check_optimizer(optimizer: Optimizer, *, is_replicated: bool = True) -> None:
    """Raise `UsageError` if the optimizer's update, or its memory, cannot be replicated."""
    kind = type(optimizer).__name__
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    needs_closure = closure is not None and closure.default is inspect.Parameter.empty
    if isinstance(optimizer, torch.optim.LBFGS) or needs_closure:
        raise UsageError(f"{kind} evaluates the model several times a step; choose another")
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise UsageError("SparseAdam needs sparse gradients, which edgeagent does not reduce")
    for name, value in vars(optimizer).items():
        if is_replicated and isinstance(value, torch.optim.Optimizer):
            raise UsageError(
                f"{kind} has another optimizer in its attribute {name!r}, {type(value).__name__},"
                " whose memory is not replicated: give Trainer() one optimizer that steps by itself"
            )
    for number, group in enumerate(optimizer.param_groups):
        for key in ("capturable", "differentiable"):
            if group.get(key):
                raise UsageError(f"{kind} with {key}=True (group {number}) cannot be replicated")
        for key, value in group.items():
            if key != "params" and isinstance(value, torch.Tensor):
                raise UsageError(f"{key} of group {number} is a tensor; give a plain number")


def _check_scheduler(optimizer: Optimizer, scheduler: Any) -> None:
    if scheduler is None:
        return
    for method in ("step", "state_dict", "load_state_dict"):
        if not callable(getattr(scheduler, method, None)):
            raise UsageError(f"the lr_scheduler {type(scheduler).__name__} has no {method}()")
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise UsageError("the lr_scheduler belongs to another optimizer")
