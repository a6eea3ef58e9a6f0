"""The files of `save_every`: written beside the training, and removed when there are newer ones.

All devices come to such a file after the same update, so if each had to wait for its disk, all
would wait for the slowest one. A file is therefore written in a thread, from a copy of what changes
of the state, while the next steps are computed. Training waits for a file only if there is no
memory for the copy, or if the file before it is not finished yet: then files are asked for faster
than they can be written.

Only those files are removed that this trainer has written itself, because others may be all that is
left of another run.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from edgeagent.errors import EdgeAgentError
from edgeagent.slots_file import slots_path

if TYPE_CHECKING:
    from collections.abc import Callable


class NumberedFiles:
    """The files beside `path`, one after every so many iterations, of which the last `keep` stay.

    `prepare(name)` returns what writes the file `name` with the state as it is now: that function
    may run while the training goes on, and raises `EdgeAgentError` if the file cannot be written.
    `say` is called with each line for the user, in the thread of the training.
    """

    def __init__(
        self,
        path: str,
        every: int,
        keep: int,
        prepare: Callable[[str], Callable[[], None]],
        say: Callable[[str], None],
    ) -> None:
        self._path = path
        self._every = every
        self._keep = keep
        self._prepare = prepare
        self._say = say
        self._written: deque[str] = deque()  # the files of this trainer that are there, in order
        self._thread: ThreadPoolExecutor | None = None
        self._running: tuple[str, Future[None]] | None = None  # the file that is being written

    @property
    def newest(self) -> str:
        """The absolute path of the newest file, which may still be being written; "" if there is
        none."""
        name = self._running[0] if self._running else self._written[-1] if self._written else ""
        return os.path.abspath(name) if name else ""

    def applied(self, iteration: int) -> None:
        """Note that the state is the one after `iteration` updates, and begin a file if it is time
        for one. If that fails, the user is told and training goes on."""
        if self._running is not None and self._running[1].done():
            self.finish()
        if not self._every or iteration % self._every:
            return
        self.finish()
        name = step_path(self._path, iteration)
        try:
            write = self._prepare(name)
        except EdgeAgentError as error:
            self._say(f"{error}; training goes on")
            return
        # Python waits for this thread before it ends, so a script that ends early loses no file.
        self._thread = self._thread or ThreadPoolExecutor(1, "edgeagent-save")
        self._running = name, self._thread.submit(write)

    def finish(self) -> None:
        """Wait until the file that is being written is there, and remove those too many."""
        if self._running is None:
            return
        (name, writing), self._running = self._running, None
        try:
            writing.result()
        except EdgeAgentError as error:
            self._say(f"{error}; training goes on")
            return
        if name in self._written:  # a younger state was adopted meanwhile, and has come here again
            self._written.remove(name)
        self._written.append(name)
        while 0 < self._keep < len(self._written):
            old = self._written.popleft()
            for path in (old, slots_path(old)):
                with contextlib.suppress(OSError):  # an agent in the same folder may have done it
                    os.unlink(path)


def step_path(path: str, iteration: int) -> str:
    """Return the name beside `path` of the state after `iteration` updates."""
    stem, extension = os.path.splitext(path)
    return f"{stem}-step-{iteration:06d}{extension or '.safetensors'}"
