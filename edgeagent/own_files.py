"""Whose files are whose, where several users can write to one folder, such as /tmp.

Another user can put something there under a name that we are about to use: a folder, in order to
read or replace our keys later, or a symbolic link, in order to have us write to a file of our own.
So what holds secrets must belong to this user, and no link of another user is followed. Links and
files of this user and of the superuser are as good as any.

For the superuser itself, files of others count as its own unless they lie in a folder to which
everybody can write: a container often runs as the superuser, with a folder of the host's user.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from dataclasses import dataclass

from edgeagent.errors import UsageError

SUPERUSER = 0
MOST_LINKS = 40  # on the way to one file, as in the kernel


@dataclass(frozen=True, slots=True)
class _Entry:
    """Whom what is at a path belongs to, and its type and permissions."""

    owner: int
    mode: int


def _me() -> int:
    return os.geteuid()


def _look(path: str, *, follow: bool) -> _Entry:
    found = os.stat(path, follow_symlinks=follow)
    return _Entry(found.st_uid, found.st_mode)


def stranger(path: str) -> int | None:
    """Return the id of the other user to whom the file or folder at `path` belongs, or the link
    that is there; None if it is this user's own, or if there is nothing."""
    for place, follow in ((path, False), (os.path.realpath(path), True)):
        try:
            found = _look(place, follow=follow)
            if not _is_own(found.owner, os.path.dirname(os.path.abspath(place))):
                return found.owner
        except OSError:
            return None
    return None


def _is_own(owner: int, folder: str) -> bool:
    if owner in (_me(), SUPERUSER):
        return True
    return _me() == SUPERUSER and not _look(folder, follow=True).mode & stat.S_IWOTH


def check_own(path: str) -> None:
    """Raise `UsageError` if what is at `path`, where secrets are kept, belongs to another user, or
    if a link of another user leads there."""
    owner = stranger(path)
    if owner is not None and not _files_get(owner, path):
        raise UsageError(
            f"{path} belongs to another user (id {owner}), who could read or replace what is kept "
            "there: remove it, or set EDGEAGENT_HOME to a folder of your own"
        )
    if complaint := strange_link(path):
        raise UsageError(complaint)


def _files_get(owner: int, path: str) -> bool:
    """Whether what this process makes in the folder at `path`, or in that of the file there,
    belongs to `owner`: some network file systems give all files to one user."""
    try:
        return _owner_of_new(path if os.path.isdir(path) else os.path.dirname(path)) == owner
    except OSError:
        return False


def _owner_of_new(folder: str) -> int:
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_uid


def make_own_folders(root: str, *folders: str) -> None:
    """Make folders that only this user can read, if they do not exist. `root` keeps its mode if it
    was there, because the user may have chosen a folder that others use, too.

    Raises `UsageError` if one cannot be made or belongs to another user.
    """
    for folder in (root, *folders):
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            check_own(folder)
            if folder != root:
                os.chmod(folder, 0o700)  # an older version left it readable for all
        except OSError as error:
            raise UsageError(f"cannot use the state directory {folder}: {error.strerror}") from None


def refuse_strange_link(path: str) -> None:
    """Raise `OSError` if `strange_link` has something to say of `path`."""
    if complaint := strange_link(path):
        raise PermissionError(errno.EPERM, complaint)


def refuse_planted(path: str) -> None:
    """Raise `OSError` if another user may have put there what is at `path`: anybody can write to
    its folder, or a strange link leads to it."""
    refuse_strange_link(path)
    real = os.path.realpath(path)
    owner, around = stranger(real), _look(os.path.dirname(real), follow=True)
    if owner is not None and around.mode & stat.S_IWOTH:
        raise PermissionError(
            errno.EPERM,
            f"it belongs to another user (id {owner}), in a folder that everybody can write to: "
            "keep the file in a folder of your own",
        )


def strange_link(path: str) -> str:
    """Return a line for the user if a symbolic link on the way to `path` was put by another user
    into a folder that everybody can write to; "" if there is none."""
    try:
        whole = path if os.path.isabs(path) else os.path.join(os.getcwd(), path)
    except OSError:
        return ""  # the current folder was removed; whoever uses the path gets the same error
    left = whole.split(os.sep)[::-1]
    folder, links = os.sep, 0
    while left:
        name = left.pop()
        if name in ("", "."):
            continue
        place = os.path.join(folder, name) if name != ".." else os.path.dirname(folder)
        try:
            found = _look(place, follow=False)
            if not stat.S_ISLNK(found.mode):
                folder = place
                continue
            if not _is_trusted_link(found, folder):
                return (
                    f"{place} is a link of another user (id {found.owner}), which is not followed:"
                    " remove it, or name another place"
                )
            target = os.readlink(place)
        except OSError:
            return ""  # whoever uses it gets the same error
        links += 1
        if links > MOST_LINKS:
            return ""
        left += target.split(os.sep)[::-1]
        folder = os.sep if os.path.isabs(target) else folder
    return ""


def _is_trusted_link(link: _Entry, folder: str) -> bool:
    if link.owner in (_me(), SUPERUSER):
        return True
    # In a folder that only a group shares, its members trust each other, as in a lab's folder.
    around = _look(folder, follow=True)
    return link.owner == around.owner or not around.mode & (stat.S_IWOTH | stat.S_ISVTX)
