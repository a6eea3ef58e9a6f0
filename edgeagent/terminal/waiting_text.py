"""Says in words whom the members wait for, and what would help.

A status and a terminal's line use the same words. Names are cleaned before they are shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeagent.terminal.text import clean, mbit_text, ms_text, seconds_text

if TYPE_CHECKING:
    from edgeagent.local.status_model import AdviceStatus, WaitingStatus

NAMED = 3  # devices that an advice names; the others are counted


def waiting_text(waiting: WaitingStatus, *, here: bool = False) -> str:
    """Return a line such as "waiting 12 s for laptop3: its link carries 2.00 Mbit/s".

    `here`: the one that is waited for is the device that shows the line.
    """
    who = "this device" if here else clean(waiting["node"])
    if waiting["cause"] == "link" and waiting["shared"]:
        who = f"the link between {who} and {clean(waiting['peer'])}"
    elif waiting["more"]:
        who += f" and {waiting['more']} more"
    seconds = seconds_text(waiting["seconds"])
    if waiting["step_s"]:
        seconds += f" of each {seconds_text(waiting['step_s'])} step"
    who = f" for {who}" if who else ""
    waiters = "the others wait" if here else "waiting"
    return f"{waiters} {seconds}{who}: {_why(waiting)}"


def _why(waiting: WaitingStatus) -> str:
    match waiting["cause"]:
        case "link":
            owner = "it" if waiting["shared"] else "its link"
            if waiting["late"]:
                return f"{owner} takes {ms_text(waiting['delay_ms'])} ms one way"
            return f"{owner} carries {mbit_text(waiting['mbit_s'])} Mbit/s"
        case "computing" if waiting["trainer"]:
            return "its trainer has not answered"
        case "computing":
            return "it computes longest"
        case "silence":
            return "nothing is heard from it"
        case "joiner":
            return "it copies the training state to join"
        case _:
            return "why is not known yet"


def advice_text(advice: AdviceStatus, cause: str = "") -> str:
    """Return what a device costs, or that all together are slower than one alone, and what would
    help. `cause` is the reason why somebody is waited for."""
    now, then = seconds_text(advice["step_s"]), seconds_text(advice["without_s"])
    faster = "A faster link (a cable) or a" if cause == "link" else "A"
    helps = f"{faster} larger --global-batch on all devices would help"
    alone, alone_s = clean(advice["alone"]), seconds_text(advice["alone_s"])
    names = [clean(name) for name in advice["left_out"]]
    if alone and len(names) == advice["others"]:
        head = f"slower than alone: a step takes {now} together, about {then} on {alone} alone"
        return f"{head}. {helps}"
    shown = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if names[NAMED:] else "")
    costs, it = ("costs", "it") if len(names) == 1 else ("cost", "they")
    gives, them = ("gives", "it") if len(names) == 1 else ("give", "them")
    head = f"slower than {alone} alone ({alone_s}): " if alone else ""
    head += f"{shown} {costs} more than {it} {gives}, "
    head += f"a step takes {now}, about {then} without {them}"
    return f"{head}. {helps}, or `edgeagent leave` on {shown}"
