"""Seeing a change of the cluster through: what `link`, `expel` and `token rotate` wait for.

Law: every wait is bounded; the user is told what is waited for once it takes longer than a moment.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from edgeagent.errors import EdgeAgentError
from edgeagent.terminal.text import clean

if TYPE_CHECKING:
    from edgeagent.local.changes import ChangeStatus
    from edgeagent.local.state_dir import RunningAgent

WAIT_S = 40.0  # the agent gives an answer sooner, if it runs at all
MOMENT_S = 1.0
POLL_S = 0.05


def see_through(agent: RunningAgent, change: ChangeStatus) -> ChangeStatus:
    """Wait until `change`, which `agent` has begun, is done, and return it.

    Says on stderr what it waits for. Raises `EdgeAgentError` with the reason if it is refused, or
    not done in time.
    """
    from edgeagent.local.api import NoAgent, fetch_change

    started = time.monotonic()
    said = ""
    while change["state"] == "pending":
        elapsed = time.monotonic() - started
        if elapsed > WAIT_S:
            raise EdgeAgentError(f"{agent.name} has no answer after {WAIT_S:.0f} s: start it again")
        if elapsed > MOMENT_S and change["text"] != said:
            said = change["text"]
            print(f"edgeagent: {clean(said)}", file=sys.stderr, flush=True)
        time.sleep(POLL_S)
        try:
            change = fetch_change(agent.socket_path, change["number"])
        except NoAgent:
            raise EdgeAgentError(f"{agent.name} ended before it was done") from None
    if change["state"] == "refused":
        raise EdgeAgentError(change["text"])
    return change
