"""Shards of the training state, as simulated devices send them and take them in."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, assert_never

from protocols import effects, events
from tests.simulation.narrow import LARGE_FRAME
from tests.simulation.numbers import leaves_of

if TYPE_CHECKING:
    from tests.simulation.host import Host


def perform(host: Host, effect: effects.ShardEffect) -> None:
    """Perform an effect of the node of `host`."""
    match effect:
        case effects.SendManifest(joiner, join, shard_bytes, first, at):
            whole = host.flat if at is None else host.copies.snapshots[at]
            leaves = leaves_of(whole[first * shard_bytes :], shard_bytes)
            ready = events.ManifestReady(joiner, join, leaves)
            host.soon(host.world.compute(), partial(host.handle, ready))
        case effects.SendShards():
            host.serves.setdefault(effect.join, []).extend(effect.shards)
            for shard in effect.shards:
                _send(host, effect, shard)
        case effects.HashOwnShards(join, shard_bytes, shards):
            whole = host.constant[: shards * shard_bytes]
            hashed = events.OwnShardsHashed(join, leaves_of(whole, shard_bytes))
            host.soon(host.world.compute(), partial(host.handle, hashed))
        case _:
            assert_never(effect)


def _send(host: Host, wanted: effects.SendShards, shard: int) -> None:
    size, at = wanted.shard_bytes, wanted.iteration
    if wanted.as_now:  # this joiner has pulled it itself
        piece = host.pulled[shard]
    else:
        whole = host.copies.snapshots[at] if wanted.from_snapshot else host.flat
        piece = whole[shard * size : (shard + 1) * size]
    piece = host.world.tamper(host, shard, piece)
    arrives = partial(arrive, source=host.me.node, shard=shard, piece=piece, at=at)
    host.world.stream(host, wanted.joiner, arrives, LARGE_FRAME)


def arrive(host: Host, source: bytes, shard: int, piece: bytes, at: int) -> None:
    """Have `host` take in a shard."""
    if host.asleep:
        host.waiting.append(partial(arrive, host, source, shard, piece, at))
        return
    if host.gone is None and host.node is not None and host.node.joining is not None:
        if not host.node.joining.expects(source, shard, at):
            return
        if not host.spoilt:
            host.world.replaced(host)
        host.spoilt = True
        host.pulled[shard] = piece
        at, end = shard * host.node.joining.shard_bytes, len(host.constant)
        host.constant = (host.constant[:at] + piece + host.constant[at + len(piece) :])[:end]
        host.handle(events.ShardArrived(source, shard, hashlib.sha256(piece).digest()))
