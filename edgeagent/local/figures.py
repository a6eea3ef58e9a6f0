"""Figures that follow from a status, for those who show it: the terminal and the page.

The functions are pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from edgeagent.local.status_model import PairStatus, Status


class TimesStatus(TypedDict):
    """How a member spent its last iteration, in ms: computing, waiting for the member that
    computed longest, and in the transfer of the sums. None: not measured yet."""

    name: str
    computing_ms: float | None
    waiting_ms: float | None
    transfer_ms: float | None


def pairs_of(status: Status) -> list[PairStatus]:
    """Return the cluster's links, and this node's links that are in no policy yet."""
    me = status["node"]
    own = {link["peer"]: link for link in status["links"]}
    pairs = []
    for pair in status["mesh"]:
        peer = pair["b"] if pair["a"] == me else pair["a"] if pair["b"] == me else None
        if peer is not None and (link := own.pop(peer, None)) and pair["delay_ms"] is None:
            pair = {**pair, "delay_ms": link["delay_ms"]}
        pairs.append(pair)
    for link in own.values():
        new: PairStatus = {
            "a": me,
            "b": link["peer"],
            "delay_ms": link["delay_ms"],
            "there_mbit_s": link["out_mbit_s"],
            "back_mbit_s": link["in_mbit_s"],
            "in_tree": False,
            "part": 0.0,
        }
        pairs.append(new)
    return pairs


def times_of(status: Status) -> list[TimesStatus]:
    """Return how each member spent its last iteration.

    A member's sum is complete when the slowest member has computed and the transfer is done. Of the
    time until then, what the slowest computed longer counts as waiting, the rest as transfer.
    """
    known = [m["compute_ms"] for m in status["members"] if m["compute_ms"] is not None]
    longest = max(known, default=0.0)
    found = []
    for member in status["members"]:
        compute, sync = member["compute_ms"], member["sync_ms"]
        waiting = None
        if compute is not None and sync is not None:
            waiting = min(sync, longest - compute)
        found.append(
            TimesStatus(
                name=member["name"],
                computing_ms=compute,
                waiting_ms=None if waiting is None else round(waiting, 3),
                transfer_ms=None if waiting is None or sync is None else round(sync - waiting, 3),
            )
        )
    return found
