"""Starts agents and trainers of scenarios as forks of one process that has imported everything.

A trainer spends most of its processor time at its start on importing PyTorch, and an agent on its
own modules; with hundreds of scenarios that is more than half of all their time. So each test
process starts one `Template`, which imports both and then waits. `starts` replaces the one
function of `subprocess` that makes a process. A command that runs this Python with a script or a
module, also in a network namespace, is then run by a fork of the template; any other one starts as
usual.

What a test sees of the process is as if it had been started anew:

- Its parent is the process that has started it, which so learns its exit status from the kernel.
  For that, the template forks a process that forks it and ends at once, and the kernel gives an
  orphan to the nearest ancestor that has asked for orphans (PR_SET_CHILD_SUBREAPER).
- It has the arguments, environment, folder, descriptors, session and process group that were asked
  for, and runs its program as `__main__` to the end of the interpreter.
- An agent starts its trainer itself, and a plain script its agent. For that, each fork makes
  another one at its beginning, the spare, which is its child and waits until it starts a process.

What it does not see: modules that would not be imported in a fresh process, and the same seed of
hashes in all processes of a test. Therefore `scripts/test --long` starts all of them anew, and so
do scripts outside of tests. A program that changes modules before others import them, or that uses
PyTorch's compiler, always does (`fresh` in `cluster.py`).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from edgeagent.config import THREAD_VARIABLES
from edgeagent.launch import PACKAGE_PARENT, package_environment
from edgeagent.lifetime import dies_with_parent

QUICK = Path(__file__).resolve().parent / "quick"  # spares trainers the import of a compiler
PRELOADED = (
    "torch",
    "torch.utils.data",
    "edgeagent.trainer",
    "edgeagent.agent",
    "edgeagent.cli",
    "edgeagent.command_line",
)
# What is read before the first line of a program, so that a fork cannot change it any more.
READ_AT_START = ("PYTHON", "LD_", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "TORCH_", "MALLOC_")
MOST_BYTES = 1 << 17  # of a request: mostly the environment
MOST_DESCRIPTORS = 64
ABOVE_ALL = 512  # a number that no descriptor of a new process has
SET_CHILD_SUBREAPER = 36  # of prctl(2)
NEW_NETWORK, NEW_MOUNTS = 0x40000000, 0x00020000  # of setns(2) and unshare(2)
MOUNT_SLAVE, MOUNT_ALL, MOUNT_DETACH = 1 << 19, 1 << 14, 2  # of mount(2) and umount2(2)

# Typed as anything, because what is used of them is private to Python's library.
PROCESSES: Any = subprocess
MODULES: Any = runpy
THREADING: Any = threading

Request = dict[str, Any]
Ask = Callable[[Request, Sequence[int]], int | None]  # returns a process id, None if it cannot


class Template:
    """A process that has imported PyTorch and edgeagent, and forks what it is asked for. It ends
    with the process that has started it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kept = {k: v for k, v in os.environ.items() if not k.startswith("EDGEAGENT_")}
        threads = dict.fromkeys(THREAD_VARIABLES, "1")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                env=package_environment(quick({**kept, **threads})),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=dies_with_parent(),
            )
        self._connection = ours

    def ask(self, request: Request, descriptors: Sequence[int]) -> int:
        """Have a process forked; return its id."""
        process_control = ctypes.CDLL(None).prctl
        process_control(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            send(self._connection, request, descriptors)
            pid, done = self._connection.recv(16), self._connection.recv(16)
            assert done, "the template has ended"
        finally:
            process_control(SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        return int(pid)


class Use:
    """Whether tests use a template, and which. `tests/conftest.py` decides that for a run."""

    allowed = False

    @functools.cached_property
    def template(self) -> Template:
        """The template, which is started when it is first asked for."""
        return Template()


USE = Use()


@contextlib.contextmanager
def starts(*, spare: bool) -> Iterator[None]:
    """Let the template start processes while the block runs, if tests use one. `spare`: these
    processes start one, too."""
    if not USE.allowed:
        yield
        return
    usual = PROCESSES._fork_exec
    template = USE.template
    replacement = through(
        lambda request, fds: template.ask({**request, "spare": spare}, fds), usual
    )
    PROCESSES._fork_exec = replacement
    try:
        yield
    finally:
        PROCESSES._fork_exec = usual


def quick(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` for a process that need not import PyTorch's compiler, and that may be
    forked."""
    path = [str(QUICK), *filter(None, [environment.get("PYTHONPATH")])]
    return {**environment, "PYTHONPATH": os.pathsep.join(path)}


def through(ask: Ask, usual: Callable[..., int]) -> Callable[..., int]:
    """Return what takes the place of `_posixsubprocess.fork_exec`, with its arguments."""

    def fork_exec(*arguments: Any) -> int:
        (command, _, _, kept, folder, environment, stdin, _, _, stdout, _, stderr, _, error) = (
            arguments[:14]
        )
        (_, new_session, group, gid, gids, uid, umask, bind, *_) = arguments[14:]
        words, namespace = inside([os.fsdecode(word) for word in command])
        settings = settings_of(environment)
        plain = gid is None and gids is None and uid is None and umask == -1
        if plain and can_fork(words, settings):
            streams = [own if n == -1 else n for own, n in enumerate((stdin, stdout, stderr))]
            others = [n for n in kept if n not in (error, 0, 1, 2)]
            request = {
                "command": words,
                "environment": settings,
                "folder": os.path.abspath(os.fsdecode(folder) if folder else "."),
                "numbers": [0, 1, 2, *others],
                "session": bool(new_session),
                "group": group,
                "bound": bind is not None,
                "namespace": namespace,
            }
            if (pid := ask(request, [*streams, *others])) is not None:
                return pid
        return usual(*arguments)

    return fork_exec


def inside(command: list[str]) -> tuple[list[str], str]:
    """Return what `ip netns exec` runs, and in which network namespace; "" if it is not that."""
    if command[:3] == ["ip", "netns", "exec"]:
        return command[4:], command[3]
    return command, ""


def settings_of(environment: Sequence[bytes] | None) -> dict[str, str]:
    """Return the environment that `fork_exec` is given as a list, or else this process's."""
    if environment is None:
        return dict(os.environ)
    pairs = (os.fsdecode(entry).partition("=") for entry in environment)
    return {key: value for key, _, value in pairs}


def can_fork(command: Sequence[str], settings: Mapping[str, str]) -> bool:
    """Whether a fork of the template may run this command as if it had been started anew."""
    if command[0] != sys.executable or settings.get(THREAD_VARIABLES[0]) != "1":
        return False
    path = settings.get("PYTHONPATH", "").split(os.pathsep)
    known = [str(QUICK), PACKAGE_PARENT, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    if str(QUICK) not in path or any(place not in known for place in path):
        return False
    special = {k: v for k, v in settings.items() if k.startswith(READ_AT_START)}
    special = {k: v for k, v in special.items() if k != "PYTHONPATH" and k not in THREAD_VARIABLES}
    threads = [settings.get(name, "1") for name in THREAD_VARIABLES]
    if any(os.environ.get(k) != v for k, v in special.items()) or threads != ["1"] * len(
        THREAD_VARIABLES
    ):
        return False
    words = [word for word in command[1:] if word != "-P"][:1]
    return words == ["-m"] or (bool(words) and not words[0].startswith("-"))


def send(connection: socket.socket, request: Request, descriptors: Sequence[int]) -> None:
    """Send a request with the descriptors that the new process is to have."""
    socket.send_fds(connection, [json.dumps(request).encode()], list(descriptors))


def receive(connection: socket.socket) -> tuple[Request, list[int]] | None:
    """Wait for a request; return it with its descriptors, None if the other end is closed."""
    data, descriptors, _, _ = socket.recv_fds(connection, MOST_BYTES, MOST_DESCRIPTORS)
    return (json.loads(data), descriptors) if data else None


def serve(connection: socket.socket) -> tuple[Request, list[int]]:
    """Fork a process for each request. Returns in these processes, with what to run."""
    while (received := receive(connection)) is not None:
        between = os.fork()
        if between == 0:
            parent = os.getpid()
            child = os.fork()
            if child == 0:
                while os.getppid() == parent:
                    time.sleep(0.001)
                return received
            connection.send(str(child).encode())
            os._exit(0)
        os.waitpid(between, 0)  # from here on the child is its starter's
        connection.send(b"done")
        for descriptor in received[1]:
            os.close(descriptor)
    os._exit(0)


def take_over(request: Request, descriptors: Sequence[int]) -> None:
    """Give this process the descriptors, the folder and the environment that were asked for."""
    above = [fcntl.fcntl(n, fcntl.F_DUPFD, ABOVE_ALL) for n in descriptors]
    os.closerange(3, ABOVE_ALL)
    for source, number in zip(above, request["numbers"], strict=True):
        os.dup2(source, number)
        os.close(source)
    # Streams know whether their files can seek, and by what they are buffered.
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        setattr(sys, name, stream(number, getattr(sys, name)))
        setattr(sys, f"__{name}__", getattr(sys, name))
    if request["namespace"]:
        enter(request["namespace"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if request["session"]:
        os.setsid()
    if request["group"] >= 0:
        os.setpgid(0, request["group"])


def stream(number: int, old: io.TextIOWrapper) -> io.TextIOWrapper:
    """Return a standard stream like the `old` one, for the file that its number names now."""
    file = io.FileIO(number, "r" if number == 0 else "w", closefd=False)
    data: Any = io.BufferedReader(file) if number == 0 else file
    if number != 0 and not old.write_through:
        data = io.BufferedWriter(file)
    return io.TextIOWrapper(
        data, old.encoding, old.errors, None, old.line_buffering, old.write_through
    )


def enter(namespace: str) -> None:
    """Go into a network namespace as `ip netns exec` does: /sys has to show its interfaces."""
    library = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}", "rb") as file:
        done = [library.setns(file.fileno(), NEW_NETWORK), library.unshare(NEW_MOUNTS)]
    done.append(library.mount(b"", b"/", b"none", MOUNT_SLAVE | MOUNT_ALL, None))
    done.append(library.umount2(b"/sys", MOUNT_DETACH))
    done.append(library.mount(namespace.encode(), b"/sys", b"sysfs", 0, None))
    assert not any(done), f"{namespace} cannot be entered: {os.strerror(ctypes.get_errno())}"


def make_spare() -> tuple[Request, list[int]] | None:
    """Fork a child that waits until this process starts one. Returns None here, and in the child
    what it is to run."""
    bind = dies_with_parent()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    spare = os.fork()
    if spare == 0:
        ours.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is nothing yet that could be interrupted
        received = receive(theirs)
        if received is None:
            os._exit(0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if received[0]["bound"] and bind is not None:
            bind()
        return received
    theirs.close()
    left = [spare]

    def ask(request: Request, descriptors: Sequence[int]) -> int | None:
        if not left:
            return None
        send(ours, request, descriptors)
        return left.pop()

    usual = PROCESSES._fork_exec
    PROCESSES._fork_exec = through(ask, usual)
    return None


def run(command: Sequence[str], path: Sequence[str]) -> None:
    """Run a script or a module as Python does with this command line. `path`: where modules are
    found besides those of the environment."""
    words = list(command[1:])
    safe = "-P" in words[:1]
    words = words[safe:]
    of_environment = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    is_module = words[0] == "-m"
    first = os.getcwd() if is_module else os.path.dirname(os.path.realpath(words[0]))
    sys.path[:] = dict.fromkeys([*([] if safe else [first]), *of_environment, *path])
    sys.orig_argv[:] = command
    sys.argv[:] = words[1:] if is_module else words
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if is_module:
        MODULES._run_module_as_main(words[1])
        return
    main.__file__ = os.path.abspath(words[0])
    main.__dict__["__builtins__"] = __builtins__
    exec(compile(Path(words[0]).read_bytes(), words[0], "exec"), main.__dict__)


def end(status: object) -> NoReturn:
    """End this process with what its program has passed to `sys.exit`. The interpreter would take
    0.1 s and more to free all that the template has imported, of which no test sees anything."""
    THREADING._shutdown()
    atexit._run_exitfuncs()
    if isinstance(status, str):
        print(status, file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status & 0xFF if isinstance(status, int) else int(status is not None))


def main() -> None:
    """Import everything, then be the template, and in each fork what was asked for."""
    for name in PRELOADED:
        __import__(name)
    of_environment = os.environ["PYTHONPATH"].split(os.pathsep)
    path = [p for p in sys.path if p not in of_environment]
    gc.collect()
    gc.freeze()  # a fork then shares these objects' memory for longer
    connection = socket.socket(fileno=int(sys.argv[1]))
    request, descriptors = serve(connection)
    connection.close()
    take_over(request, descriptors)
    if request["spare"] and (received := make_spare()) is not None:
        request, descriptors = received
        take_over(request, descriptors)
    try:
        run(request["command"], path)
    except SystemExit as ended:  # what else is raised, the interpreter reports
        end(ended.code)
    end(None)


if __name__ == "__main__":
    main()
