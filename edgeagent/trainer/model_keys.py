"""What a file says of the model beside its tensors, so that its `state_dict()` can be made."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from edgeagent.checkpoint_file import MODEL_KEYS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


def model_notes(model: torch.nn.Module, buffers: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the keys of `model`'s state that are second names of tied tensors, and the names of
    the tensors that are not in it, as metadata of a file. `buffers`: those that a file has."""
    known = {**dict(model.named_parameters()), **buffers}
    names = {id(tensor): name for name, tensor in known.items()}
    own = model.state_dict(keep_vars=True)
    keys = {key: names[id(t)] for key, t in own.items() if id(t) in names}
    aliases = {key: name for key, name in sorted(keys.items()) if key != name}
    transient = sorted(known.keys() - keys.values())
    return {MODEL_KEYS: json.dumps({"aliases": aliases, "transient": transient})}
