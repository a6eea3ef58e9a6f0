"""The folder in which an agent keeps its key and its command socket, one folder for each agent.

`<root>/<cluster>/slot-N/` belongs to the agent that holds the lock on its file `lock`. The kernel
releases the lock when the agent ends, however it ends, so that no slot is lost. All folders belong
to their user and are readable by nobody else; what another user has put there is not used.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import socket
import stat
import tempfile
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from edgeagent.config import default_name
from edgeagent.errors import UsageError
from edgeagent.own_files import check_own, make_own_folders, stranger
from edgeagent.transport.identity import write_private

if TYPE_CHECKING:
    from collections.abc import Collection

MAX_SLOTS = 64  # agents of one cluster on one device
MAX_SOCKET_PATH_BYTES = 100  # the kernel's limit is 108 on Linux and 104 on macOS
_LOCK_TRIES = 3  # another process may hold the lock for a moment, to see whether it is free
_LOCK_PAUSE_SECONDS = 0.01
_SOCKET_NAME = "agent.sock"
_RECORD_NAME = "agent.json"
_COUNTER_NAME = "incarnation"


@dataclass(frozen=True, slots=True)
class RunningAgent:
    """An agent of this user that is running now, as it described itself at its start. `machine`:
    what it runs on, as `this_machine` returns it there; homes may be shared by several."""

    cluster: str
    name: str
    slot: int
    pid: int
    socket_path: str
    machine: str = ""


@dataclass(slots=True)
class StateDir:
    """A claimed slot.

    `incarnation` is larger than any that this slot had before (the milliseconds of Unix time, if
    the clock is right). `release` makes the slot free again.
    """

    path: str
    cluster: str
    slot: int
    name: str
    incarnation: int
    socket_path: str
    _lock: int = field(default=-1, repr=False)

    def begin_anew(self) -> int:
        """Return a larger incarnation, which this agent has from now on. It is kept in memory alone
        if it cannot be written, as on a full disk: the agent's next process counts from the clock,
        too."""
        try:
            self.incarnation = _next_incarnation(os.path.join(self.path, _COUNTER_NAME))
        except UsageError:
            self.incarnation = max(self.incarnation + 1, time.time_ns() // 1_000_000)
        return self.incarnation

    def release(self) -> None:
        """Make the slot free and remove the command socket and the record. Idempotent."""
        if self._lock < 0:
            return
        for name in (self.socket_path, os.path.join(self.path, _RECORD_NAME)):
            with contextlib.suppress(OSError):
                os.unlink(name)
        os.close(self._lock)
        self._lock = -1


def claim_state_dir(root: str, cluster: str, name: str = "") -> StateDir:
    """Lock the first free slot of `cluster` under `root` and return it.

    If `name` is "", it is the host's name, with "-N" from slot 2 on. Each slot in use takes up to
    30 ms. Raises `UsageError` if the folder cannot be made or belongs to another user, if all slots
    are taken, or if an agent with that name already runs in this cluster, because commands could
    not tell the two apart.
    """
    check_own(root)
    others = {a.name: a.pid for a in running_agents(root) if a.cluster == cluster}
    if name in others:
        raise UsageError(
            f"an agent called {name!r} runs on this device already (process {others[name]}): give "
            "this one another --name (EDGEAGENT_NAME)"
        )
    base = cluster_folder(root, cluster)
    for slot in range(1, MAX_SLOTS + 1):
        path = os.path.join(base, f"slot-{slot}")
        make_own_folders(root, base, path)
        try:
            lock = _lock(os.path.join(path, "lock"))
        except OSError as error:
            raise UsageError(f"cannot use the state directory {path}: {error.strerror}") from None
        if lock is None:
            continue
        try:
            return _claimed(path, cluster, slot, name or _free_name(slot, others), lock)
        except BaseException:
            os.close(lock)
            raise
    raise UsageError(f"{MAX_SLOTS} agents of cluster {cluster!r} run here already ({base})")


def cluster_folder(root: str, cluster: str) -> str:
    """Return the folder of `cluster` under `root`, which need not exist."""
    return os.path.join(root, _folder_name(cluster))


def first_slot(root: str, cluster: str) -> str:
    """Return the folder of the first agent of `cluster`, made if it does not exist.

    Raises `UsageError` if it cannot be made or belongs to another user.
    """
    base = cluster_folder(root, cluster)
    path = os.path.join(base, "slot-1")
    make_own_folders(root, base, path)
    return path


def running_agents(root: str) -> tuple[RunningAgent, ...]:
    """Return the running agents of this user, ordered by cluster and slot.

    What another user has put there counts as none: its record could name a socket of that user.
    """
    found = []
    for cluster_folder in _subfolders(root):
        for folder in _subfolders(cluster_folder):
            record = _read_record(folder) if stranger(folder) is None else None
            if record is not None and _is_locked(os.path.join(folder, "lock")):
                found.append(record)
    return tuple(sorted(found, key=lambda agent: (agent.cluster, agent.slot)))


def this_machine() -> str:
    """Return a name of the running system, which no other machine has; its containers have it."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


def _free_name(slot: int, taken: Collection[str]) -> str:
    """Return the host's name, with a number if another agent here has it."""
    names = [default_name(), *(f"{default_name()}-{n}" for n in range(2, 2 * MAX_SLOTS + 1))]
    return next(name for name in names[slot - 1 :] if name not in taken)


def _claimed(path: str, cluster: str, slot: int, name: str, lock: int) -> StateDir:
    socket_path = _socket_path(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(socket_path)
    incarnation = _next_incarnation(os.path.join(path, _COUNTER_NAME))
    record: dict[str, Any] = {
        "cluster": cluster,
        "name": name,
        "slot": slot,
        "pid": os.getpid(),
        "socket": socket_path,
        "machine": this_machine(),
    }
    write_private(os.path.join(path, _RECORD_NAME), json.dumps(record).encode())
    return StateDir(path, cluster, slot, name, incarnation, socket_path, lock)


def _folder_name(cluster: str) -> str:
    """Return a folder name for any cluster name: never "..", bounded in length, and different for
    different names."""
    name = "c-" + quote(cluster, safe="")
    if len(name) <= 100:
        return name
    return "h-" + hashlib.sha256(cluster.encode()).hexdigest()[:32]


def _lock(path: str) -> int | None:
    """Return a descriptor that holds the lock, None if another process has it.

    This is tried a few times, because `running_agents` of another process takes the lock for a
    moment.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    for attempt in range(_LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if attempt + 1 < _LOCK_TRIES:
                time.sleep(_LOCK_PAUSE_SECONDS)
        except OSError:
            os.close(descriptor)
            raise
        else:
            return descriptor
    os.close(descriptor)
    return None


def _is_locked(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _next_incarnation(path: str) -> int:
    """Return an incarnation larger than the last one, even if the clock went back or is not set."""
    try:
        with open(path, encoding="ascii") as file:
            last = int(file.read())
    except (OSError, ValueError):
        last = 0
    incarnation = max(last + 1, time.time_ns() // 1_000_000)
    write_private(path, str(incarnation).encode())
    return incarnation


def _socket_path(slot_path: str) -> str:
    path = os.path.join(slot_path, _SOCKET_NAME)
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        return path
    tag = hashlib.sha256(os.fsencode(os.path.abspath(slot_path))).hexdigest()[:16]
    bases = [os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"]
    for base in bases:
        path = os.path.join(base, f"edgeagent-{os.getuid()}", f"{tag}.sock")
        if os.path.isdir(base) and len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
            _private_folder(os.path.dirname(path))
            return path
    raise UsageError(f"no folder is short enough for a command socket; tried {bases}")


def _private_folder(path: str) -> None:
    """Make `path` a folder of this user only; refuse one that another user has prepared."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise UsageError(f"{path} is not a folder of this user: remove it")
    os.chmod(path, 0o700)


def _subfolders(path: str) -> list[str]:
    if stranger(path) is not None:
        return []
    try:
        return sorted(entry.path for entry in os.scandir(path) if entry.is_dir())
    except OSError:
        return []


def _read_record(folder: str) -> RunningAgent | None:
    try:
        with open(os.path.join(folder, _RECORD_NAME), encoding="utf-8") as file:
            values = json.load(file)
        return RunningAgent(
            str(values["cluster"]),
            str(values["name"]),
            int(values["slot"]),
            int(values["pid"]),
            str(values["socket"]),
            str(values.get("machine", "")),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
