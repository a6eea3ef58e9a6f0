"""A custom policy that imposes the tree which a file names.

The benchmark registers it for its agents (see README.md, `--policy`), with the path of the file in
the environment variable `BENCH_TREE`: JSON, name of a node -> name of its parent, the root's is "".

The policy uses nothing but that file. While members or links of the tree are missing it raises an
error, so that the standard plan is used instead. Micro-batches are dealt out evenly. The module
imports nothing of the project's tests, since agents load it from a folder made for them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from edgeagent.planner.policies import PolicyAnswer, PolicyRequest

VARIABLE = "BENCH_TREE"
NAME = "imposed"


def imposed(request: PolicyRequest) -> PolicyAnswer:
    """Return the tree of the file, as far as its nodes are members."""
    tree: dict[str, str] = json.loads(Path(os.environ[VARIABLE]).read_text())
    ids = {member.name: member.node for member in request.members}
    ids[""] = b""
    parents = {}
    for member in request.members:
        above = tree[member.name]
        if above not in ids:
            raise ValueError(f"{above} is no member yet")
        parents[member.node] = ids[above]
    links = {frozenset((link.low, link.high)) for link in request.links}
    for node, above_id in parents.items():
        if above_id and frozenset((node, above_id)) not in links:
            raise ValueError("a link of the tree is not open yet")
    here = [m.node for m in request.members if not m.away] or [m.node for m in request.members]
    least, more = divmod(request.micro_batches, len(here))
    shares = {node: least + (k < more) for k, node in enumerate(here)}
    return PolicyAnswer(parents, shares, "the tree that was asked for")
