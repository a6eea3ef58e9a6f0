"""What to tell a user who may be waiting for something that will not happen.

Law: pure text; a command that is printed can be typed as it is.
"""

from __future__ import annotations

import os
import shlex
import traceback
from typing import TYPE_CHECKING

from edgeagent.config import DEFAULT_CLUSTER
from edgeagent.launch import how_it_ended

if TYPE_CHECKING:
    from edgeagent.config import AgentConfig


def nobody_found(config: AgentConfig, address: str) -> str:
    """Return why no other agent may have been found, and how to reach this one at `address`."""
    blocked = "multicast may be blocked between devices (guest Wi-Fi, VPN), " if config.mdns else ""
    return (
        f"no other agent of this cluster found yet: none may be running, {blocked}or token or "
        f"cluster name differ; to connect by hand run elsewhere: {command(config, address)}"
    )


def ended_too_early(job: str, status: int | None) -> str:
    """Return what to say of a trainer that ended, with `status`, before it asked for work."""
    how = "" if status is None else f" with {how_it_ended(status)}"
    why = " (it never called loader())" if status == 0 else ""
    return f"{job} ended{how} before training began{why}"


def internal_error(context: dict[str, object]) -> str:
    """Return what to say of a bug of ours that the event loop caught, with its place."""
    error = context.get("exception")
    place = ""
    if isinstance(error, BaseException) and error.__traceback__:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f" ({os.path.basename(where.filename)}:{where.lineno})"
    what = repr(error) if error is not None else str(context.get("message"))
    return f"internal error: {what}{place}; please report it"


def command(config: AgentConfig, address: str) -> str:
    """Return the command that has another device join this agent."""
    cluster = config.cluster if config.cluster != DEFAULT_CLUSTER else ""
    if not config.command:
        settings = f"EDGEAGENT_CLUSTER={shlex.quote(cluster)} " if cluster else ""
        return f"{settings}EDGEAGENT_PEERS={address} python YOUR_SCRIPT"
    job, *arguments = config.command
    words = ["edgeagent", "run", job, "--peer", address]
    words += ["--cluster", cluster] if cluster else []
    words += ["--", *arguments] if arguments else []
    return shlex.join(words)
