"""Scripts of other devices that the user of this one has agreed to run.

`<root>/<cluster>/jobs/NAME` has the text of one, readable by its user only, and `NAME.digest` what
the user has agreed to, which covers the arguments, too. The same script with the same arguments is
not asked about again.
"""

from __future__ import annotations

import os

from edgeagent.local.state_dir import cluster_folder
from edgeagent.own_files import make_own_folders, stranger
from edgeagent.transport.identity import write_private

FOLDER = "jobs"
DIGEST = ".digest"


def script_path(root: str, cluster: str, name: str) -> str:
    """Return where the script called `name` is kept, whether or not there is one. `name` is a file
    name that `recipe` has checked."""
    return os.path.join(cluster_folder(root, cluster), FOLDER, name)


def is_kept(root: str, cluster: str, name: str, text: str, digest: str) -> bool:
    """Whether a script of that name with exactly this text is kept, and was agreed to under this
    digest. What another user has put there was agreed to by nobody here."""
    path, data = script_path(root, cluster, name), text.encode()
    folder = os.path.dirname(path)
    if any(stranger(place) is not None for place in (root, os.path.dirname(folder), folder)):
        return False
    return _holds(path, data) and _holds(path + DIGEST, digest.encode())


def _holds(path: str, data: bytes) -> bool:
    if stranger(path) is not None:
        return False
    try:
        with open(path, "rb") as file:
            return file.read(len(data) + 1) == data
    except OSError:
        return False


def keep_script(root: str, cluster: str, name: str, text: str, digest: str) -> str:
    """Keep the script in place of another one of that name; return the file's path. Raises
    `UsageError` if it cannot be written."""
    path = script_path(root, cluster, name)
    folder = os.path.dirname(path)
    make_own_folders(root, os.path.dirname(folder), folder)
    write_private(path, text.encode())
    write_private(path + DIGEST, digest.encode())
    return path
