"""Says in words why two devices whose updates round differently cannot train together.

What a peer says of itself is shown only after it was cleaned and cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeagent.transport.job import ABOUT, shown

if TYPE_CHECKING:
    from edgeagent.transport.job import Job

UPDATE = "update"  # the job's field that differs if updates round differently
# With a divided optimizer each result is computed by one device, and taken over by all others. Not
# every optimizer can be divided, which the trainer says then.
REMEDY = "if the job can be divided, start it on all devices with --shard-optimizer"
_CLASS_DIGITS = 16  # of the digest of updates in a numeric class
_DESCRIBING = ("torch", "processor", "device")  # "about" fields that may explain why
_ROUNDING = "rounding"  # the "about" field with a digest of each kind of operation


def unlike(ours: Job, theirs: Job) -> str:
    """Return what differs, as the rest of a sentence; "" if a device has not described itself."""
    here, there = _about(ours), _about(theirs)
    if not here or not there:
        return ""
    differing = [
        name for name in _DESCRIBING if here.get(name, "unknown") != there.get(name, "unknown")
    ]
    operations = _operations(here.get(_ROUNDING, ""), there.get(_ROUNDING, ""))
    what = f" ({operations})" if operations else ""
    if not differing:
        return (
            f"the same updates give other bits there{what}, though both are"
            f" {_listed(here, list(_DESCRIBING))}: is the optimizer's own code the same?"
        )
    return (
        f"its updates round differently{what}; there: {_listed(there, differing)}; here:"
        f" {_listed(here, differing)}"
    )


def numeric_class(job: Job, machine: str) -> str:
    """Return the name of all devices whose updates give the same bits as those of this one: a
    digest of some updates of the job, or, without one, what the `machine` is."""
    updates = [value for field, value in job if field in (UPDATE, ABOUT + UPDATE)]
    return " ".join(value[:_CLASS_DIGITS] for value in updates) or machine


def _about(job: Job) -> dict[str, str]:
    return {field.removeprefix(ABOUT): value for field, value in job if field.startswith(ABOUT)}


def _listed(about: dict[str, str], names: list[str]) -> str:
    return ", ".join(shown(about.get(name, "unknown")) for name in names)


def _operations(ours: str, theirs: str) -> str:
    """Return which operations gave different digests: "square roots, divisions"."""
    known = dict(part.rpartition(" ")[::2] for part in theirs.split(", "))
    mine = dict(part.rpartition(" ")[::2] for part in ours.split(", "))
    return ", ".join(name for name in mine if name in known and mine[name] != known[name])
