"""Finding or starting the agent process that belongs to this trainer.

Under `edgeagent run` the agent has started this process and left the descriptor of the hand-over
socket in the environment variable `EDGEAGENT_SOCKET`. A plain `python script.py` starts an agent
itself, in a process group of its own, so that Ctrl+C in the terminal reaches the trainer alone: it
leaves gracefully, for which it needs its agent.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from typing import TYPE_CHECKING

from edgeagent.config import RUN_VARIABLE, SOCKET_VARIABLE
from edgeagent.errors import AgentLost, UsageError
from edgeagent.launch import module_command, package_environment
from edgeagent.trainer import endings
from edgeagent.trainer.workers import keep_from_workers

if TYPE_CHECKING:
    from collections.abc import Iterator

# The module that an agent of a plain script runs.
AGENT_MODULE = "edgeagent.agent_process"
# How many seconds a child agent may take to end by itself, since it tells its neighbours first.
AGENT_END_SECONDS = 10.0
# How many seconds may pass between the end of an agent's connection and that of its process.
AGENT_GONE_SECONDS = 2.0


class AgentConnection:
    """The hand-over socket, and the agent process if it is this process's child."""

    def __init__(self, connection: socket.socket, child: subprocess.Popen[bytes] | None) -> None:
        self.connection = connection
        self.child = child

    @property
    def plain(self) -> bool:
        """Return whether this is a plain script that started its own agent."""
        return self.child is not None

    def exit_status(self) -> int:
        """Return the positive exit status that a child agent has ended with, or 0."""
        if self.child is None:
            return 0
        with contextlib.suppress(subprocess.TimeoutExpired):
            return max(0, self.child.wait(AGENT_GONE_SECONDS))
        return 0

    def finish(self) -> None:
        """Wait for a child agent to end, and terminate it after `AGENT_END_SECONDS`."""
        if self.child is None:
            return
        try:
            self.child.wait(AGENT_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(1.0)


@contextlib.contextmanager
def ended_with_a_reason(agent: AgentConnection) -> Iterator[None]:
    """Raise `AgentRefused` instead of `AgentLost` if the agent in this block gave a reason.

    That is so if it is a child of this process that ended with an error: it has printed why, and
    its exit status becomes the script's.
    """
    try:
        yield
    except AgentLost as error:
        if status := agent.exit_status():
            raise endings.AgentRefused(str(error), status, shown=True) from None
        raise


def connect_agent() -> AgentConnection:
    """Return the connection to this trainer's agent.

    Raises `UsageError` if the descriptor in the environment is no socket, or if it was used by
    another `Trainer` of this script before.
    """
    text = os.environ.pop(SOCKET_VARIABLE, None)
    if text is not None:
        try:
            connection = socket.socket(fileno=int(text))
        except (OSError, ValueError):
            raise UsageError(f"{SOCKET_VARIABLE}={text} names no open socket") from None
        connection.set_inheritable(False)
        keep_from_workers(connection.close)
        return AgentConnection(connection, None)
    if RUN_VARIABLE in os.environ:
        raise UsageError("there can be one Trainer in a script under `edgeagent run`")
    return _start_agent()


def _start_agent() -> AgentConnection:
    """Start an agent as a child of this process and return the connection to it."""
    ours, theirs = socket.socketpair()
    with theirs:
        descriptor = theirs.fileno()
        child = subprocess.Popen(
            [*module_command(AGENT_MODULE), "--socket", str(descriptor)],
            env=package_environment(os.environ),
            pass_fds=(descriptor,),
            stdin=subprocess.DEVNULL,
            process_group=0,
        )
    keep_from_workers(ours.close)
    return AgentConnection(ours, child)
