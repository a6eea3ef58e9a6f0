"""Finds custom policies that installed packages have registered.

Only the policy that the user has named is imported, because importing a package runs its code.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from edgeagent.errors import UsageError
from edgeagent.planner.policies import ENTRY_POINTS

if TYPE_CHECKING:
    from edgeagent.planner.policies import CustomPolicy


def load_policy(name: str) -> CustomPolicy:
    """Return the policy that is registered as `name` in the group `edgeagent.policies`.

    Raises `UsageError` if there is none or several, or if it cannot be imported or called.
    """
    found = _registered()
    chosen = dict.fromkeys(e.value for e in found if e.name == name)
    if not chosen:
        known = ", ".join(sorted(dict.fromkeys(e.name for e in found))) or "none"
        raise UsageError(f"no installed package has a policy {name!r}; installed: {known}")
    if len(chosen) > 1:
        raise UsageError(f"the policy {name!r} is registered more than once: {', '.join(chosen)}")
    entry = next(e for e in found if e.name == name)
    try:
        policy = entry.load()
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"the policy {name!r} ({entry.value}) cannot be loaded: {what}") from error
    if not callable(policy):
        raise UsageError(f"the policy {name!r} ({entry.value}) is no function")
    made: CustomPolicy = policy
    return made


def _registered() -> list[EntryPoint]:
    return list(entry_points(group=ENTRY_POINTS))
