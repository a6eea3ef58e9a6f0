"""The network of `network.py` with a container for each node: where its processes run.

    with own_engine() as engine, ContainerNetwork(["a", "b"], engine=engine, folder=out) as net:
        net.popen("a", ["python3", "-m", "http.server"])

The engine makes the containers with no network at all, and the testbed moves its own into them. So
a link is the same with either backend, and `tc` shows and changes it from inside: a container may
administer its own network. Without an image of the user's, containers see the host's programs and
this project, read-only, at the same paths.

`close` removes everything. Signals reach the process inside, and not the client that started it.
Inside, only `folder` can be written.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.scenarios.processes import living
from tests.testbed.namespaces import TestbedError, run
from tests.testbed.network import Network

if TYPE_CHECKING:
    from tests.testbed.engine import Engine

ROOT = Path(__file__).resolve().parents[2]
SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/etc/ssl",
    "/etc/alternatives",
    "/etc/ld.so.cache",
)
LIFE_VARIABLE = "EDGEBED_LIFE"  # marks the processes that one `popen` has started
BEGIN_S = 20.0  # within this time a process has started inside
POLL_S = 0.01
EMPTY_ARCHIVE = bytes(10240)  # tar's two blocks of zeros, padded
OUR_VARIABLES = ("EDGEAGENT_", "OMP_NUM_THREADS")  # passed on to an image's own Python


def marked(pid: int, life: str) -> bool:
    """Whether a process was started with this mark."""
    with contextlib.suppress(OSError):
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return f"{LIFE_VARIABLE}={life}".encode() in environment
    return False


class ContainerProcess(subprocess.Popen[bytes]):
    """The client of a process in a container: it ends as that process does, and passes signals
    on."""

    life = ""
    _session = 0

    @property
    def session(self) -> int:
        """The session inside as the host numbers it; the client's own if there is none."""
        if not self._session:
            for process in (p for p in living() if p.session != self.pid):
                if marked(process.pid, self.life):
                    self._session = process.session
                    break
        return self._session or self.pid

    def send_signal(self, sig: int) -> None:
        """Send a signal to the process inside, once it is there."""
        deadline = time.monotonic() + BEGIN_S
        while self.poll() is None:
            if self.session != self.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.session, sig)
                return
            if time.monotonic() > deadline:
                raise TestbedError(f"nothing runs in the container after {BEGIN_S:g} s")
            time.sleep(POLL_S)


class ContainerNetwork(Network):
    """Nodes in containers, and a link in each direction between any two of them."""

    def __init__(
        self,
        nodes: Sequence[str],
        *arguments: Any,
        engine: Engine,
        folder: Path,
        image: str = "",
        readable: Sequence[Path] = (),
        **options: Any,
    ) -> None:
        """Describe it, as a `Network`.

        folder: what containers may write, at the same path. image: one with edgeagent installed
        for its `python3`; "" for the host's programs in an empty one. readable: further paths
        that they may read.
        """
        super().__init__(nodes, *arguments, **options)
        self.engine = engine
        self._folder = folder.resolve()
        self._image = image
        self._readable = tuple(readable)
        self._lives = 0
        self._made: list[str] = []

    # --- making and removing ------------------------------------------------------------------

    def close(self) -> None:
        """Remove the containers and all processes in them, then the network. Idempotent."""
        made, self._made = self._made, []
        try:
            for container in made:
                with contextlib.suppress(TestbedError):  # the network's end kills what still runs
                    self.engine.docker("rm", "--force", container)
        finally:
            super().close()
        if made and not self._image:
            with contextlib.suppress(TestbedError):
                self.engine.docker("image", "rm", "--force", self._empty_image)

    @property
    def _empty_image(self) -> str:
        return f"{self.namespace('image')}:empty"

    def _add_namespaces(self, names: Sequence[str]) -> None:
        if not self._image:
            self.engine.docker("import", "-", self._empty_image, data=EMPTY_ARCHIVE)
        for name in names:
            self._made.append(name)
            command = ["run", "--detach", "--rm", "--name", name, "--hostname", name[-63:]]
            command += ["--pull=never", "--network=none", "--cap-add=NET_ADMIN"]
            command += ["--stop-signal=KILL", "--tmpfs=/tmp:exec", *self._mounts()]
            command += [f"--env={LIFE_VARIABLE}={name}", "--entrypoint=sleep"]
            command += [self._image or self._empty_image, "infinity"]
            self.engine.docker(*command)
            run("ip", "netns", "attach", name, str(self._first_pid(name)))

    def _first_pid(self, name: str) -> int:
        """Return the pid of a container's first process. Raises `TestbedError` if it is not on this
        machine: if the engine runs elsewhere, the pid may be that of any process here.
        """
        pid = int(self.engine.docker("inspect", "--format={{.State.Pid}}", name))
        deadline = time.monotonic() + BEGIN_S
        while not marked(pid, name):
            if time.monotonic() > deadline or not os.path.exists(f"/proc/{pid}"):
                raise TestbedError("docker's containers do not run on this machine")
            time.sleep(POLL_S)
        return pid

    def _mounts(self) -> list[str]:
        wanted = [*map(str, self._readable)]
        if not self._image:
            wanted += [*SYSTEM, sys.prefix, sys.base_prefix, str(ROOT)]
            wanted += [place for place in sys.path if place.endswith("-packages")]
        paths = sorted({p for p in wanted if os.path.isabs(p) and os.path.exists(p)}, key=len)
        kept: list[str] = []
        for path in paths:
            if not any(path.startswith(f"{outer}/") for outer in kept):
                kept.append(path)
        options = [f"--volume={path}:{path}:ro" for path in kept]
        return [*options, f"--volume={self._folder}:{self._folder}"]

    # --- processes ----------------------------------------------------------------------------

    def popen(self, node: str, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a command in a node's container; `cwd` and `env` are those inside."""
        self._lives += 1
        life = f"{self.namespace(node)}-{self._lives}"
        given = options.pop("env", None)
        inside = dict(os.environ if given is None else given)
        command = list(command)
        if self._image:
            inside = {k: v for k, v in inside.items() if k.startswith(OUR_VARIABLES)}
            command[0] = "python3" if command[0] == sys.executable else command[0]
        inside[LIFE_VARIABLE] = life
        words = ["exec", "--workdir", str(options.pop("cwd", self._folder))]
        for name in inside:
            words += ["--env", name]  # its value stays out of the command line
        options.setdefault("start_new_session", True)
        client = self.engine.command(*words, self.namespace(node), *command)
        process = ContainerProcess(client, env={**os.environ, **inside}, **options)
        process.life = life
        return process

    def session(self, process: subprocess.Popen[bytes]) -> int:
        """Return the session, as the host numbers it, of what `popen` has started."""
        return process.session if isinstance(process, ContainerProcess) else process.pid
