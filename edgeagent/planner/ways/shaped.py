"""What a function that makes ways of one particular shape returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeagent.planner.ways.way import ROOT, Way

if TYPE_CHECKING:
    from edgeagent.planner.ways.network import Network


@dataclass(frozen=True, slots=True)
class Shaped:
    """The ways of a shape, and what they are in words; or None, and why there are none."""

    ways: tuple[Way, ...] | None
    reason: str


ALONE = Shaped((Way((ROOT,), (ROOT,)),), "a single member, nothing to send")


def not_both_ways(network: Network) -> Shaped:
    """Return that no tree can be used in both directions here."""
    return Shaped(None, f"links that go both ways do not connect all {network.count} members")
