"""A container engine: the one that runs on this machine, or one that this process starts and ends.

    with own_engine() as engine:
        print(engine.docker("version"))

Our own engine has no bridge and changes no packet filter, because the testbed makes the network
itself. It listens on a socket in a folder of its own, whose name contains the pid of this process.
The engine, all its containers and that folder are gone after the `with`. If this process is killed
the kernel ends the engine, too; `clean_engines` then removes the folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.namespaces import TestbedError, new_owner, parse

START_S = 30.0
END_S = 20.0  # it has to end its containers
POLL_S = 0.02
COMMAND_S = 60.0
NODE = "engine"  # in names of the testbed, this stands in the place of a node
PACKAGES = {"docker": "docker.io", "dockerd": "docker.io", "setpriv": "util-linux"}
DAEMON_OPTIONS = (
    "--bridge=none",
    "--iptables=false",
    "--ip6tables=false",
    "--ip-masq=false",
    "--ip-forward=false",
)
MAX_SOCKET = 107  # bytes of a socket's path that the kernel takes
LONGEST_SOCKET = "exec/containerd/containerd.sock.ttrpc"


@dataclass(frozen=True, slots=True)
class Engine:
    """Where containers run; `host` as in `docker --host`, "" for what docker itself chooses."""

    host: str = ""

    def command(self, *arguments: str) -> list[str]:
        """Return the command that does one thing with docker."""
        return [
            tool("docker") or "docker",
            *(("--host", self.host) if self.host else ()),
            *arguments,
        ]

    def docker(self, *arguments: str, data: bytes = b"") -> str:
        """Run a docker command; return what it printed. Raises `TestbedError` with its message if
        it fails."""
        try:
            ended = subprocess.run(
                self.command(*arguments),
                input=data,
                capture_output=True,
                check=False,
                timeout=COMMAND_S,
            )
        except OSError as error:
            raise TestbedError(f"docker: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise TestbedError(f"docker {arguments[0]} takes more than {COMMAND_S:g} s") from None
        if ended.returncode != 0:
            said = " ".join(ended.stderr.decode(errors="replace").split())
            raise TestbedError(f"docker {arguments[0]}: {said or ended.returncode}")
        return ended.stdout.decode(errors="replace").strip()

    @property
    def answers(self) -> bool:
        """Whether the engine answers."""
        with contextlib.suppress(TestbedError):
            return bool(self.docker("version", "--format", "{{.Server.Version}}"))
        return False


def tool(name: str) -> str | None:
    """Return the path of a command; that of its own package comes first if there are several."""
    return shutil.which(name, path=os.pathsep.join(["/usr/bin", "/usr/sbin", os.environ["PATH"]]))


def missing() -> str:
    """Return why no engine of our own can start here, in one sentence; empty if nothing is
    missing."""
    if os.geteuid() != 0:
        return "a container engine needs root"
    lacking = [name for name in PACKAGES if tool(name) is None]
    if lacking:
        packages = " ".join(sorted({PACKAGES[name] for name in lacking}))
        return f"{', '.join(lacking)} not found: install {packages}"
    return ""


@contextlib.contextmanager
def any_engine() -> Iterator[Engine]:
    """Yield the engine that docker itself uses, or one of our own if that does not answer."""
    running = Engine()
    if tool("docker") and running.answers:
        yield running
    else:
        with own_engine() as engine:
            yield engine


@contextlib.contextmanager
def own_engine() -> Iterator[Engine]:
    """Start an engine; raise `TestbedError` if it does not start."""
    if why := missing():
        raise TestbedError(why)
    folder = Path(tempfile.gettempdir()) / new_owner().namespace(NODE)
    if len(os.fsencode(folder / LONGEST_SOCKET)) > MAX_SOCKET:
        folder = Path("/tmp") / folder.name
    folder.mkdir(mode=0o700)
    process: subprocess.Popen[bytes] | None = None
    try:
        engine = Engine(f"unix://{folder}/socket")
        process = _start(folder, engine)
        _await(engine, process, folder)
        yield engine
    finally:
        _end(process, folder)


def _start(folder: Path, engine: Engine) -> subprocess.Popen[bytes]:
    command = [tool("setpriv") or "", "--pdeathsig", "TERM", tool("dockerd") or "", *DAEMON_OPTIONS]
    command += [f"--data-root={folder}/data", f"--exec-root={folder}/exec"]
    command += [f"--pidfile={folder}/pid", f"--host={engine.host}"]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _await(engine: Engine, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + START_S
    while not ((folder / "socket").exists() and engine.answers):
        if process.poll() is not None or time.monotonic() > deadline:
            lines = (folder / "log").read_text(errors="replace").splitlines()
            raise TestbedError(f"the container engine does not start: {' '.join(lines[-1:])}")
        time.sleep(POLL_S)


def _end(process: subprocess.Popen[bytes] | None, folder: Path) -> None:
    """End the engine in order, then whatever is left of it, and remove its folder."""
    if process is not None:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    _remove(folder)


def _remove(folder: Path) -> int:
    """Kill the processes that work in this folder, unmount and remove it; return how many
    processes were killed."""
    killed: set[int] = set()
    deadline = time.monotonic() + END_S
    while found := _pids(folder):
        for pid in found:
            killed.add(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TestbedError(f"processes {found} of {folder} do not end")
        time.sleep(POLL_S)
    for place in _mounts(folder):
        subprocess.run(["umount", "--lazy", place], capture_output=True, check=False)
    shutil.rmtree(folder, ignore_errors=True)
    return len(killed)


def _pids(folder: Path) -> list[int]:
    """Return the engine's own processes: the folder is in their command lines."""
    name = os.fsencode(folder)
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if name in Path(f"/proc/{pid}/cmdline").read_bytes() and int(pid) != os.getpid():
                found.append(int(pid))
    return found


def _mounts(folder: Path) -> list[str]:
    """Return the mount points below a folder, the innermost first."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        places = [line.split()[4] for line in file]
    return sorted((p for p in places if p.startswith(f"{folder}/")), key=len, reverse=True)


def clean_engines(everything: bool = False) -> int:
    """Remove engines of our own that processes which have ended left behind, with `everything` also
    those of running processes; return how many."""
    count = 0
    for where in dict.fromkeys((tempfile.gettempdir(), "/tmp")):
        for folder in Path(where).iterdir():
            found = parse(folder.name)
            if found and found[1] == NODE and (everything or not found[0].lives):
                _remove(folder)
                count += 1
    return count
