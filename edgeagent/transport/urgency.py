"""Which bulk frames of a link go before which others.

A link has one bulk connection for everything, and a slow one takes a second for what a fast one
takes in a moment. All members wait for the chunks of a round. A joiner waits for shards, and those
members wait for it that hold their update until it has the state. The chunks that a joiner only
follows are of no use to it before it has the state. Nobody waits for a probe.
"""

from __future__ import annotations

from enum import IntEnum

from protocols.wire.bulk import BulkKind


class Urgency(IntEnum):
    """The class of a bulk frame. All frames of a smaller number go before those of a larger one."""

    ROUND = 0  # chunks of a round, for a node that takes part in it
    SHARD = 1  # the training state, for a joiner
    FOLLOW = 2  # reduced chunks, for a joiner that copies the state and takes no part yet
    PROBE = 3


USUAL = {
    BulkKind.UP: Urgency.ROUND,
    BulkKind.DOWN: Urgency.ROUND,
    BulkKind.SHARD: Urgency.SHARD,
    BulkKind.PROBE: Urgency.PROBE,
}
