"""Reports of members to a fence, for the tests of decisions and of the scheduler of a fence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeagent.planner.standard import StandardPlanner
from protocols.rounds import control_word
from protocols.wire.messages import FenceReport

if TYPE_CHECKING:
    from protocols.cluster.policy import Electorate, Policy

PLANNER = StandardPlanner()
EPOCH = (3, 7)
RUNNING, BEFORE = b"r" * 32, b"b" * 32
CHUNKS, BATCH, STEPS = 4, 6, 100


def report_of(
    policy: Policy,
    *,
    iteration: int = 5,
    attempt: int = 0,
    have: tuple[int, ...] = (),
    working: tuple[int, ...] = (),
    links: tuple[bytes, ...] | None = None,
    newest: int = 1,
    stored: tuple[Electorate, ...] = (),
) -> FenceReport:
    """Return the report of a member that is linked to all others, unless `links` are given."""
    return FenceReport(
        *EPOCH,
        iteration,
        attempt,
        RUNNING,
        BEFORE,
        control_word.bits(have),
        control_word.bits(working),
        policy,
        newest,
        policy.view.nodes if links is None else links,
        stored,
    )
