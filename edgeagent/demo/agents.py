"""The demo's agents: real `edgeagent run` processes on loopback, each in a session of its own.

Whatever happens, `Team.stop` leaves no process behind and returns within a bounded time. Each agent
has a session of its own so that all processes that it has started can be found and ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edgeagent.demo.report import Event, last_iteration, parse_events
from edgeagent.launch import module_command, package_environment
from edgeagent.terminal.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LEAVE_GRACE_S = 3.0  # time to leave gracefully after the first SIGTERM
TERMINATE_GRACE_S = 1.0  # time to end after the second SIGTERM, before SIGKILL
KILL_S = 2.0  # time for the kernel to end killed processes
KILL_POLL_S = 0.005
MAX_ERROR_TAIL_BYTES = 4096  # of a log, in which the agent's last complaint is looked for


@dataclass(frozen=True, slots=True)
class AgentFiles:
    """One agent's name, address and files."""

    name: str
    address: str
    events: str
    save: str
    log: str


@dataclass(slots=True)
class DemoAgent:
    """One agent: its files, its process once it is started, the events that it has written."""

    files: AgentFiles
    process: subprocess.Popen[bytes] | None = None
    events: list[Event] = field(default_factory=list)
    latest: dict[str, Event] = field(default_factory=dict)  # kind of event -> the newest one
    iteration: int = 0
    asked_to_leave: bool = False
    killed: bool = False
    _read: int = 0

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self.process is not None and self.process.poll() is None

    @property
    def failure_status(self) -> int:
        """Its exit status if that shows a failure, else 0. An agent that was killed has not
        failed."""
        status = self.process.poll() if self.process is not None else None
        return 0 if status is None or (self.killed and status == -signal.SIGKILL) else status

    def new_events(self) -> list[Event]:
        """Return the events written since the last call."""
        try:
            with open(self.files.events, "rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        fresh = parse_events(whole.decode())
        self.events.extend(fresh)
        self.latest.update((event["event"], event) for event in fresh)
        self.iteration = max(self.iteration, last_iteration({"": fresh}))
        return fresh

    def last(self, event: str) -> Event | None:
        """Return the newest event of that kind."""
        return self.latest.get(event)

    def complaint(self) -> str:
        """Return the agent's last complaint, else the last line of its log, "" if there is none."""
        with contextlib.suppress(OSError), open(self.files.log, "rb") as file:
            file.seek(max(0, os.path.getsize(self.files.log) - MAX_ERROR_TAIL_BYTES))
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line]
            own = [line for line in lines if line.startswith("edgeagent: ")]
            return clean((own or lines or [""])[-1])
        return ""


class Team:
    """The demo's agents, in a temporary folder."""

    def __init__(
        self,
        folder: str,
        names: Sequence[str],
        command: Callable[[AgentFiles, Sequence[str]], Sequence[str]],
        environment: dict[str, str],
    ) -> None:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(len(names))]
        self.agents = {
            name: DemoAgent(
                AgentFiles(
                    name=name,
                    address=address,
                    events=os.path.join(folder, f"{name}.events"),
                    save=os.path.join(folder, f"{name}.safetensors"),
                    log=os.path.join(folder, f"{name}.log"),
                )
            )
            for name, address in zip(names, addresses, strict=True)
        }
        self._command = command
        self._environment = environment

    @property
    def finishers(self) -> list[DemoAgent]:
        """The agents that nobody has asked to leave or killed, which train to the end."""
        return [a for a in self.agents.values() if not (a.asked_to_leave or a.killed)]

    def start(self, name: str) -> None:
        """Start one agent; its `--peer`s are all agents that were started before."""
        agent = self.agents[name]
        peers = [a.files.address for a in self.agents.values() if a.process is not None]
        with open(agent.files.log, "wb") as log:
            agent.process = subprocess.Popen(
                self._command(agent.files, peers),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def ask_to_leave(self, name: str) -> None:
        """Do what Ctrl+C in the agent's terminal does."""
        agent = self.agents[name]
        agent.asked_to_leave = True
        if agent.process is not None and agent.running:
            agent.process.send_signal(signal.SIGINT)

    def kill(self, name: str) -> None:
        """Do what `kill -9` does: the agent has no time to say anything."""
        agent = self.agents[name]
        agent.killed = True
        if agent.process is not None and agent.running:
            agent.process.kill()

    def stop(self) -> None:
        """End every agent and everything that they have started: ask, insist, kill."""
        started = [a.process for a in self.agents.values() if a.process is not None]
        for number, grace in ((signal.SIGTERM, LEAVE_GRACE_S), (signal.SIGTERM, TERMINATE_GRACE_S)):
            running = [process for process in started if process.poll() is None]
            for process in running:
                process.send_signal(number)
            _wait_all(running, grace)
        for process in started:
            _kill_session(process.pid)
            process.wait()


def _wait_all(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))


def _kill_session(leader: int) -> None:
    """Kill the session of `leader`, a child of this process, until no process is left in it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    deadline = time.monotonic() + KILL_S
    while (members := session_members(leader)) and time.monotonic() < deadline:
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(KILL_POLL_S)


def session_members(leader: int) -> list[int]:
    """Return the living processes of a session, from /proc; none where there is no /proc."""
    members = []
    try:
        entries = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return []
    for pid in entries:
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            if fields[0] != "Z" and int(fields[3]) == leader:
                members.append(pid)
    return members


def free_ports(count: int) -> list[int]:
    """Return `count` loopback ports that are free at present."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            probe = stack.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            ports.append(int(probe.getsockname()[1]))
        return ports


def run_command(
    steps: int, *, divided: bool = False
) -> Callable[[AgentFiles, Sequence[str]], Sequence[str]]:
    """Return the function that builds `edgeagent run digits ...` for one agent. `divided`: with the
    optimizer's state divided among them."""

    def command(files: AgentFiles, peers: Sequence[str]) -> list[str]:
        arguments = [*module_command("edgeagent"), "run", "digits", "--no-mdns", "--threads", "1"]
        arguments += ["--name", files.name, "--listen", files.address, "--steps", str(steps)]
        arguments += ["--events", files.events, "--save", files.save]
        arguments += ["--shard-optimizer"] if divided else []
        for peer in peers:
            arguments += ["--peer", peer]
        return arguments

    return command


def agent_environment(home: str, token: str, environment: Any = os.environ) -> dict[str, str]:
    """Return the agents' environment: this process's without its own settings for edgeagent."""
    kept = {k: v for k, v in environment.items() if not k.startswith("EDGEAGENT_")}
    kept |= {"EDGEAGENT_HOME": home, "EDGEAGENT_TOKEN": token, "OMP_NUM_THREADS": "1"}
    return package_environment(kept)
