"""What to tell a user who may be waiting for something that will not happen.

These functions only make text. A command in it can be typed exactly as it is printed.
"""

from __future__ import annotations

import os
import shlex
import traceback
from typing import TYPE_CHECKING

from edgeagent.config import DEFAULT_CLUSTER
from edgeagent.launch import how_it_ended
from edgeagent.terminal.text import plural, shown_path
from protocols import limits
from protocols.cluster.life import Note

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgeagent.config import AgentConfig
    from edgeagent.local.status_model import Phase
    from protocols.cluster.life import Say
    from protocols.member.node import Node


ASIDE = "this device has left the cluster for as long as it stands aside; then it joins again"
ASIDE_NO_MORE = "this device stands aside no longer: joining again"


def nobody_found(config: AgentConfig, address: str) -> str:
    """Return why no other agent may have been found, and how others reach this one at `address`."""
    blocked = "multicast may be blocked between devices (guest Wi-Fi, VPN), " if config.mdns else ""
    return (
        f"no other agent of this cluster found yet: none may be running, {blocked}or token or "
        f"cluster name differ; to connect by hand run elsewhere: {command(config, address)}"
    )


def does_not_answer(address: str, problem: str) -> str:
    """Return the line about an agent that is announced at `address` but cannot be reached."""
    port = address.rsplit(":", 1)[1]
    return (
        f"an agent of this cluster is announced at {address}, but TCP {port} does not answer there "
        f"({problem}): is a firewall between?"
    )


def leaving_waits_for(phase: Phase, node: Node | None, *, hangs: bool = False) -> str:
    """Return what leaving waits for, as the rest of a sentence that begins with "leaving".

    `hangs` says that the others go on without this device because its trainer did not answer.
    """
    if hangs:
        return ": waits for the trainer, which does not answer, for a short while"
    if node is None or node.context.policy is None or phase != "training":
        return " before the join is done" if phase == "joining" else " before training begins"
    others = len(node.context.policy.view.members) - 1
    if others == 0:
        return " after the running micro-batch"
    if node.recovery.missing_holders:
        return f" within {limits.LEAVE_LACKING_SECONDS:.0f} s, without waiting for the lost devices"
    if parts := node.departure.alone_with:
        return (
            f": first hands {plural(parts, 'part')} of the optimizer's state to others, which only"
            " this device keeps"
        )
    first = "hands the scheduler's role over, then " if node.negotiator is not None else ""
    return f": {first}waits for the running step with {plural(others, 'other')}"


def script_goes_on(path: str, presses: str) -> str:
    """Return the line for a script that still runs after its loop; its model is in `path`."""
    saved = f", and the model is saved in {shown_path(path)}" if path else ""
    return f"training is over{saved}; the script still runs, and {presses} ends it"


def after_failure(newest: str, node: Node | None) -> str:
    """Return what is left of the training after the script has failed, and how to go on, as the
    rest of the line that says so. `newest` is the newest file of `--save-every`, "" for none."""
    if node is None or node.context.policy is None or not node.context.iteration:
        return ""  # nothing was trained here
    others = len(node.context.policy.view.members) - 1 if node.context.is_member else 0
    if others:
        go_on = "the other device goes on" if others == 1 else f"the {others} others go on"
        return f"; no model is saved here, but {go_on}: start this device again, and it joins"
    if newest:
        return (
            f"; what was trained after {shown_path(newest)} is not saved: go on from that file"
            " with --resume"
        )
    return (
        "; nothing of what was trained is saved: with --save-every N there are files from which"
        " --resume goes on"
    )


def lacking_parts(parts: int) -> str:
    """Return what a user is told whose device cannot go on by itself from the file of `--save`, as
    so many parts of a divided optimizer's state are not in it."""
    return (
        f"nobody is there to join who has the {plural(parts, 'part')} of the optimizer's state that"
        " this device's file lacks: start it with --resume FILE for the checkpoints of all devices"
        " instead of --continue, or with --on-lost fresh to have these parts begin anew"
    )


def of_life(say: Say, samples: Sequence[int]) -> str:
    """Return the line for a step in the agent's life.

    `samples` are the numbers of samples on which the states with `say.iterations` were trained.
    """
    match say.note:
        case Note.EXPELLED:
            return "the cluster went on without this device: joining again"
        case Note.HUNG:
            return (
                "the trainer here does not answer: the others go on without this device until it "
                "does; then it joins again"
            )
        case Note.ANSWERS:
            return "the trainer answers again: joining"
        case Note.AHEAD:
            return "another cluster of this name is ahead: joining it"
        case Note.JOIN_FAILED:
            again = f"again in {say.pause_s:.0f} s" if say.pause_s else "trying again"
            return f"the join failed: {say.text}; {again}"
        case Note.STANDBY:
            return (
                f"this device stands by: {say.text}; its links are measured again after 6 s, later "
                "up to 3 minutes, and it trains with the others as soon as they allow it "
                "(--standby never on all devices trains at any speed)"
            )
        case Note.FOLLOWS:
            return (
                f"this device follows from outside: {say.text}; it copies every update, and nobody "
                "waits for it"
            )
        case Note.FOLLOWS_NO_MORE:
            again = f"in {say.pause_s:.0f} s" if say.pause_s else "now"
            return f"this device no longer follows the others: {say.text}; looking for them {again}"
        case Note.NOT_KEPT:
            return f"not joining, because what was trained here would be lost: {say.text}"
        case Note.KEPT:
            return _trained_before(say.iterations[0], samples[0], say.text)
        case Note.DIVERGED_LEAVER:
            return (
                "the training state of this device differed from that of the others: use the "
                "model that another device has saved"
            )
        case Note.DIVERGED_AGAIN:
            return _diverged_again(*say.iterations)
        case Note.NOBODY:
            return (
                "the cluster that this device was joining cannot be reached any more, and nothing "
                "was trained here: start again"
            )
        case Note.BROKEN_OFF:
            message = (
                "the join broke off in the middle of the pull, and nobody is there to join now "
                "(who has trained to the end has saved the model)"
            )
            kept = f"what was trained here before is in {say.text}: start again with --resume"
            return f"{message}: {kept if say.text else 'start again'}"


def _trained_before(iteration: int, samples: int, path: str) -> str:
    """Return what becomes of a state that another cluster's replaces: kept in `path`, or lost."""
    what = f"what was trained here before (to step {iteration}, {samples} samples)"
    if path:
        return f"{what} is kept in {path}"
    return f"{what} is given up: there is no --save file to keep it beside"


def _diverged_again(before: int, now: int) -> str:
    """Return why a device ends whose state differed from the others' at two iterations."""
    return (
        f"the training state of this device differed from that of the others again (before step "
        f"{before + 1}, pulled anew, and before step {now + 1}): look for random numbers or "
        "changes of the model that the script makes on its own, another version of a library, or "
        "a faulty processor or memory"
    )


def ended_too_early(job: str, status: int | None) -> str:
    """Return the line about a trainer that ended, with `status`, before it asked for work."""
    how = "" if status is None else f" with {how_it_ended(status)}"
    why = " (it never called loader())" if status == 0 else ""
    return f"{job} ended{how} before training began{why}"


def internal_error(context: dict[str, object], trace: str = "") -> str:
    """Return the line about an internal error that the event loop caught, with its place.

    `trace` is the file that holds the events before the error, "" if there is none.
    """
    error = context.get("exception")
    place = ""
    if isinstance(error, BaseException) and error.__traceback__:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f" ({os.path.basename(where.filename)}:{where.lineno})"
    what = repr(error) if error is not None else str(context.get("message"))
    enclosed = f" with the trace in {shown_path(trace)}" if trace else ""
    return f"internal error: {what}{place}; please report it{enclosed}"


def command(config: AgentConfig, address: str) -> str:
    """Return the command with which another device joins this agent."""
    cluster = config.cluster if config.cluster != DEFAULT_CLUSTER else ""
    if not config.command:
        settings = f"EDGEAGENT_CLUSTER={shlex.quote(cluster)} " if cluster else ""
        return f"{settings}EDGEAGENT_PEERS={address} python YOUR_SCRIPT"
    job, *arguments = config.command
    words = ["edgeagent", "run", job, *(config.recipe.words if config.recipe else ())]
    words += ["--peer", address]
    words += ["--cluster", cluster] if cluster else []
    words += ["--", *arguments] if arguments else []
    return shlex.join(words)
