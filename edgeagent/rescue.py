"""Saves what a trainer has trained if the trainer cannot do so itself any more.

Only a whole state is written: that of a trainer that is dead, whose last update was complete, and
whose scalars the agent knows. For a trainer on another device it is the state that was last copied
to shared memory. A file that is at that place already is kept under another name. If that place
takes no file, for example because its disk is full, another one is tried, as by the trainer. Of a
divided optimizer state the slots that are here are written beside it, after the step that the
trainer still owed them. If it was in the middle of a chunk they are of no use: then the file with
slots has none, and those who have copies are needed to go on.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from edgeagent.checkpoint_file import Entry, contents, write_checkpoints
from edgeagent.errors import EdgeAgentError
from edgeagent.held_memory import HeldLayout
from edgeagent.marks import (
    MARK_APPLYING,
    MARK_ITERATION,
    MARK_OWED,
    MARK_STEPPED_CHUNKS,
    MARK_STRIPES,
    OWES_NOTHING,
    OWES_STEP,
)
from edgeagent.places import move_aside, other_places
from edgeagent.slot_steps import chunks_to_step, step_chunks
from edgeagent.slots_file import keep_slots_with, mark_of, slots_contents
from protocols import limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.handover import Hello
    from edgeagent.launch import Child
    from edgeagent.shared_memory import SharedMemory
    from edgeagent.shell.trainer_side import OwnState
    from edgeagent.slot_steps import SlotStep, Vector

EARLIER = "earlier"  # part of the name under which an older file is kept
KILL_SECONDS = 5.0  # at most, for a killed process to end
_POLL_SECONDS = 0.01


def kill_and_save(
    child: Child | None,
    hello: Hello | None,
    memory: SharedMemory | None,
    own: OwnState | None,
    kept: OwnState | None = None,
    owed: SlotStep | None = None,
) -> str:
    """Kill the trainer and save its state; return the file, "" if nothing was to be saved: there is
    no place for it, or this device never was a member, so that nothing has been trained.

    `child` is None for a trainer that this agent has not started: it must have ended already.
    `own` is what the agent knows of the trainer's state, None if that is partly overwritten; `kept`
    is what it knows of the state in `memory`, if it knows that, and `owed` the step that its slots
    lack. Raises `EdgeAgentError` if there is
    no whole state or it cannot be written.
    """
    if child is not None:
        _end(child)
    if hello is None or memory is None or not hello.save:
        return ""
    if own is not None and not own.trained:
        return ""
    marks = memory.marks.array("int64")
    here = next(
        (known for known in (own, kept) if known and known.past.iteration == marks[MARK_ITERATION]),
        None,
    )
    if own is None or here is None or marks[MARK_APPLYING]:
        raise EdgeAgentError("it was in the middle of an update or of a join")
    try:
        if os.path.lexists(hello.save):
            keep_slots_with(hello.save, move_aside(hello.save, EARLIER))
    except OSError as error:
        raise EdgeAgentError(f"cannot save {hello.save}: {error.strerror}") from None
    tensors = sorted(zip(hello.tensors, hello.shapes, strict=True))  # by name, as the trainer does
    entries = [
        Entry(name, dtype, tuple(shape), offset, size)
        for (name, offset, size), (dtype, shape) in tensors
    ]
    layout = HeldLayout(hello.slots, hello.elements, hello.chunk_elements) if hello.slots else None
    stripes = _whole_stripes(marks, layout, memory, hello, owed) if layout is not None else []

    def write(place: str) -> None:
        notes = dict(hello.notes)
        files = [contents(place, entries, memory.state.view(), here.meta, notes)]
        if layout is not None:
            mark = mark_of(memory.state.view(), hello.weights)
            about = (int(marks[MARK_ITERATION]), here.meta, mark)
            held = memory.held.view()
            files += [slots_contents(place, layout, hello.slot_names, held, stripes, *about)]
        write_checkpoints(*files)

    return _written(hello.save, memory.state.view().nbytes, write)


def _whole_stripes(
    marks: Vector, layout: HeldLayout, memory: SharedMemory, hello: Hello, owed: SlotStep | None
) -> list[int]:
    """Return the stripes whose slots are here, after making the step that they lack; none if the
    trainer was in the middle of a chunk."""
    words = [int(w) % (1 << 64) for w in marks[MARK_STRIPES:][: limits.MAX_STRIPES // 64]]
    bits = sum(word << (64 * k) for k, word in enumerate(words))
    stripes = [s for s in range(layout.stripes) if bits >> s & 1]
    if marks[MARK_OWED] == OWES_NOTHING:
        return stripes
    if owed is None or marks[MARK_OWED] != OWES_STEP:
        return []
    gradients = max((first + count for first, _, count in hello.weights), default=0)
    chunks = chunks_to_step(layout, stripes, -(-gradients // layout.chunk_elements))
    chunks = chunks[int(marks[MARK_STEPPED_CHUNKS]) :]
    held = memory.held.array("float32")
    for _ in step_chunks(held, layout, chunks, hello.slot_names, owed):
        pass
    marks[MARK_OWED] = OWES_NOTHING
    return stripes


def _written(path: str, size: int, write: Callable[[str], None]) -> str:
    """Write to `path`, or if that fails to the first other place that takes it, as the trainer
    does; return where. Raises the first `EdgeAgentError` if none does."""
    try:
        write(path)
    except EdgeAgentError:
        for place in other_places(path, size):
            with contextlib.suppress(EdgeAgentError):
                write(place)
                return place
        raise
    return path


def _end(child: Child) -> None:
    """Kill `child` if it still runs, and wait until the system has ended it."""
    if child.poll() is None:
        child.kill()
    deadline = time.monotonic() + KILL_SECONDS
    while child.poll() is None:
        if time.monotonic() > deadline:
            raise EdgeAgentError("the trainer's process cannot be ended")
        time.sleep(_POLL_SECONDS)
