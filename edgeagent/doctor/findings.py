"""A finding: what was checked, what came of it, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How a check has ended."""

    OK = "ok"
    WARNING = "warning"  # training is possible, and something will be slower or need a hand
    FAILED = "failed"  # training, or training with the peer, is not possible so
    UNKNOWN = "not known"  # this could not be checked, which says nothing about it


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `check` names what was checked and is the same in every run; `seen` is a
    sentence about it, `advice` one that says what to do ("" if nothing)."""

    check: str
    verdict: Verdict
    seen: str
    advice: str = ""


def failed(findings: list[Finding]) -> bool:
    """Return whether any check has failed."""
    return any(finding.verdict is Verdict.FAILED for finding in findings)
