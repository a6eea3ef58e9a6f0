"""Pulls of the training state: shards that arrive here, and shards and digests for joiners."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, assert_never

from edgeagent.dataplane.shards import leaves, shard_header, shard_target, shard_view
from protocols import effects, events

if TYPE_CHECKING:
    from edgeagent.observer import Observer
    from edgeagent.search import Spawn
    from edgeagent.shell.copies import Copies
    from edgeagent.shell.hub import Hub
    from edgeagent.shell.peers import Peers
    from edgeagent.shell.trainer_side import TrainerSide
    from edgeagent.transport.api import Link
    from protocols.wire.bulk import BulkHeader


class Pulls:
    """Both ends of the pulls of one agent. `state` is the training state in shared memory."""

    def __init__(
        self,
        hub: Hub,
        peers: Peers,
        trainer: TrainerSide,
        copies: Copies,
        state: memoryview,
        observer: Observer,
        spawn: Spawn,
    ) -> None:
        self._hub = hub
        self._peers = peers
        self._trainer = trainer
        self._copies = copies
        self._state = state
        self._observer = observer
        self._spawn = spawn

    def perform(self, effect: effects.ShardEffect) -> None:
        """Perform `effect`."""
        match effect:
            case effects.SendManifest():
                self._spawn(self._send_manifest(effect))
            case effects.SendShards():
                self._send_shards(effect)
            case effects.HashOwnShards():
                self._spawn(self._hash_own(effect))
            case _:
                assert_never(effect)

    # --- as a joiner ------------------------------------------------------------------------------

    def arriving(self, source: bytes, header: BulkHeader) -> memoryview | None:
        """Return where a shard belongs, None if it is not wanted."""
        joining = self._hub.node.joining if self._hub.node is not None else None
        if joining is None or header.reference != joining.number:
            return None
        if not joining.expects(source, header.index, header.iteration):
            return None
        self._trainer.own_state = None  # from here on it is partly overwritten
        return shard_target(self._state, joining.shard_bytes, header)

    def received(self, link: Link, header: BulkHeader) -> None:
        """Tell the node the digest of the shard that has arrived."""
        source = link.peer.node
        joining = self._hub.node.joining if self._hub.node is not None else None
        if joining is None or not joining.expects(source, header.index, header.iteration):
            return
        shard = shard_target(self._state, joining.shard_bytes, header)
        self._observer.shard_arrived(link.peer.name, header.length, link.incoming_rate)
        digest = hashlib.sha256(shard).digest()
        self._hub.handle(events.ShardArrived(source, header.index, digest, link.incoming_rate))

    async def _hash_own(self, wanted: effects.HashOwnShards) -> None:
        """Hash shards of the own state in a thread. They are not asked for before, so nothing
        overwrites them meanwhile unless this node is given up, whose answer then counts no more."""
        node, own = self._hub.node, self._state[: wanted.shards * wanted.shard_bytes]
        digests = await asyncio.to_thread(leaves, own, wanted.shard_bytes)
        if self._hub.node is node:
            self._hub.handle(events.OwnShardsHashed(wanted.join, digests))

    # --- as a source ------------------------------------------------------------------------------

    async def _send_manifest(self, wanted: effects.SendManifest) -> None:
        at = wanted.snapshot
        state = self._state if at is None else self._copies.snapshot(at)
        if state is None:
            return  # the joiner needs it no more
        found = await asyncio.to_thread(leaves, state, wanted.shard_bytes)
        self._hub.handle(events.ManifestReady(wanted.joiner, wanted.join, found))

    def _send_shards(self, wanted: effects.SendShards) -> None:
        lineage = self._hub.node.context.lineage if self._hub.node is not None else b""
        at = wanted.iteration
        state = self._copies.snapshot(at) if wanted.from_snapshot else self._state
        if state is None:
            return  # the joiner needs it no more
        for shard in wanted.shards:
            payload = shard_view(state, wanted.shard_bytes, shard)
            header = shard_header(lineage, wanted.join, wanted.iteration, shard, payload)
            self._peers.send_bulk(wanted.joiner, header, payload)
