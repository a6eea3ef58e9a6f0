"""Finding or starting the agent process that belongs to this trainer.

Law: under `edgeagent run` the agent started this process and left the hand-over socket's descriptor
in `EDGEAGENT_SOCKET`; a plain `python script.py` starts an agent of its own, in a process group of
its own, so that Ctrl+C in the terminal reaches the trainer alone.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess

from edgeagent.config import RUN_VARIABLE, SOCKET_VARIABLE
from edgeagent.errors import UsageError
from edgeagent.launch import module_command, package_environment

AGENT_MODULE = "edgeagent.agent_process"
AGENT_END_SECONDS = 10.0


class AgentConnection:
    """The hand-over socket, and the agent process if it is this process's child."""

    def __init__(self, connection: socket.socket, child: subprocess.Popen[bytes] | None) -> None:
        self.connection = connection
        self.child = child

    @property
    def plain(self) -> bool:
        """Return whether this is a plain script that started its own agent."""
        return self.child is not None

    def finish(self) -> None:
        """Wait for a child agent to end; after `AGENT_END_SECONDS`, end it."""
        if self.child is None:
            return
        try:
            self.child.wait(AGENT_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(1.0)


def connect_agent() -> AgentConnection:
    """Return the connection to this trainer's agent.

    Raises `UsageError` if the descriptor in the environment is no socket, or is already in use.
    """
    text = os.environ.pop(SOCKET_VARIABLE, None)
    if text is not None:
        try:
            connection = socket.socket(fileno=int(text))
        except (OSError, ValueError):
            raise UsageError(f"{SOCKET_VARIABLE}={text} names no open socket") from None
        connection.set_inheritable(False)
        return AgentConnection(connection, None)
    if RUN_VARIABLE in os.environ:
        raise UsageError("there can be one Trainer in a script under `edgeagent run`")
    return _start_agent()


def _start_agent() -> AgentConnection:
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
    return AgentConnection(ours, child)
