"""Tokens that this device keeps, one for each cluster's name, so that they need not be typed.

`<root>/<cluster>/token` holds the text of one token and is readable by its user only. Pairing and
`edgeagent invite` write it, `edgeagent run` reads it, and an agent that takes over a new token
replaces it, so that the device gets in with it the next time as well.
"""

from __future__ import annotations

import contextlib
import os
from urllib.parse import unquote

from edgeagent.errors import UsageError
from edgeagent.local.state_dir import cluster_folder
from edgeagent.own_files import check_own, make_own_folders
from edgeagent.transport.identity import write_private
from edgeagent.transport.token import parse_token

FILE_NAME = "token"
MAX_FILE_BYTES = 4096  # a token is far shorter


def token_path(root: str, cluster: str) -> str:
    """Return where the token of `cluster` is kept, whether or not there is one."""
    return os.path.join(cluster_folder(root, cluster), FILE_NAME)


def stored_token(root: str, cluster: str) -> str | None:
    """Return the text of the token kept for `cluster`, None if there is none.

    Raises `UsageError` if the file cannot be read, belongs to another user or holds no token.
    """
    path = token_path(root, cluster)
    check_own(path)
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        os.chmod(path, 0o600)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"cannot read the kept token {path}: {error.strerror}") from None
    try:
        text = data[:MAX_FILE_BYTES].decode("ascii").strip()
        parse_token(text)
    except (UnicodeDecodeError, UsageError):
        raise UsageError(f"the kept token {path} is damaged: delete that file") from None
    return text


def keep_token(root: str, cluster: str, token: str) -> str:
    """Keep `token` (text) for `cluster`, in place of another; return the file's path.

    Raises `UsageError` if it cannot be written.
    """
    folder = cluster_folder(root, cluster)
    make_own_folders(root, folder)
    path = os.path.join(folder, FILE_NAME)
    write_private(path, token.encode() + b"\n")
    return path


def renew_token(root: str, cluster: str, old: str, new: str) -> None:
    """Replace the kept token of `cluster` by `new` if it is `old`; leave any other as it is."""
    with contextlib.suppress(UsageError):  # a full disk must not end an agent that trains
        if stored_token(root, cluster) == old:
            keep_token(root, cluster, new)


def stored_clusters(root: str) -> tuple[str, ...]:
    """Return the names of the clusters whose tokens are kept, sorted. Names so long that their
    folder has a hash for a name are left out."""
    try:
        folders = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    except OSError:
        return ()
    return tuple(
        unquote(folder.removeprefix("c-"))
        for folder in folders
        if folder.startswith("c-") and os.path.isfile(os.path.join(root, folder, FILE_NAME))
    )
