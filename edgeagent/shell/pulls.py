"""Pulls of the training state: shards that arrive here, and shards and digests for joiners."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, assert_never

from edgeagent.dataplane.shards import leaves, shard_header, shard_target, shard_view
from protocols import effects, events

if TYPE_CHECKING:
    from edgeagent.dataplane.snapshot import Snapshot
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
        # Source or fellow -> (shard, what arrives of it): one at a time comes over a link.
        self._aside: dict[bytes, tuple[int, memoryview]] = {}
        # (iteration of a snapshot, size of its shards, first of them) -> their digests.
        self._hashed: dict[tuple[int, int, int], asyncio.Future[tuple[bytes, ...]]] = {}

    def forget(self) -> None:
        """Free what was kept for the node before."""
        self._aside.clear()
        self._hashed.clear()

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
        """Return where a shard is received, None if it is not wanted.

        Who sends it may be slow, so that the shard is asked for elsewhere meanwhile, is verified
        here, and has had updates since. So nothing lies in the state before all of it has come and
        is still wanted.
        """
        joining = self._hub.node.joining if self._hub.node is not None else None
        if joining is None or header.reference != joining.number:
            return None
        if not joining.expects(source, header.index, header.iteration):
            return None
        size = len(shard_target(self._state, joining.shard_bytes, header))
        aside = memoryview(bytearray(size))
        self._aside[source] = header.index, aside
        return aside

    def received(self, link: Link, header: BulkHeader) -> None:
        """Tell the node the digest of the shard that has arrived."""
        source = link.peer.node
        index, aside = self._aside.pop(source, (-1, memoryview(b"")))
        joining = self._hub.node.joining if self._hub.node is not None else None
        if joining is None or index != header.index:
            return  # another node has asked for it, before this one
        if not joining.expects(source, header.index, header.iteration):
            return
        self._trainer.own_state = None  # from here on it is partly overwritten
        shard = shard_target(self._state, joining.shard_bytes, header)
        shard[:] = aside
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
        found = await self._digests(state, at, wanted.shard_bytes, wanted.first)
        self._hub.handle(events.ManifestReady(wanted.joiner, wanted.join, found))

    async def _digests(
        self, state: memoryview | Snapshot, at: int | None, shard_bytes: int, first: int
    ) -> tuple[bytes, ...]:
        """Return the digests of the shards of `state` from `first` on. Those of the snapshot of
        iteration `at` are computed once for all joiners that ask for the same ones."""
        if at is None:
            return await asyncio.to_thread(leaves, state, shard_bytes, first)
        copies, key = self._copies, (at, shard_bytes, first)
        self._hashed = {k: v for k, v in self._hashed.items() if copies.snapshot(k[0]) is not None}
        if key not in self._hashed:
            hashing = asyncio.to_thread(leaves, state, shard_bytes, first)
            self._hashed[key] = asyncio.ensure_future(hashing)
        return await self._hashed[key]

    def _send_shards(self, wanted: effects.SendShards) -> None:
        lineage = self._hub.node.context.lineage if self._hub.node is not None else b""
        at = wanted.iteration
        state = self._copies.snapshot(at) if wanted.from_snapshot else self._state
        if state is None:
            return  # the joiner needs it no more
        for shard in wanted.shards:
            payload = shard_view(state, wanted.shard_bytes, shard)
            if wanted.as_now:
                payload = memoryview(bytes(payload))
            header = shard_header(lineage, wanted.join, wanted.iteration, shard, payload)
            self._peers.send_bulk(wanted.joiner, header, payload)
