"""The fingerprint of a job: (field, value) pairs on which every member must agree.

Members that train different things together would train nothing, so a device whose fingerprint
differs is refused, and the first field that differs is named to the user. That is why fields are
plain text and come in a fixed order. Whatever changes the meaning of a micro-batch or the bits of
an update is in the fingerprint. Whatever does not, such as the number of steps, names and devices,
is left out, or is in fields that explain a refusal and are not compared (`numerics.py`).
"""

from __future__ import annotations

import hashlib
import re
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from edgeagent.errors import UsageError
from edgeagent.trainer.exact_arithmetic import ExactArithmetic
from edgeagent.trainer.image import CPU
from edgeagent.trainer.loader import sample_numbers
from edgeagent.trainer.numerics import numeric_fields, rounding
from edgeagent.trainer.schedule import future_rates
from edgeagent.trainer.slots import lone_optimizer
from edgeagent.transport.job import ABOUT
from edgeagent.transport.rounding import UPDATE
from protocols import limits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.optim import Optimizer

    from edgeagent.trainer.state import TrainingState
    from edgeagent.trainer.streams import RandomStreams

# How many samples of the data set are hashed: few, because each has to be fetched at the start.
SAMPLES_HASHED = 16
# How many parameters and buffers get a field each; more are hashed into one field, because a
# fingerprint has at most `MAX_JOB_FIELDS`, and other fields need room, too.
_MOST_NAMED = limits.MAX_JOB_FIELDS // 2
# The same for the modules of the model.
_MOST_MODULES = limits.MAX_JOB_FIELDS // 4
# An address in memory within Python's text for an object. It differs in each process.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
# How many updates `update_digest` makes: several, so that slots influence the later ones.
_TEST_STEPS = 3
# The learning rate of these updates where the script's own is 0, which would leave nothing to test.
_TEST_RATE = 0.01
# The shape of the tensor that they update. The number of elements is odd, so that both the vector
# instructions and the scalar code for the remainder run: they may round differently.
_TEST_SHAPE = (15, 51)
# Entries of a parameter group that are no settings but lists of its parameters.
_NOT_HYPER = ("params", "param_names")

Fields = tuple[tuple[str, str], ...]


def job_fields(
    state: TrainingState, optimizer: Optimizer, scheduler: Any, settings: Mapping[str, Any]
) -> Fields:
    """Return the fields of `settings`, model, optimizer, schedule and replicated tensors."""
    updates_on = state.device if state.shards is None else CPU
    fields = list(numeric_fields(updates_on))
    # First, because the layout depends on some of them, and the first difference is the one shown.
    fields += [(name, _short(repr(value))) for name, value in settings.items()]
    fields += [*_tensor_fields(state), *_module_fields(state)]
    fields += state.replicated.fields()  # before the layout, which depends on them
    fields.append(("state layout", state.layout.digest()))
    fields.append(("gradient sums", f"{state.vector.accumulate}, {state.vector.chunk_elements}"))
    fields.append(("gradient order", _digest(repr(state.vector.gradient_offsets))))
    fields += _optimizer_fields(
        "optimizer", optimizer, dict(sorted(state.model.named_parameters()))
    )
    outer = state.outer
    if outer is not None:  # what the inner one does need not round alike: only its results are sent
        fields += _optimizer_fields("outer optimizer", outer, state.parameters)
    if state.shards is None:
        fields.append((UPDATE, update_digest(optimizer if outer is None else outer)))
    else:  # one device computes each result for all, so nobody is refused
        fields.append((ABOUT + UPDATE, update_digest(optimizer, CPU)))
        if state.replicated.are_updated:  # each device computes these where its model is
            fields.append(("rounding of replicated tensors", _digest(rounding(state.device))))
    fields.append(("lr_scheduler", type(scheduler).__name__ if scheduler is not None else "none"))
    if scheduler is not None:
        fields.append(("lr_scheduler state", hashlib.sha256(state.schedule_bytes()).hexdigest()))
        fields += [(name, _short(text)) for name, text in future_rates(optimizer, scheduler)]
    return tuple(fields)


def _optimizer_fields(
    label: str, optimizer: Optimizer, parameters: Mapping[str, torch.nn.Parameter]
) -> list[tuple[str, str]]:
    """Return an optimizer's class, and the scalars and parameters of each of its groups."""
    fields = [(label, type(optimizer).__name__)]
    numbers = {parameter: n for n, parameter in enumerate(parameters.values())}
    for number, group in enumerate(optimizer.param_groups):
        values = {k: repr(v) for k, v in sorted(group.items()) if k not in _NOT_HYPER}
        members = repr([numbers[parameter] for parameter in group["params"]])
        text = ", ".join(f"{key}={value}" for key, value in values.items())
        fields.append((f"{label} group {number}", _short(text)))
        fields.append((f"{label} group {number} parameters", _digest(members)))
    return fields


def said_fields(dataset: Any) -> Fields:
    """Return what a data set says of itself, in an attribute `data_digest` that is a text: it can
    show differences that 16 samples do not. Asked before a sample is fetched, since some data sets
    know more afterwards."""
    said = getattr(dataset, "data_digest", None)
    return (("data", _short(said)),) if isinstance(said, str) else ()


def dataset_fields(said: Fields, length: int, digest: str) -> Fields:
    """Return what a data set has `said` of itself (`said_fields`), the number of samples, and the
    `digest` of some of them (`sample_digest`)."""
    return (*said, ("samples", str(length)), ("sample digest", digest))


def sample_digest(dataset: Any, length: int, streams: RandomStreams) -> str:
    """Return the SHA-256, in hex, of 16 samples, fetched under fixed random streams."""
    digest = hashlib.sha256()
    for number in sample_numbers(length, SAMPLES_HASHED):
        streams.enter("sample", number)
        try:
            _hash_value(digest, dataset[number])
        finally:
            streams.leave()
    return digest.hexdigest()


def digest_of_samples(samples: Sequence[Any]) -> str:
    """Return the SHA-256, in hex, of samples of any kind, in their order."""
    digest = hashlib.sha256()
    for sample in samples:
        _hash_value(digest, sample)
    return digest.hexdigest()


def update_digest(optimizer: Optimizer, device: torch.device | None = None) -> str:
    """Return a SHA-256, in hex, of a few updates of fixed numbers on `device`, or where the
    parameters are if that is None.

    Devices whose processors round an update differently get different digests, so they are refused
    before their replicas drift apart. The updates use the optimizer's class and settings, one group
    after the other, on a small tensor with the dtype of the group's first trainable parameter; the
    optimizer itself is not touched. Raises `UsageError` if it cannot step.
    """
    digest = hashlib.sha256()
    for group in optimizer.param_groups:
        trained = [parameter for parameter in group["params"] if parameter.requires_grad]
        if trained:
            digest.update(_updated(optimizer, group, trained[0], device or trained[0].device))
    return digest.hexdigest()


def _updated(
    optimizer: Optimizer, group: dict[str, Any], like: torch.Tensor, device: torch.device
) -> bytes:
    trial = torch.nn.Parameter(_fixed_values(0).to(like.dtype).to(device))
    settings = {**group, "params": [trial]}
    if settings.get("lr") == 0:  # a warm-up starts here: test the update, not its absence
        settings["lr"] = _TEST_RATE
    lone = lone_optimizer(optimizer, [settings])
    lone.state[trial] = trial_slots(optimizer.state.get(like, {}), like)
    for step in range(1, _TEST_STEPS + 1):
        trial.grad = _fixed_values(step).to(like.dtype).to(device)
        try:
            with ExactArithmetic():  # as the update of the training state
                type(lone).step(lone)
        except Exception as error:
            raise UsageError(f"{type(optimizer).__name__} cannot step: {error}") from error
    return trial.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def trial_slots(slots: Mapping[str, Any], like: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return slots for a trial parameter, made from the `slots` that the parameter `like` has.

    Some optimizers make their slots when they are constructed and would fail without them, and a
    script may have loaded some. Each slot that has the shape of `like` is filled with its first
    element. The result is empty, so that the optimizer makes new slots, if a slot is neither a
    single number nor shaped like the parameter.
    """
    tensors = {slot: v for slot, v in slots.items() if isinstance(v, torch.Tensor) and v.numel()}
    if any(value.dim() and value.shape != like.shape for value in tensors.values()):
        return {}
    return {
        slot: value.clone()
        if value.dim() == 0 and (like.dim() or slot == "step")
        else value.flatten()[:1].expand(_TEST_SHAPE).clone(memory_format=torch.contiguous_format)
        for slot, value in tensors.items()
    }


def _fixed_values(label: int) -> torch.Tensor:
    """Return fixed numbers in [-0.5, 0.5), float64 of `_TEST_SHAPE`; `label` chooses which.

    They come from integer arithmetic and a division by a power of two, which round nowhere.
    """
    count = _TEST_SHAPE[0] * _TEST_SHAPE[1]
    mixed = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(label * count)) * np.uint64(
        2654435761
    )
    values = ((mixed >> np.uint64(8)) & np.uint64(0xFFFFFF)).astype(np.float64) / 2**24 - 0.5
    return torch.from_numpy(values).view(_TEST_SHAPE)


def _tensor_fields(state: TrainingState) -> list[tuple[str, str]]:
    fields = []
    for name, parameter in state.parameters.items():
        kind = "trainable" if parameter.requires_grad else "frozen"
        shape = list(parameter.shape)
        fields.append((f"parameter {name}", f"{shape} {parameter.dtype} {kind}"))
    for name, buffer in state.buffers.tensors().items():
        fields.append((f"buffer {name}", f"{list(buffer.shape)} {buffer.dtype}"))
    if len(fields) > _MOST_NAMED or any(len(n.encode()) > limits.MAX_TEXT_BYTES for n, _ in fields):
        return [("parameters and buffers", _digest(repr(fields)))]
    return fields


def _module_fields(state: TrainingState) -> list[tuple[str, str]]:
    """Return the kind and the settings of each module.

    The tensors do not tell everything: another activation or another probability of dropout makes
    another model, too.
    """
    fields = []
    for name, module in state.model.named_modules():
        text = f"{type(module).__name__}({_extra(module)})"
        fields.append((f"module {name}" if name else "model", _short(text)))
    too_long = any(len(name.encode()) > limits.MAX_TEXT_BYTES for name, _ in fields)
    if too_long or len(fields) > _MOST_MODULES:
        return [("modules", _digest(repr(fields)))]
    return fields


def _extra(module: torch.nn.Module) -> str:
    """Return a module's own settings without memory addresses, which differ in each process."""
    try:
        return _ADDRESS.sub("", " ".join(module.extra_repr().split()))
    except Exception:  # whatever a module of the script's own raises
        return ""


def _hash_value(digest: Any, value: Any) -> None:
    """Add `value`, with its type and shape, to `digest`; of an unknown object its type alone."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = value if value.layout == torch.strided else value.to_dense()
        digest.update(f"tensor {value.dtype} {tuple(value.shape)} ".encode())
        if value.numel():
            digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray | np.generic) and value.dtype.hasobject:
        _hash_value(digest, value.tolist())  # its bytes are addresses, which differ everywhere
    elif isinstance(value, np.ndarray | np.generic):
        array = np.ascontiguousarray(value)
        digest.update(f"array {array.dtype} {array.shape} ".encode() + array.tobytes())
    elif isinstance(value, dict):
        digest.update(f"dict {len(value)} ".encode())
        for key in sorted(value, key=repr):
            digest.update(repr(key).encode())
            _hash_value(digest, value[key])
    elif isinstance(value, list | tuple):
        digest.update(f"sequence {len(value)} ".encode())
        for item in value:
            _hash_value(digest, item)
    elif isinstance(value, float):
        digest.update(b"float " + struct.pack("<d", value))
    elif isinstance(value, int | str | bytes | None):
        digest.update(f"{type(value).__name__} {value!r} ".encode())
    elif hasattr(value, "__array__"):
        _hash_value(digest, np.asarray(value))
    else:
        digest.update(f"object {type(value).__name__} ".encode())


def _short(text: str) -> str:
    return text if len(text.encode()) <= limits.MAX_TEXT_BYTES else _digest(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
