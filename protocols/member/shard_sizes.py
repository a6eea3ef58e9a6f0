"""How large the shards are in which a joiner copies the training state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits

if TYPE_CHECKING:
    from collections.abc import Sequence

# Each shard costs a digest and a frame header, so a shard is no smaller than this if it can be.
SMALLEST_SHARD_BYTES = 16 << 10
# No shard is larger than this if no rate of a source is known.
USUAL_SHARD_BYTES = 128 << 10
# No shard is larger than this if rates are known, so that little is lost with a source.
LARGEST_SHARD_BYTES = 512 << 10
# Each source gets about this many shards, so that they can be divided anew as rates change.
SHARDS_PER_SOURCE = 32
# The slowest source needs no longer than this for one shard, so that all can end together.
SHARD_SECONDS = 0.05
# But shards are so large that no more than this arrive per second, as each takes processor time.
SHARDS_PER_SECOND = 2000.0
# A shard's size is a multiple of this.
ALIGNMENT_BYTES = 64
# Joiners that copy the same state and exchange shards divide it into about so many, and into
# smaller ones than others if it is small, because they can pass on whole shards only. More of them
# cost more processor time, since each is asked for and told of.
COMMON_SHARDS = 256
SMALLEST_COMMON_BYTES = 4 << 10


def shard_size(state_bytes: int, rates: Sequence[float | None]) -> int:
    """Return the size of a shard in bytes, a multiple of `ALIGNMENT_BYTES`.

    It gives each source about `SHARDS_PER_SOURCE` shards of a state of `state_bytes`, but is small
    enough for the slowest source (`SHARD_SECONDS`) and within the limits above. `rates` are those
    of the sources in bytes/s, None where a rate is not known.
    """
    wanted = state_bytes // (SHARDS_PER_SOURCE * max(1, len(rates)))
    least = max(SMALLEST_SHARD_BYTES, -(-state_bytes // limits.MAX_SHARDS))
    most = float(USUAL_SHARD_BYTES)
    if known := [rate for rate in rates if rate]:
        most = max(min(known) * SHARD_SECONDS, sum(known) / SHARDS_PER_SECOND)
    size = max(min(wanted, int(min(most, LARGEST_SHARD_BYTES))), least)
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def common_shard_size(state_bytes: int) -> int:
    """Return the size of a shard in bytes for joiners that exchange shards with each other: these
    must have one size, so it does not depend on what each joiner's links carry."""
    least = max(SMALLEST_COMMON_BYTES, -(-state_bytes // limits.MAX_SHARDS))
    size = max(min(state_bytes // COMMON_SHARDS, LARGEST_SHARD_BYTES), least)
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def shard_count(state_bytes: int, shard_bytes: int) -> int:
    """Return how many shards a state has."""
    return -(-state_bytes // shard_bytes)
