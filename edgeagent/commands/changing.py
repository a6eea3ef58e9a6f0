"""Waits for a change of the cluster, as `link`, `expel` and `token rotate` have asked for it.

Every wait is bounded, and if it takes longer than a moment the user is told what it is for.
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

WAIT_S = 40.0  # longer than the agent itself takes to give up, so that its reason is shown
MOMENT_S = 1.0  # after which the user is told what is waited for
POLL_S = 0.05


def see_through(agent: RunningAgent, change: ChangeStatus) -> ChangeStatus:
    """Wait until `change`, which `agent` has begun, is done, and return it.

    What it waits for is said on stderr. Raises `EdgeAgentError` with the reason if the change is
    refused or not done in time.
    """
    from edgeagent.local.api import NoAgent, fetch_change

    started = time.monotonic()
    said = ""
    while change["state"] == "pending":
        elapsed = time.monotonic() - started
        if elapsed > WAIT_S:
            raise EdgeAgentError(
                f"{agent.name} has not answered within {WAIT_S:.0f} s: see in `edgeagent status` "
                "whether it was done, and otherwise give the command again"
            )
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
