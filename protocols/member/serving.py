"""How this member answers a joiner that pulls the training state from it.

A joiner gets digests and shards only while this member holds the state unchanged for its join, so
that everything belongs to the same iteration. A request for shards that do not exist is an error of
the joiner (`RemoteProtocolError`).

A joiner that asks for nothing may not have heard that its pull has begun, because a link that
breaks loses what was sent on it last. The members would then hold the state in vain, so the joiner
is told again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits
from protocols.effects import SendManifest, SendShards
from protocols.errors import RemoteProtocolError
from protocols.member.shard_sizes import shard_count

if TYPE_CHECKING:
    from protocols.member.context import Context
    from protocols.member.copies import Copies
    from protocols.member.cycle import Cycle
    from protocols.wire.messages import ManifestRequest

SHARD_STEP_BYTES = 64  # the size of a shard is a multiple of this, the alignment of the state


class Serving:
    """The part of one node that serves as a source of pulls."""

    def __init__(self, context: Context, cycle: Cycle, copies: Copies) -> None:
        self._context = context
        self._cycle = cycle
        self._copies = copies
        self._asked: dict[int, None] = {}  # joins whose joiner has asked for something
        # `PullBegins` carries the scalars of the state and may be large, so the pause doubles.
        self._pause_s = limits.RETRY_SECONDS
        self._repeat_at: float | None = None

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do although nothing has happened."""
        return self._repeat_at

    def tick(self, now: float) -> None:
        """Repeat `PullBegins` to the joiners that have not asked for anything yet."""
        begun = self._cycle.holds.begun
        self._asked = {join: None for join in self._asked if join in begun}
        silent = [said for join, said in begun.items() if join not in self._asked]
        if not silent:
            self._repeat_at, self._pause_s = None, limits.RETRY_SECONDS
        elif self._repeat_at is None:
            self._repeat_at = now + self._pause_s
        elif now >= self._repeat_at:
            self._pause_s *= 2
            self._repeat_at = now + self._pause_s
            for joiner, message in silent:
                self._context.send(joiner, message)

    def manifest_wanted(self, joiner: bytes, request: ManifestRequest) -> None:
        """Have the digests that are asked for sent to `joiner`, if a snapshot is kept or the state
        is held for its join. Raises `RemoteProtocolError` if they are of no shards."""
        number, size, first = request.join, request.shard_bytes, request.first
        is_held = self._serves(number, size)
        if first >= shard_count(self._context.config.state_bytes, size):
            raise RemoteProtocolError("a request for digests of shards that do not exist")
        if is_held:
            self._context.do(SendManifest(joiner, number, size, first))
        else:
            self._copies.manifest_wanted(joiner, request)

    def shards_wanted(
        self, joiner: bytes, number: int, shard_bytes: int, shards: tuple[int, ...]
    ) -> None:
        """Have `shards` sent to `joiner`, if a snapshot is kept or the state is held for its join,
        and it is a neighbour.

        Raises `RemoteProtocolError` if a shard does not exist or is asked for twice.
        """
        is_held = self._serves(number, shard_bytes)
        if joiner not in self._context.links:
            return
        count = shard_count(self._context.config.state_bytes, shard_bytes)
        if any(k >= count for k in shards) or len(dict.fromkeys(shards)) != len(shards):
            raise RemoteProtocolError("a request for shards that do not exist")
        if is_held:
            at = self._context.iteration
            self._context.do(SendShards(joiner, number, at, shard_bytes, shards))
        else:
            self._copies.shards_wanted(joiner, number, shard_bytes, shards)

    def _serves(self, number: int, shard_bytes: int) -> bool:
        """Note that the joiner of join `number` has asked for something; return whether the state
        is held for it. Raises `RemoteProtocolError` if `shard_bytes` is no possible size of a
        shard."""
        whole = shard_bytes > 0 and shard_bytes % SHARD_STEP_BYTES == 0
        size = self._context.config.state_bytes
        if not whole or shard_count(size, shard_bytes) > limits.MAX_SHARDS:
            raise RemoteProtocolError("shards of a size that cannot be")
        self._asked[number] = None
        return number in self._cycle.holds.joins
