"""Where a checkpoint is written, and what becomes of a file that is there already.

A file appears as a whole or not at all (temporary file, fsync, rename). If the path is a symbolic
link, the link stays and its target is written; anything but a regular file is refused by name. No
temporary file outlives an error. A temporary file whose process was killed is removed at the next
save: its name has the process's id, and a process that writes one holds a lock on it.

A link of another user in a folder that others can write to is not followed (`own_files.py`): it
could lead to any file of ours.

A file that holds more training than what is to be written, or that another program wrote, keeps its
contents under a new name. New names are numbered, so that nothing that was kept is overwritten. Of
the states that are put aside before a join at most `MOST_ASIDE` are kept, those that were trained
longest.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
import tempfile
from typing import TYPE_CHECKING, Any

from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.own_files import refuse_strange_link, strange_link
from edgeagent.terminal.text import bytes_text

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_ASIDE = 9  # states kept beside --save because another cluster's has replaced them
RESCUED = "rescued"  # in the name of a file for whose proper place there was no room
MOST_NUMBERED = 9999  # numbered names that are tried for any other kept file
Contents = tuple[str, "Callable[[Any], None]"]  # where a file is to be, and what writes it
_TEMPORARY = re.compile(r"\.edgeagent-([0-9]{1,10})-[0-9a-f]{8}")


def check_save_path(path: str) -> None:
    """Raise `UsageError` if a checkpoint could not be written to `path`."""
    if complaint := strange_link(path):
        raise UsageError(f"cannot save {path}: {complaint}")
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    if not os.path.isdir(folder):
        raise UsageError(f"cannot save {path}: there is no folder {folder}")
    if os.path.isdir(target):
        raise UsageError(f"cannot save {path}: it is a folder")
    if not is_replaceable(target):
        raise UsageError(f"cannot save {path}: {NOT_REGULAR}")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"cannot save {path}: the folder {folder} is not writable")


def lack_of_room(path: str, size: int) -> str:
    """Return a line for the user if a file of `size` bytes does not fit beside `path`, else ""."""
    folder = os.path.dirname(os.path.realpath(path))
    free = _free_bytes(folder)
    if free is None or free >= size:
        return ""
    return (
        f"the model could not be saved now: the file takes {bytes_text(size)}, and {folder} has"
        f" {bytes_text(free)} free; make room there, or name another place with --save"
    )


def other_places(path: str, size: int) -> list[str]:
    """Return files for what cannot be written to `path`: free names in the current folder, the
    home folder and that for temporary files, where they have room for `size` bytes."""
    found: list[str] = []
    folders = [os.path.expanduser("~"), tempfile.gettempdir()]
    with contextlib.suppress(OSError):  # the current folder was removed meanwhile
        folders.insert(0, os.getcwd())
    for folder in folders:
        free = _free_bytes(folder)
        place = free_name(os.path.join(folder, os.path.basename(path)), RESCUED)
        if place and place not in found and free is not None and free >= size:
            found.append(place)
    return found


def _free_bytes(folder: str) -> int | None:
    """Return what an ordinary user can still write into `folder`, None if nobody says."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


NOT_REGULAR = "it is no regular file (--no-save writes no model)"


def is_replaceable(target: str) -> bool:
    """Whether there is nothing at `target`, or a regular file."""
    try:
        return stat.S_ISREG(os.stat(target).st_mode)
    except FileNotFoundError:
        return True


def write_whole(path: str, write: Callable[[Any], None]) -> None:
    """Make what `write(file)` writes the contents of `path`.

    Raises `OSError` if that fails, and `EdgeAgentError` if something other than a regular file is
    at `path`. In both cases what was there before stays as it was.
    """
    write_together((path, write))


def write_together(*files: Contents) -> None:
    """Write files that belong together. All are on the disk before the first one takes its place,
    so that none is new beside an old one unless the power fails in the moment between two renames.
    Raises as `write_whole` does; then nothing has changed."""
    written: list[tuple[str, str]] = []
    with contextlib.ExitStack() as stack:  # closes the files, which are locked while they are open
        try:
            for path, write in files:
                written.append(_written_beside(path, write, stack))
            for temporary, target in written:
                os.replace(temporary, target)
        except BaseException:
            for temporary, _ in written:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
            raise
    for folder in dict.fromkeys(os.path.dirname(target) for _, target in written):
        _sync_folder(folder)


def _written_beside(
    path: str, write: Callable[[Any], None], stack: contextlib.ExitStack
) -> tuple[str, str]:
    """Write a temporary file in the folder of `path`, which `stack` closes; return its name, and
    what it is to replace."""
    refuse_strange_link(path)
    target = os.path.realpath(path)
    if not is_replaceable(target):
        raise EdgeAgentError(f"cannot save {path}: {NOT_REGULAR}")
    folder = os.path.dirname(target)
    remove_stray(folder)
    temporary = os.path.join(folder, f".edgeagent-{os.getpid()}-{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    try:
        file = stack.enter_context(os.fdopen(descriptor, "wb"))
        with contextlib.suppress(OSError):  # some file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        write(file)
        file.flush()
        os.fsync(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return temporary, target


def remove_stray(folder: str) -> None:
    """Remove temporary files in `folder` that processes of ours have left when they were killed."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            known = _TEMPORARY.fullmatch(entry.name)
            if known is not None and not _is_alive(int(known[1])):
                with contextlib.suppress(OSError):
                    _remove_unlocked(entry.path)


def free_name(path: str, mark: str, most: int = MOST_NUMBERED) -> str:
    """Return the first name beside `path`, with `mark` and a number, that is not taken; "" if all
    `most` are taken."""
    return next((name for name in numbered(path, mark, most) if not os.path.lexists(name)), "")


def numbered(path: str, mark: str, most: int) -> list[str]:
    """Return the names beside `path` with `mark`: "x-mark.ext", "x-mark-2.ext", ..."""
    stem, extension = os.path.splitext(path)
    ends = ["", *(f"-{number}" for number in range(2, most + 1))]
    return [f"{stem}-{mark}{end}{extension or '.safetensors'}" for end in ends]


def move_aside(path: str, mark: str) -> str:
    """Rename what is at `path` to a free name beside it; return that name. Raises `OSError`."""
    refuse_strange_link(path)
    target = os.path.realpath(path)
    kept = free_name(target, mark)
    if not kept:
        raise FileExistsError(17, f"there are {MOST_NUMBERED} older files beside it")
    try:
        os.link(target, kept)  # replaces nothing, and the old name exists all the time
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        os.rename(target, kept)
    return kept


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def _remove_unlocked(path: str) -> None:
    """Remove a temporary file of ours, unless a process, perhaps in another container, writes
    it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
    finally:
        os.close(descriptor)


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
