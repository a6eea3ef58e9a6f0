"""Writes the model of a saved training state to a file of its own, for use without edgeagent.

The keys are those of the model's own `state_dict()`, so plain torch can load the file: tied weights
are there under all of their names, and the `_orig_mod.` that `torch.compile` puts before names is
taken away. Reading executes nothing that is in a file, and a file that edgeagent has not written is
refused. The new file appears whole or not at all.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from edgeagent.checkpoint_file import MODEL_KEYS, check_format, check_whole
from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.places import check_save_path, write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

SAFETENSORS = (".safetensors",)
PICKLED = (".pt", ".pth")
# What the names of the model's tensors begin with in the file of a training state.
_MODEL = "model."
# What torch.compile puts before the names of the model that it wraps.
_COMPILED = "_orig_mod."


def export_model(state: str, model: str) -> int:
    """Write the model of the training state in file `state` to file `model`; return how many
    tensors it has.

    Raises `UsageError` if `state` is no training state, or if nothing can be written to `model`.
    """
    ending = os.path.splitext(model)[1]
    if ending not in (*SAFETENSORS, *PICKLED):
        known = ", ".join((*SAFETENSORS, *PICKLED))
        raise UsageError(f"cannot export to {model}: the name must end in one of {known}")
    check_save_path(model)
    if os.path.exists(model) and os.path.samefile(state, model):
        raise UsageError(f"{model} is the training state itself: name another file")
    tensors = read_model(state)

    def write(file: Any) -> None:
        if ending in PICKLED:
            torch.save(tensors, file)
        else:  # safetensors refuses tensors that share memory, as tied weights do
            apart = {key: tensor.clone() for key, tensor in tensors.items()}
            file.write(save(apart, metadata={"format": "pt"}))

    try:
        write_whole(model, write)
    except OSError as error:
        raise EdgeAgentError(f"cannot export to {model}: {error.strerror}") from None
    return len(tensors)


def read_model(path: str) -> dict[str, torch.Tensor]:
    """Return the `state_dict()` of the model whose training state is in the file at `path`.

    Tied weights share memory, as they do in a model. Raises `UsageError` if the file cannot be
    read, is no training state or is damaged.
    """
    try:
        check_whole(path)
        with safe_open(path, framework="pt") as file:
            notes = file.metadata() or {}
            check_format(path, notes)
            names = [name for name in file.keys() if name.startswith(_MODEL)]  # noqa: SIM118
            found = {name.removeprefix(_MODEL): file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None
    aliases, transient = _model_keys(path, notes)
    if missing := sorted({*aliases.values(), *transient} - found.keys()):
        raise UsageError(f"{path} is damaged: it has no {missing[0]}")
    kept = {name: tensor for name, tensor in found.items() if name not in transient}
    kept |= {key: found[name] for key, name in aliases.items()}
    return {key.replace(_COMPILED, ""): tensor for key, tensor in sorted(kept.items())}


def _model_keys(path: str, notes: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the second names of tied weights, and the tensors that are not in the `state_dict()`.

    The latter are buffers that a module has registered with `persistent=False`.
    """
    try:
        value = json.loads(notes.get(MODEL_KEYS, "{}"))
        aliases, transient = dict(value.get("aliases", {})), list(value.get("transient", []))
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise UsageError(f"{path} is damaged: its {MODEL_KEYS} cannot be read") from None
    if not all(isinstance(text, str) for text in (*aliases, *aliases.values(), *transient)):
        raise UsageError(f"{path} is damaged: its {MODEL_KEYS} cannot be read")
    return aliases, transient
