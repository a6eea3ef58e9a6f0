"""`edgeagent stop-all`: all agents of this user on this device leave their clusters gracefully.

All are asked at once and then waited for, so that they leave beside each other. The wait is
bounded, and one agent that cannot be reached does not keep the others.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from edgeagent.commands.leave import LEAVE_TIMEOUT_S, POLL_S
from edgeagent.commands.options import add_command
from edgeagent.errors import EdgeAgentError
from edgeagent.terminal.text import clean

if TYPE_CHECKING:
    import argparse

    from edgeagent.commands.options import Commands
    from edgeagent.local.state_dir import RunningAgent

DESCRIPTION = """\
Ask every agent that you run on this device to leave, whatever its cluster, and
wait until all have. Each saves its model, as at the end of a run. It does not
matter how they were started; those of other users go on.
"""
EXAMPLES = """\
  edgeagent stop-all
"""


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    add_command(
        commands,
        "stop-all",
        execute,
        summary="leave gracefully with every agent of yours on this device",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )


def execute(args: argparse.Namespace) -> int:
    """Ask all agents to leave and wait until they have ended; return the exit status."""
    from edgeagent.config import state_root
    from edgeagent.local.api import NoAgent, ask_to_leave
    from edgeagent.local.state_dir import running_agents

    root = state_root(os.environ)
    agents, asked, failed = list(running_agents(root)), [], []
    if not agents:
        print("no agent runs on this device")
        return 0
    for agent in agents:
        # One that does not listen is starting or ending: whether it ends is seen below.
        try:
            with contextlib.suppress(NoAgent):
                ask_to_leave(agent.socket_path)
            asked.append(agent)
        except EdgeAgentError as error:
            failed.append(f"{_called(agent)}: {error}")
    left = _wait(asked, root)
    failed += [f"{_called(a)} is still leaving after {LEAVE_TIMEOUT_S:.0f} s" for a in left]
    if failed:
        raise EdgeAgentError(f"not all have left: {'; '.join(failed)}")
    return 0


def _wait(agents: list[RunningAgent], root: str) -> list[RunningAgent]:
    """Wait until none of `agents` runs, and name each that has left; return those that still do."""
    from edgeagent.local.state_dir import running_agents

    deadline, waiting = time.monotonic() + LEAVE_TIMEOUT_S, list(agents)
    while True:
        running = {(agent.socket_path, agent.pid) for agent in running_agents(root)}
        gone = [agent for agent in waiting if (agent.socket_path, agent.pid) not in running]
        for agent in gone:
            print(clean(f"{_called(agent)} has left"), flush=True)
        waiting = [agent for agent in waiting if agent not in gone]
        if not waiting or time.monotonic() > deadline:
            return waiting
        time.sleep(POLL_S)


def _called(agent: RunningAgent) -> str:
    return f"{agent.name} (cluster {agent.cluster!r})"
