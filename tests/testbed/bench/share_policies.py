"""Custom policies that deal out fixed shares: baselines for subnets as large as devices are fast.

The benchmark registers them for its agents (see README.md, `--policy`). `equal` gives all members
the same share, as independent subnet training does; `fixed` those of a file, JSON: name of a member
-> its part, whose path is in the environment variable `BENCH_SHARES`. The module imports nothing of
the project's tests, since agents load it from a folder made for them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from edgeagent.planner.policies import PolicyAnswer, PolicyRequest

VARIABLE = "BENCH_SHARES"


def equal(request: PolicyRequest) -> PolicyAnswer:
    """Deal out equal shares."""
    return _dealt(request, {member.name: 1.0 for member in request.members}, "equal parts")


def fixed(request: PolicyRequest) -> PolicyAnswer:
    """Deal out the shares of the file among those who are members."""
    parts: dict[str, float] = json.loads(Path(os.environ[VARIABLE]).read_text())
    return _dealt(request, parts, "the parts that were asked for")


def _dealt(request: PolicyRequest, parts: dict[str, float], reason: str) -> PolicyAnswer:
    """Return a star round the first member, and shares by largest remainder."""
    root = request.members[0].node
    parents = {member.node: b"" if member.node == root else root for member in request.members}
    total = sum(parts[member.name] for member in request.members)
    exact = {m.node: request.micro_batches * parts[m.name] / total for m in request.members}
    shares = {node: int(share) for node, share in exact.items()}
    left = request.micro_batches - sum(shares.values())
    for node in sorted(exact, key=lambda n: shares[n] - exact[n])[:left]:
        shares[node] += 1
    return PolicyAnswer(parents, shares, reason)
