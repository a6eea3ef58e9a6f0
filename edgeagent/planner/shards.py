"""Which neighbour sends which shard of the training state to a joiner.

Law: every shard is assigned to exactly one source.
"""

from __future__ import annotations


def even_assignment(
    shards: tuple[int, ...], sources: tuple[bytes, ...]
) -> dict[bytes, tuple[int, ...]]:
    """Deal `shards` out in runs whose lengths differ by at most one; `sources` is not empty."""
    assigned: dict[bytes, tuple[int, ...]] = {}
    start = 0
    for k, source in enumerate(sources):
        end = len(shards) * (k + 1) // len(sources)
        assigned[source] = shards[start:end]
        start = end
    return assigned
