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
from edgeagent.terminal.text import plural

if TYPE_CHECKING:
    from edgeagent.config import AgentConfig
    from edgeagent.local.status_model import Phase
    from protocols.node import Node


def nobody_found(config: AgentConfig, address: str) -> str:
    """Return why no other agent may have been found, and how to reach this one at `address`."""
    blocked = "multicast may be blocked between devices (guest Wi-Fi, VPN), " if config.mdns else ""
    return (
        f"no other agent of this cluster found yet: none may be running, {blocked}or token or "
        f"cluster name differ; to connect by hand run elsewhere: {command(config, address)}"
    )


def leaving_waits_for(phase: Phase, node: Node | None) -> str:
    """Return what leaving waits for, as the rest of a sentence that begins with "leaving"."""
    if node is None or node.context.policy is None or phase != "training":
        return " before the join is done" if phase == "joining" else " before training begins"
    others = len(node.context.policy.view.members) - 1
    if others == 0:
        return " after the running micro-batch"
    first = "hands the scheduler's role over, then " if node.negotiator is not None else ""
    return f": {first}waits for the running iteration with {plural(others, 'other')}"


def trained_before(iteration: int, samples: int, path: str, error: str) -> str:
    """Return what becomes of the state of a cluster that gives way: kept in `path`, or lost by
    `error`; "" if there is nothing to say."""
    what = f"what was trained here before (to step {iteration})"
    if error:
        return f"{what} is lost: {error}"
    if path:
        return f"{what} is kept in {path}"
    return f"{what} is dropped: there is no --save file to keep it beside" if samples > 0 else ""


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
