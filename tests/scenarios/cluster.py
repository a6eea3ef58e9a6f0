"""Real agents on loopback: started, watched through their event files, ended.

    with Cluster(tmp_path) as cluster:
        alice = cluster.start("alice", "--steps", "300")
        bob = cluster.start("bob", "--steps", "300", peers=[alice])
        bob.wait("joined")
        assert bob.interrupt() == 0

Every wait ends with what it waits for, or fails within its time and shows what the agent printed.
`close` ends everything that was started here, and nothing else. No agent sends multicast unless it
is told to, so that it finds no agents of other tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgeagent.launch import module_command, package_environment
from edgeagent.transport.token import new_token
from tests.scenarios import forking
from tests.scenarios.processes import children, kill_session, listening_ports

Event = dict[str, Any]

WAIT_S = 60.0  # for what takes a second or two, as the machine may be busy
POLL_S = 0.01
SCRIPTS = Path(__file__).resolve().parent / "scripts"
SMALL = str(SCRIPTS / "small.py")  # a job that sleeps rather than computes
TOKEN = new_token()
OTHER_TOKEN = new_token()
READY = "edgeagent: global batch"  # a trainer prints this just before it introduces itself


@dataclass
class Agent:
    """One agent process, with the trainer that it started (or that started it)."""

    name: str
    process: subprocess.Popen[bytes]
    events_path: Path
    log_path: Path
    save_path: Path
    home: Path
    events: list[Event] = field(default_factory=list)
    _read: int = 0

    # --- what it says -------------------------------------------------------------------------

    @property
    def log(self) -> str:
        """Everything that it has printed so far."""
        return self.log_path.read_text(errors="replace")

    def said(self, text: str) -> list[str]:
        """Return the lines it printed that contain `text`."""
        return [line for line in self.log.splitlines() if text in line]

    def update(self) -> list[Event]:
        """Read the events written since; return all so far."""
        if self.events_path.exists():
            with self.events_path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read += len(whole)
            self.events.extend(json.loads(line) for line in whole.splitlines())
        return self.events

    def all(self, event: str) -> list[Event]:
        """Return all events of one kind so far."""
        return [e for e in self.update() if e["event"] == event]

    def wait_until(self, what: str, done: Callable[[], Any], seconds: float = WAIT_S) -> Any:
        """Wait for `done()` to be true and return its value; fail if the agent ends before."""
        deadline = time.monotonic() + seconds
        while True:
            ended = self.process.poll() is not None
            if value := done():
                return value
            assert not ended, f"{self.name} ended before {what}:\n{self.describe()}"
            assert time.monotonic() < deadline, (
                f"{self.name}: no {what} within {seconds} s:\n{self.describe()}"
            )
            time.sleep(POLL_S)

    def wait(self, event: str, seconds: float = WAIT_S, **values: Any) -> Event:
        """Wait for (the first) event of that kind with these values."""

        def found() -> Event | None:
            for e in self.all(event):
                if all(e.get(key) == value for key, value in values.items()):
                    return e
            return None

        result: Event = self.wait_until(f"event {event} {values}", found, seconds)
        return result

    def wait_said(self, text: str, seconds: float = WAIT_S) -> str:
        """Wait for a line that contains `text`."""
        lines: list[str] = self.wait_until(f"line {text!r}", lambda: self.said(text), seconds)
        return lines[0]

    def wait_ready(self) -> None:
        """Wait until its trainer has loaded everything and can join."""
        self.wait_said(READY)

    def wait_iteration(self, iteration: int) -> None:
        """Wait until that many updates are done."""
        self.wait_until(f"iteration {iteration}", lambda: self.iteration >= iteration)

    def wait_steps(self, count: int) -> None:
        """Wait for `count` more updates than there are now."""
        self.wait_iteration(self.iteration + count)

    def wait_members(self, *names: str, seconds: float = WAIT_S) -> None:
        """Wait until it knows exactly these members, itself included."""
        self.wait_until(f"members {names}", lambda: self.members == sorted(names), seconds)

    @property
    def members(self) -> list[str]:
        """The names of the members that it knows of, sorted."""
        members: list[str] = []
        for e in self.update():
            if e["event"] == "joined":
                members = list(e["members"])
            elif e["event"] == "member_joined":
                members.append(e["node"])
            elif e["event"] == "member_left":
                members.remove(e["node"])
        return sorted(members)

    @property
    def iteration(self) -> int:
        """How many updates are done."""
        steps = self.all("step")
        return steps[-1]["iteration"] if steps else 0

    @property
    def address(self) -> str:
        """The address at which others can join it."""
        address: str = self.wait("started")["address"]
        return address

    @property
    def losses(self) -> dict[int, float]:
        """The loss of each update."""
        return {e["iteration"]: e["loss"] for e in self.all("step")}

    @property
    def digests(self) -> dict[int, str]:
        """The digest of the training state by iteration."""
        return {e["iteration"]: e["state"] for e in self.all("digest")}

    def describe(self) -> str:
        """Return what it did last, for the message of a failed test."""
        last = [json.dumps(e) for e in self.events if e["event"] != "step"][-12:]
        return "\n".join([*last, f"iteration {self.iteration}; it said:", self.log[-3000:]])

    # --- its processes ------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    @property
    def trainer(self) -> int:
        """The process id of its trainer."""
        (pid,) = children(self.process.pid)
        return pid

    @property
    def ports(self) -> list[int]:
        """The ports it listens on."""
        return listening_ports(self.process.pid)

    def signal(self, number: int) -> None:
        """Send a signal to the agent."""
        self.process.send_signal(number)

    def wait_exit(self, seconds: float = WAIT_S) -> int:
        """Wait for its end; return its exit status."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            message = f"{self.name} does not end within {seconds} s:\n{self.describe()}"
            raise AssertionError(message) from None

    def interrupt(self, seconds: float = WAIT_S) -> tuple[int, float]:
        """Do as Ctrl+C in its terminal does; return the exit status and the seconds it took."""
        started = time.monotonic()
        self.signal(signal.SIGINT)
        status = self.wait_exit(seconds)
        return status, time.monotonic() - started

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Stop its trainer while the block runs: the cluster stays at its iteration, and the agent
        goes on. So what happens in the block happens between two iterations, however slow the
        machine starts processes.
        """
        trainer = self.trainer
        os.kill(trainer, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(trainer, signal.SIGCONT)


class Cluster:
    """Starts agents that share the state folder of one device, and ends those that are left."""

    def __init__(
        self,
        folder: Path,
        *,
        job: str = "digits",
        options: Sequence[str] = (),
        fresh: bool = False,
    ) -> None:
        """`job` and `options` are used for every agent that is started without its own. `fresh`:
        processes start and import everything as users' do, PyTorch's compiler included; otherwise
        they are forks of one that has done so (`forking.py`).
        """
        self.folder = folder
        self.job = job
        self.options = tuple(options)
        self.fresh = fresh
        self.home = folder / "home"
        self.agents: list[Agent] = []

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(
        self,
        name: str,
        *options: str,
        peers: Sequence[Agent | str] = (),
        job: str | None = None,
        script: Sequence[str] = (),
        token: str = TOKEN,
        environment: Mapping[str, str] | None = None,
        listen: str = "127.0.0.1:0",
        module: str = "edgeagent",
    ) -> Agent:
        """Start `edgeagent run`. `script`: the arguments after `--`. `module`: run this one instead
        of the command `edgeagent`."""
        command = [*module_command(module), "run", job or self.job, "--name", name]
        command += ["--no-mdns", "--listen", listen, "--threads", "1"]
        command += ["--events", str(self.folder / f"{name}.events")]
        command += ["--save", str(self.folder / f"{name}.safetensors")]
        for peer in peers:
            command += ["--peer", peer.address if isinstance(peer, Agent) else peer]
        command += [*self.options, *options]
        command += ["--", *script] if script else []
        return self.launch(name, command, {"EDGEAGENT_TOKEN": token, **(environment or {})})

    def together(self, *names: str, options: Sequence[str] = (), **settings: Any) -> list[Agent]:
        """Start agents that are all members within the first iterations; the first one founds.

        `options` and `settings` as in `start`.
        """
        founder = self.start(names[0], *options, **settings)
        founder.wait("joined")
        with founder.held():
            others = [self.start(name, *options, peers=[founder], **settings) for name in names[1:]]
            for agent in others:
                agent.wait_ready()
        for agent in (founder, *others):
            agent.wait_members(*names)
        return [founder, *others]

    def plain(
        self, name: str, *command: str, environment: Mapping[str, str] | None = None
    ) -> Agent:
        """Start `python script.py`, without a token: it trains alone."""
        settings = {"EDGEAGENT_NO_MDNS": "1", "EDGEAGENT_NAME": name, **(environment or {})}
        settings["EDGEAGENT_EVENTS"] = str(self.folder / f"{name}.events")
        return self.launch(name, [sys.executable, *command], settings)

    def launch(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path | None = None,
        *,
        fresh: bool = False,
    ) -> Agent:
        """Start `command` in `folder`, with only these settings for edgeagent. `fresh`: let it
        import everything itself, as a program must that changes modules before others see them."""
        log = self.folder / f"{name}.log"
        settings = {"OMP_NUM_THREADS": "1", **environment}
        maybe = contextlib.nullcontext() if fresh else self._forking(spare=True)
        with log.open("wb") as output, maybe:
            process = subprocess.Popen(
                command,
                cwd=folder or self.folder,
                env=self.environment(settings),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        events, save = self.folder / f"{name}.events", self.folder / f"{name}.safetensors"
        agent = Agent(name, process, events, log, save, self.home)
        self.agents.append(agent)
        return agent

    def environment(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of processes, in which edgeagent has only these settings."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("EDGEAGENT_")}
        if not self.fresh:
            kept = forking.quick(kept)
        return package_environment({**kept, "EDGEAGENT_HOME": str(self.home), **settings})

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another `edgeagent` command to its end, as the user of these agents."""
        with self._forking(spare=False):
            return subprocess.run(
                [*module_command("edgeagent"), *arguments],
                env=self.environment({"OMP_NUM_THREADS": "1"}),
                capture_output=True,
                text=True,
                timeout=WAIT_S,
                check=False,
            )

    def _forking(self, *, spare: bool) -> contextlib.AbstractContextManager[None]:
        """Let processes that are started in a block be forks, unless all are to start anew."""
        return contextlib.nullcontext() if self.fresh else forking.starts(spare=spare)

    def status(self, agent: Agent) -> dict[str, Any]:
        """Return what `edgeagent status` says about one agent."""
        ended = self.command("status", "--json", "--name", agent.name)
        assert ended.returncode == 0, ended.stderr
        status: dict[str, Any] = json.loads(ended.stdout)
        return status

    def close(self) -> None:
        """End all agents that still run."""
        for agent in self.agents:
            kill_session(agent.process.pid)
            agent.process.wait()


def free_ports(count: int) -> list[int]:
    """Return loopback ports that were free just now, for agents that must name each other."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
