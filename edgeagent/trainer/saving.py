"""What a trainer saves, and when.

It saves the state at the end of training, after every so many iterations if asked to, and, when a
cluster's state is about to replace its own, what it has trained until then. A file that holds more
training or belongs to another job is never overwritten: it gets another name, and one line tells
the user. A state that was put aside once is not put aside again while it is the same.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from edgeagent.dataplane.snapshot import Parts, Snapshot, take_parts, take_snapshot
from edgeagent.errors import EdgeAgentError
from edgeagent.handover import SavedAside
from edgeagent.places import check_save_path, lack_of_room, other_places
from edgeagent.slots_file import slot_bytes
from edgeagent.trainer.checkpoint import aside_place, keep_what_is_there, save_checkpoint
from edgeagent.trainer.numbered_files import NumberedFiles
from edgeagent.trainer.slot_files import slots_beside

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.shared_memory import SharedMemory
    from edgeagent.trainer.options import Options
    from edgeagent.trainer.state import TrainingState


class Saving:
    """Writes the files of one trainer; `say` is called with each line for the user.

    `saved` is where the state was written at the end, "" if it was not, and `error` is why.
    `memory` is the shared memory with the state; until it is set, there is nothing to save, so no
    file is written and none is reported.
    """

    def __init__(self, options: Options, state: TrainingState, say: Callable[[str], None]) -> None:
        self.error = ""
        self.saved = ""
        self.memory: SharedMemory | None = None
        self._path = options.save
        self._beside = options.beside if options.save_every else ""
        self._state = state
        self._say = say
        every = options.save_every if options.beside else 0
        keep, prepare = options.keep, self._prepare_over
        self._numbered = NumberedFiles(options.beside, every, keep, prepare, say)
        # The state's scalars after its last change. They are kept, because the script may have
        # changed the optimizer's since, which is not part of the state yet.
        self._meta = b""
        self._aside = ""  # the file in which the present state was put aside, "" if it was not

    def changed(self, meta: bytes) -> None:
        """Note that the state is another one from now on, whose scalars are `meta`."""
        self._meta = meta
        self._aside = ""

    def applied(self, meta: bytes) -> None:
        """Note that an update was made, and begin to write the state if `save_every` says so."""
        self.changed(meta)
        self._numbered.applied(self._state.iteration)

    @property
    def newest(self) -> str:
        """The newest of the files that are written while training goes on, "" if there is none."""
        return self._numbered.newest

    def finish(self) -> None:
        """Wait until the file that is being written beside the training is there."""
        self._numbered.finish()

    def now(self, path: str) -> None:
        """Write the state to `path`; raise `EdgeAgentError` if that fails."""
        check_save_path(path)
        self.finish()  # it may be written to the same place
        self._write(path)

    def at_end(self) -> None:
        """Write the state at the end of training; `saved` or `error` says what came of it.

        If it cannot be written where it should be, because the disk is full for example, it is
        written to another folder, since this may be all that there is of a long training.
        """
        if not self._path or self.memory is None:
            return
        try:
            self._write_over(self._path)
        except EdgeAgentError as error:
            self.error = f"{error}{self._elsewhere()}"
        else:
            self.saved = self._path

    def _elsewhere(self) -> str:
        """Write the state to the first other place that takes it; return what to say of it."""
        for place in other_places(self._path, self._state.layout.size):
            with contextlib.suppress(EdgeAgentError):
                self._write(place)
                return f"; the training state is in {place} instead"
        return ""

    def begin(self, meta: bytes, *, writes: bool) -> None:
        """Note the scalars of the state at the start. Tell the user, if files are going to be
        written at all, when there is no room for one."""
        self.changed(meta)
        place = self._path or self._beside
        if writes and place and (line := lack_of_room(place, self._state.layout.size)):
            self._say(line)

    def aside(self, keep: bool) -> SavedAside:
        """Write the state to a file of its own, because another state is about to replace it.

        `keep` says whether it is worth that. Returns the file, or why there is none.
        """
        self.finish()  # the part that never changes is read where it is, and another may come there
        if not keep or not self._path or self.memory is None:
            return SavedAside("", "")
        if not self._aside:
            place, line = aside_place(self._path, self._state.layout)
            if line:
                self._say(line)
            try:
                self._write(place)
            except EdgeAgentError as error:
                return SavedAside("", str(error))
            self._aside = place
        return SavedAside(self._aside, "")

    def _write_over(self, path: str) -> None:
        """Write the state to `path`; a file there that is worth more is renamed before."""
        self._keep_what_is_at(path)
        self._write(path)

    def _prepare_over(self, path: str) -> Callable[[], None]:
        """Return what writes the state as it is now to `path`, from a copy of what changes of it;
        if there is no memory for one, the file is written before this returns.

        A file there that is worth more is renamed before. Raises `EdgeAgentError`.
        """
        self._keep_what_is_at(path)
        state, held = self._at_home(path)
        copied = take_snapshot(state, self._state.layout.constant_bytes)
        slots = None
        if held is not None and (shards := self._state.shards) is not None:
            slots = take_parts(held, slot_bytes(shards.layout, shards.stripes))
        if copied is None or (held is not None and slots is None):
            self._writes(path, state, held)()
            return lambda: None
        return self._writes(path, copied, slots)

    def _keep_what_is_at(self, path: str) -> None:
        """Rename a file at `path` that is worth more than the state, and tell the user."""
        if line := keep_what_is_there(path, self._state.layout, self._state.iteration):
            self._say(line)

    def _write(self, path: str) -> None:
        self._writes(path, *self._at_home(path))()

    def _at_home(self, path: str) -> tuple[memoryview, memoryview | None]:
        """Return the memory with the state, and that with this device's slots of a divided
        optimizer, None without one; `path` is for the error if there is no state yet."""
        if self.memory is None:
            raise EdgeAgentError(f"cannot save {path}: there is no training state yet")
        self._state.bring_home(whole=True)
        held = None
        if (shards := self._state.shards) is not None:
            shards.owed.all()
            held = self.memory.held.view()
        return self.memory.state.view(), held

    def _writes(
        self, path: str, state: memoryview | Snapshot, held: memoryview | Parts | None
    ) -> Callable[[], None]:
        """Return what writes these bytes of the state, and of the slots, to `path` and beside it;
        all else is as it is now."""
        layout, meta, notes = self._state.layout, self._meta, self._state.notes()
        save = partial(save_checkpoint, path, layout, state, meta, notes)
        if (shards := self._state.shards) is None or held is None:
            return save
        mark = shards.mark(state, layout)
        return partial(save, slots_beside(path, shards, held, meta, shards.stripes, mark))
