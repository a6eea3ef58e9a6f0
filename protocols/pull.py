"""A joiner copies the training state from several members at once.

Law: nothing counts as pulled before its SHA-256 matches the manifest, which comes from one source
while the shards come from all; a shard that does not match is asked for again from another source,
and a source that is lost hands its part to the others. Sources answer only after they have said
that they hold the state (`began`), so every byte belongs to the same iteration.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from protocols.errors import RemoteProtocolError
from protocols.table import Row, StateTable

if TYPE_CHECKING:
    from collections.abc import Callable


class PullState(StrEnum):
    """Where a pull stands."""

    WAITING = "waiting"
    COPYING = "copying"
    DONE = "done"
    FAILED = "failed"


PULL_TABLE: StateTable[PullState] = StateTable(
    "pull",
    Row(PullState.WAITING, "began", (PullState.COPYING,)),
    Row(PullState.WAITING, "source lost", (PullState.WAITING, PullState.FAILED)),
    Row(PullState.COPYING, "began", (PullState.COPYING,)),
    Row(PullState.COPYING, "manifest", (PullState.COPYING, PullState.DONE, PullState.FAILED)),
    Row(PullState.COPYING, "shard", (PullState.COPYING, PullState.DONE, PullState.FAILED)),
    Row(PullState.COPYING, "source lost", (PullState.COPYING, PullState.FAILED)),
)


@dataclass(frozen=True, slots=True)
class AskManifest:
    """Ask `source` for the digests of all shards."""

    source: bytes


@dataclass(frozen=True, slots=True)
class AskShards:
    """Ask `source` for `shards`."""

    source: bytes
    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PullDone:
    """Every shard is here and verified."""


@dataclass(frozen=True, slots=True)
class PullFailed:
    """The state cannot be had; `reason` says why."""

    reason: str


PullEffect = AskManifest | AskShards | PullDone | PullFailed


class Pull:
    """The joiner's side of one replication pull of `shards` shards from `sources`."""

    def __init__(
        self,
        shards: int,
        sources: tuple[bytes, ...],
        assign: Callable[[tuple[int, ...], tuple[bytes, ...]], dict[bytes, tuple[int, ...]]],
    ) -> None:
        self.state = PULL_TABLE.initial
        self.sources = sources
        self._assign = assign
        self._shards = shards
        self._ready: list[bytes] = []  # sources that said they hold the state
        self._owner: dict[int, bytes] = {}  # shard -> source it is planned for
        self._asked: dict[int, bytes] = {}  # shard -> source it was asked from, not arrived
        self._digests: dict[int, tuple[bytes, bytes]] = {}  # shard -> (source, digest), unverified
        self._tried: dict[int, list[bytes]] = {}  # shard -> sources whose copy did not match
        self._verified: dict[int, bytes] = {}  # shard -> source it came from
        self._leaves: tuple[bytes, ...] | None = None
        self._manifest_source: bytes | None = None

    @property
    def verified(self) -> dict[int, bytes]:
        """Shard -> source, of the shards that are here and match."""
        return self._verified

    def expects(self, source: bytes, shard: int) -> bool:
        """Whether `source` was asked for `shard` and has not delivered it."""
        return self._asked.get(shard) == source

    def began(self, source: bytes) -> list[PullEffect]:
        """`source` holds the state and may be asked."""
        if source not in self.sources or source in self._ready:
            raise RemoteProtocolError("a pull began at a node that is no source, or twice")
        if not PULL_TABLE.allows(self.state, "began"):
            return []
        self._ready.append(source)
        effects: list[PullEffect] = []
        if self.state is PullState.WAITING:
            self._plan(tuple(range(self._shards)), self.sources)
            self._manifest_source = source
            effects.append(AskManifest(source))
        self.state = PULL_TABLE.step(self.state, "began", PullState.COPYING)
        return effects + self._ask(source)

    def manifest(self, source: bytes, leaves: tuple[bytes, ...]) -> list[PullEffect]:
        """`source` sent the digests of all shards."""
        if not PULL_TABLE.allows(self.state, "manifest") or source != self._manifest_source:
            return []
        if self._leaves is not None:
            return []  # what is verified was verified against the first
        if len(leaves) != self._shards:
            raise RemoteProtocolError("a manifest with the wrong number of shards")
        self._leaves = leaves
        return self._check("manifest")

    def shard(self, source: bytes, shard: int, digest: bytes) -> list[PullEffect]:
        """`shard` has arrived whole from `source`; `digest` is the SHA-256 of what arrived."""
        if not self.expects(source, shard):
            raise RemoteProtocolError("a shard that was not asked for")
        del self._asked[shard]
        self._digests[shard] = (source, digest)
        return self._check("shard")

    def lost(self, source: bytes) -> list[PullEffect]:
        """The link to `source` is gone."""
        if source not in self.sources or not PULL_TABLE.allows(self.state, "source lost"):
            return []
        self.sources = tuple(s for s in self.sources if s != source)
        self._ready = [s for s in self._ready if s != source]
        if not self.sources:
            return self._fail("source lost", "every source of the training state was lost")
        self.state = PULL_TABLE.step(self.state, "source lost", self.state)
        if self.state is PullState.WAITING:
            return []
        effects: list[PullEffect] = []
        if self._leaves is None and self._manifest_source == source:
            self._manifest_source = self._ready[0] if self._ready else None
            effects += [AskManifest(s) for s in self._ready[:1]]
        orphans = tuple(sorted(k for k, owner in self._owner.items() if owner == source))
        for shard in orphans:
            self._asked.pop(shard, None)
        here = self._digests.keys() | self._verified.keys()
        self._plan(tuple(k for k in orphans if k not in here), self.sources)
        return effects + [e for s in self._ready for e in self._ask(s)]

    def _plan(self, shards: tuple[int, ...], sources: tuple[bytes, ...]) -> None:
        for source, part in self._assign(shards, sources).items():
            for shard in part:
                self._owner[shard] = source

    def _ask(self, source: bytes) -> list[PullEffect]:
        """Ask `source` for what is planned for it and neither asked for nor here."""
        wanted = tuple(
            k
            for k in sorted(self._owner)
            if self._owner[k] == source and k not in self._asked and k not in self._digests
            if k not in self._verified
        )
        for shard in wanted:
            self._asked[shard] = source
        effects: list[PullEffect] = []
        if self._leaves is None and self._manifest_source is None:
            self._manifest_source = source
            effects.append(AskManifest(source))
        return [*effects, AskShards(source, wanted)] if wanted else effects

    def _check(self, event: str) -> list[PullEffect]:
        """Verify what can be verified; ask again elsewhere for what does not match."""
        if self._leaves is None:
            self.state = PULL_TABLE.step(self.state, event, PullState.COPYING)
            return []
        effects: list[PullEffect] = []
        again: dict[bytes, None] = {}
        for shard, (source, digest) in sorted(self._digests.items()):
            if digest == self._leaves[shard]:
                self._verified[shard] = source
                continue
            tried = self._tried.setdefault(shard, [])
            tried.append(source)
            others = [s for s in self.sources if s not in tried]
            if not others:
                return self._fail(event, f"shard {shard} matches its digest from no source")
            self._owner[shard] = others[0]
            again[others[0]] = None
        self._digests.clear()
        for source in again:
            effects += self._ask(source) if source in self._ready else []
        done = len(self._verified) == self._shards
        self.state = PULL_TABLE.step(self.state, event, PullState.DONE if done else self.state)
        return [*effects, PullDone()] if done else effects

    def _fail(self, event: str, reason: str) -> list[PullEffect]:
        self.state = PULL_TABLE.step(self.state, event, PullState.FAILED)
        self._asked.clear()
        return [PullFailed(reason)]
