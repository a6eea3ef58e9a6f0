"""Going on from files with the parts of a divided optimizer state (`slots_file.py`).

Those of all devices at the end of training have all of it. Who goes on from a checkpoint needs all
of it, so the checkpoints of several devices can be given, and what is in none of them is named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open

from edgeagent.errors import UsageError
from edgeagent.slots_file import (
    ITERATION,
    STRIPES,
    WEIGHTS,
    slots_contents,
    slots_path,
    tensor_name,
)
from edgeagent.trainer.meta import decode_meta

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from edgeagent.dataplane.snapshot import Parts
    from edgeagent.places import Contents
    from edgeagent.trainer.shards import Shards


def slots_beside(
    path: str,
    shards: Shards,
    held: memoryview | Parts,
    meta: bytes,
    stripes: Iterable[int],
    weights: str,
) -> Contents:
    """Return the file with the slots of `stripes`, which lie in the region `held`, that is to lie
    beside the checkpoint `path`, whose scalars are `meta` and whose weights have the mark
    `weights`."""
    about = (decode_meta(meta).iteration, meta, weights)
    return slots_contents(path, shards.layout, shards.slot_names, held, stripes, *about)


def load_slots(
    paths: Sequence[str], shards: Shards, iteration: int, weights: str, *, anew: bool = False
) -> tuple[int, ...]:
    """Read all slots from the files beside the checkpoints `paths`, of which the state is that of
    `iteration`, with weights that have the mark `weights`. Return the stripes of which slots are in
    none of them, and which so have to begin anew. Unless `anew`, raises `UsageError` if there are
    such stripes, and if a file cannot be read or is of another state, as after a loss of power
    between the two files of a save."""
    layout = shards.layout
    missing = dict.fromkeys(range(1, shards.gradient_chunks + 1))
    for path in paths:
        name = slots_path(path)
        try:
            with safe_open(name, framework="pt") as file:
                about = file.metadata() or {}
                found = (about.get(ITERATION), about.get(STRIPES))
                if found != (str(iteration), str(layout.stripes)):
                    if anew:
                        continue
                    raise UsageError(
                        f"{name} belongs to step {found[0]}, and {paths[0]} to step {iteration}:"
                        " give files that were saved together"
                    )
                if about.get(WEIGHTS, weights) != weights:  # files of earlier versions have none
                    if anew:
                        continue
                    raise UsageError(
                        f"{name} belongs to other weights than {paths[0]}, though both have"
                        f" {iteration} steps behind them: give files that were saved together"
                    )
                keys = dict.fromkeys(file.keys())
                for chunk in list(missing):
                    if all(tensor_name(slot, chunk) in keys for slot in shards.slot_names):
                        values = [file.get_tensor(tensor_name(s, chunk)) for s in shards.slot_names]
                        _put(name, shards, chunk, values)
                        del missing[chunk]
        except (OSError, SafetensorError) as error:
            if anew:
                continue
            raise UsageError(f"cannot read {name}: {error}") from None
    parts = tuple(sorted({layout.stripe_of(chunk) for chunk in missing}))
    if parts and not anew:
        raise UsageError(
            f"{len(parts)} of {layout.stripes} parts of the optimizer's state are in none of"
            f" {', '.join(slots_path(p) for p in paths)}: add --resume FILE for the checkpoints of"
            " the other devices, or --on-lost fresh to have these parts begin anew"
        )
    return parts


def in_words(parts: int, of: int, *, only_joins: bool) -> str:
    """Return a line that tells a user that so many parts begin anew, or that this device
    `only_joins` others, which have them."""
    then = "this device joins others, and founds no cluster" if only_joins else "they begin anew"
    return f"{parts} of {of} parts of the optimizer's state are in none of the files: {then}"


def _put(path: str, shards: Shards, chunk: int, values: list[torch.Tensor]) -> None:
    for number, value in enumerate(values):
        place = shards.slot_memory(number, chunk)
        if value.dtype != torch.float32 or value.shape != place.shape:
            raise UsageError(f"{path} is of another job: its slots have another shape")
        place.copy_(value)
