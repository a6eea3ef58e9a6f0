"""The file with the part of a divided optimizer state that one device keeps.

It lies beside the device's checkpoint: `x-slots.safetensors` beside `x.safetensors`. The trainer
writes it or, if the trainer cannot any more, the agent; `trainer/slot_files.py` reads it.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from edgeagent.checkpoint_file import Entry, contents
from edgeagent.held_memory import ITEM_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from edgeagent.dataplane.snapshot import Parts, Snapshot
    from edgeagent.held_memory import HeldLayout
    from edgeagent.places import Contents

ITERATION = "iteration"  # metadata: how many updates the state has behind it
STRIPES = "stripes"  # metadata: into how many stripes it was divided
WEIGHTS = "weights"  # metadata: `mark_of` the weights to which the slots belong
# Of each parameter so much goes into that mark: two trainings differ nearly everywhere.
_MARKED_BYTES = 4096


def mark_of(state: memoryview | Snapshot, weights: Iterable[tuple[int, int, int]]) -> str:
    """Return a digest of the beginning of each parameter in a training state, so that slots of
    another training with as many steps are not taken for those of this one. `weights`: as in
    `handover.Hello`."""
    digest = hashlib.sha256()
    for _, at, count in weights:
        digest.update(state[at : at + min(_MARKED_BYTES, count * ITEM_BYTES)])
    return digest.hexdigest()[:32]


def slots_path(path: str) -> str:
    """Return the name of the file with slots beside the checkpoint `path`."""
    stem, extension = os.path.splitext(path)
    return f"{stem}-slots{extension}"


def keep_slots_with(path: str, kept: str) -> None:
    """Rename the file with slots beside the checkpoint `path`, if there is one, after that
    checkpoint was kept under the name `kept`. Raises `OSError`."""
    if os.path.lexists(slots_path(path)):
        os.replace(slots_path(path), slots_path(kept))


def tensor_name(slot: str, chunk: int) -> str:
    """Return the name in the file of a slot of a chunk."""
    return f"slots.{slot}.{chunk}"


def slot_bytes(layout: HeldLayout, stripes: Iterable[int]) -> list[slice]:
    """Return the bytes of the region that have the slots of `stripes`."""
    found = []
    for chunk in sorted(c for s in stripes for c in layout.chunks_of(s)):
        for number in range(layout.slots):
            place = layout.slot(number, chunk)
            found.append(slice(place.start * ITEM_BYTES, place.stop * ITEM_BYTES))
    return found


def slots_contents(
    path: str,
    layout: HeldLayout,
    names: Sequence[str],
    held: memoryview | Parts,
    stripes: Iterable[int],
    iteration: int,
    meta: bytes,
    weights: str,
) -> Contents:
    """Return the file with the slots, which are called `names`, of `stripes`, which is to lie
    beside the checkpoint `path`.

    They lie in the region `held` as `layout` says, and belong to the state after `iteration`
    updates, whose scalars are `meta` and whose weights have the mark `weights`.
    """
    entries: list[Entry] = []
    for chunk in sorted(c for s in stripes for c in layout.chunks_of(s)):
        for number, slot in enumerate(names):
            place = layout.slot(number, chunk)
            size = place.stop - place.start
            at = (place.start * ITEM_BYTES, size * ITEM_BYTES)
            entries.append(Entry(tensor_name(slot, chunk), "F32", (size,), *at))
    about = {ITERATION: str(iteration), STRIPES: str(layout.stripes), WEIGHTS: weights}
    return contents(slots_path(path), entries, held, meta, about)
