"""The job's fingerprint, and how two jobs are told apart.

Law: pure. A job is an ordered tuple of (field, value) texts; equal fingerprints mean the same
fields with the same values in the same order (DESIGN, Same job).
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

Job = tuple[tuple[str, str], ...]

_SHOWN = 120
ABSENT = "absent"


class Difference(NamedTuple):
    """The first field in which two jobs differ."""

    field: str
    ours: str
    theirs: str


def length_prefixed(*parts: bytes) -> bytes:
    """Return `parts` joined so that no two different lists give the same bytes."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def job_fingerprint(job: Job) -> bytes:
    """Return the SHA-256 of the job's fields."""
    parts = [text.encode() for pair in job for text in pair]
    return hashlib.sha256(length_prefixed(*parts)).digest()


def first_difference(ours: Job, theirs: Job) -> Difference | None:
    """Return the first differing field in our order, then fields only they have; None if equal."""
    known = dict(theirs)
    for field, value in ours:
        other = known.get(field, ABSENT)
        if other != value:
            return Difference(field, _shown(value), _shown(other))
    mine = dict(ours)
    for field, value in theirs:
        if field not in mine:
            return Difference(field, ABSENT, _shown(value))
    for (ours_field, _), (theirs_field, _) in zip(ours, theirs, strict=False):
        if ours_field != theirs_field:
            return Difference("order of fields", ours_field, theirs_field)
    return None


def _shown(value: str) -> str:
    clean = "".join(letter if letter.isprintable() else "?" for letter in value)
    return clean if len(clean) <= _SHOWN else clean[: _SHOWN - 3] + "..."
