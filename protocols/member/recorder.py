"""The flight recorder: it keeps the last calls of a node with their times and effects, so that
failures in the field can be understood afterwards.

It stands between the agent's shell and the node: each call of the node goes through it. A node is
deterministic, so a fresh one that is given the same calls returns the same effects. That needs all
calls from the node's beginning: once one of them was dropped or shortened, the rest can be read but
not replayed (`replays_from`).

- The recorder never changes what the node does.
- Recording is cheap, because it happens at every event: it keeps references to immutable records,
  and copies or encodes nothing until somebody asks.
- A recording contains no secret. A token is replaced before anything is kept: by "token 1", "token
  2", in the order in which they appeared, so that different tokens stay different. Which of two
  tokens is larger is lost with that; it decides only between two that were made at the same time
  under one policy.
- Memory is bounded: entries by their number and by their estimated bytes. A single entry that is
  too large is shortened: its long byte strings and lists become their length and SHA-256.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from protocols import limits
from protocols.effects import (
    Apply,
    Contribute,
    ContributeChunks,
    Effect,
    GiveWork,
    Report,
    Send,
    StartRound,
    UseToken,
)
from protocols.events import Event, Received, TokenWanted
from protocols.member.plain import to_plain
from protocols.wire.fields import Blob, Bool, Float, Text, UInt
from protocols.wire.messages import NewToken, PolicyBody

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.cluster.ancestry import Past
    from protocols.cluster.view import Member
    from protocols.member.context import Context, NodeConfig
    from protocols.member.node import Node
    from protocols.network.routing import Router

# About how many bytes of memory a record takes of which all fields are small.
NOMINAL_BYTES = 256
# Byte strings of an entry that is too large are kept if they are no longer than this.
SHORT_BYTES = 128
# Lists and tuples of such an entry are kept if they have no more items than this.
SHORT_ITEMS = 512
# So many tokens are recognized if they appear again. A cluster gets a new one only now and then.
MOST_NAMES = 64
# The sizes of so many entries are estimated at once, which is much faster; until then the entries
# kept may exceed the bounds by this number.
BATCH = 32
_SECRET = (TokenWanted, UseToken)  # events and effects that hold a token
# Effects that are small, or whose large fields came with an event and were counted there.
_LIGHT = (Report, GiveWork, ContributeChunks, Contribute, Apply)
# Fields of fixed size, or about the size of a node's id, by type, by name, and by kind on the wire.
_SMALL_TYPES = ("int", "float", "bool", "int | None", "float | None", "LinkEnd")
_SMALL_NAMES = ("node", "via", "to", "joiner", "source", "digest", "lineage", "commit", "parent")
_SMALL_KINDS = (UInt, Float, Bool)


@dataclass(frozen=True, slots=True)
class FoundCalled:
    """A call of `Node.found` of a new node with this configuration. `is_fresh`: its router has
    carried no messages; otherwise it was taken over from this incarnation's node before, and the
    recording cannot be replayed from here."""

    config: NodeConfig
    is_fresh: bool
    lineage: bytes
    past: Past
    meta: bytes
    commit: bytes


@dataclass(frozen=True, slots=True)
class JoinCalled:
    """A call of `Node.join` of a new node with this configuration; `is_fresh` as in
    `FoundCalled`."""

    config: NodeConfig
    is_fresh: bool
    sponsor: Member


@dataclass(frozen=True, slots=True)
class PingCalled:
    """A call of `Node.ping`."""


Call = FoundCalled | JoinCalled | PingCalled | Event


@dataclass(frozen=True, slots=True)
class Entry:
    """One call of the node and its effects.

    If `effects` is None, the call raised what `error` describes. If `is_short`, the entry was too
    large, and `call` and `effects` are plain values (`plain.py`) without their long fields.
    """

    number: int
    now: float
    call: Call | dict[str, Any]
    effects: tuple[Effect, ...] | list[Any] | None
    error: str
    is_short: bool


_Kept = tuple[float, Any, Any, str, bool, int]  # an entry without its number, and its bytes


class Recorder:
    """The last calls of one agent's nodes."""

    def __init__(
        self,
        most: int = limits.MAX_RECORDED,
        most_bytes: int = limits.MAX_RECORDED_BYTES,
        most_entry_bytes: int = limits.MAX_RECORDED_ENTRY_BYTES,
    ) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._most_entry_bytes = most_entry_bytes
        self._new: list[tuple[float, Any, Any, str]] = []  # entries whose size is not known yet
        self._kept: deque[_Kept] = deque()
        self._bytes = 0
        self._names: dict[bytes, bytes] = {}  # digest of a token -> what stands for it
        self._tokens = 0
        self._dropped = 0

    # --- calls of the node ------------------------------------------------------------------------

    def found(
        self, node: Node, now: float, lineage: bytes, past: Past, meta: bytes, commit: bytes
    ) -> list[Effect]:
        """Call `Node.found` and record it."""
        context = node.context
        call = FoundCalled(context.config, _is_fresh(context), lineage, past, meta, commit)
        wanted = node.found(now, lineage, past, meta, commit)
        self._keep(now, call, wanted)
        return wanted

    def join(self, node: Node, now: float, sponsor: Member) -> list[Effect]:
        """Call `Node.join` and record it."""
        call = JoinCalled(node.context.config, _is_fresh(node.context), sponsor)
        wanted = node.join(now, sponsor)
        self._keep(now, call, wanted)
        return wanted

    def ping(self, node: Node, now: float) -> list[Effect]:
        """Call `Node.ping` and record it."""
        wanted = node.ping(now)
        self._keep(now, PingCalled(), wanted)
        return wanted

    def handle(self, node: Node, now: float, event: Event) -> list[Effect]:
        """Call `Node.handle` and record it; an exception is recorded, too, and raised again."""
        try:
            wanted = node.handle(now, event)
        except Exception as error:
            self._keep(now, event, None, f"{type(error).__name__}: {error}")
            raise
        self._keep(now, event, wanted)
        return wanted

    def _keep(self, now: float, call: Call, wanted: list[Effect] | None, error: str = "") -> None:
        secret = type(call) in _SECRET or (
            type(call) is Received and type(call.envelope.message) is NewToken
        )
        for effect in wanted or ():
            kind = type(effect)
            if kind is Send:
                if type(effect.envelope.message) is NewToken:  # type: ignore[union-attr]
                    secret = True
            elif kind in _SECRET:
                secret = True
        if secret:
            call = self._without_token(call)
            wanted = [self._without_token(e) for e in wanted] if wanted is not None else None
        self._new.append((now, call, wanted, error))
        if len(self._new) >= BATCH:
            self._weigh()

    def _weigh(self) -> None:
        """Estimate the sizes of the new entries, shorten those that are too large, and drop the
        oldest ones beyond the bounds."""
        for now, call, wanted, error in self._new:
            effects: Any = tuple(wanted) if wanted is not None else None
            size = _size_of_entry(call, effects or ())
            short = size > self._most_entry_bytes
            if short:
                call, effects = (to_plain(x, SHORT_BYTES, SHORT_ITEMS) for x in (call, effects))
                size = len(repr((call, effects)))
            self._kept.append((now, call, effects, error, short, size))
            self._bytes += size
        self._new.clear()
        while len(self._kept) > self._most or self._bytes > self._most_bytes:
            self._bytes -= self._kept.popleft()[-1]
            self._dropped += 1

    def _without_token(self, record: Any) -> Any:
        """Return an event or effect with a name such as "token 1" in the place of its token."""
        if isinstance(record, TokenWanted | UseToken):
            return replace(record, token=self._name_of(record.token))
        if isinstance(record, Received | Send) and isinstance(record.envelope.message, NewToken):
            message = record.envelope.message
            message = replace(message, token=self._name_of(message.token))
            return replace(record, envelope=replace(record.envelope, message=message))
        return record

    def _name_of(self, token: bytes) -> bytes:
        key = hashlib.sha256(token).digest()
        if key not in self._names:
            self._tokens += 1
            self._names[key] = b"token %d" % self._tokens
            if len(self._names) > MOST_NAMES:
                del self._names[next(iter(self._names))]
        return self._names[key]

    # --- what was recorded ------------------------------------------------------------------------

    def __len__(self) -> int:
        self._weigh()
        return len(self._kept)

    @property
    def dropped(self) -> int:
        """How many entries were dropped; all of them were older than those that are kept."""
        self._weigh()
        return self._dropped

    def entries(self) -> tuple[Entry, ...]:
        """Return the entries that are kept, oldest first. They are numbered from 1, and dropped
        ones are counted, too."""
        self._weigh()
        return tuple(
            Entry(number, *kept[:-1]) for number, kept in enumerate(self._kept, self._dropped + 1)
        )

    @property
    def replays_from(self) -> int | None:
        """The number of the entry from which on everything can be replayed: the beginning of a
        node, if no entry since was shortened. None if there is no such entry."""
        self._weigh()
        found = None
        for number, kept in enumerate(self._kept, self._dropped + 1):
            if kept[4]:
                found = None
            elif found is None and isinstance(kept[1], FoundCalled | JoinCalled):
                found = number if kept[1].is_fresh else None
        return found


def _is_fresh(context: Context) -> bool:
    router: Router = context.router
    return router.is_new


def _size_of_entry(call: Any, effects: Any) -> int:
    """Return about how many bytes a call and its effects keep alive."""
    last = call.envelope.message if type(call) is Received else call
    size = NOMINAL_BYTES + _size(last)
    policy = None
    for effect in effects:
        size += NOMINAL_BYTES
        kind = type(effect)
        if kind is Send:
            message = effect.envelope.message
            if type(message) is PolicyBody and message.policy is policy:
                continue  # the same policy, sent to another member, takes no more memory
            if message is not last:
                last = message
                size += _size(message)
                policy = message.policy if type(message) is PolicyBody else policy
        elif kind not in _LIGHT and (kind is not StartRound or effect.spec.spread):
            size += _size(effect)
    return size


def _size(record: Any) -> int:
    """Return about how many bytes a record keeps alive beside its own object and small fields."""
    kind: Any = type(record)
    flat, deep = _large_fields(kind)
    size = sum(map(len, flat(record))) if flat is not None else 0
    for name in deep:
        value = getattr(record, name)
        kind = type(value)
        if kind is tuple:
            size += _size_of_items(value) if value else 0
        elif kind is bytes or kind is str:
            size += len(value)
        elif value is not None:
            size += _size(value)
    return size


def _size_of_items(items: tuple[Any, ...]) -> int:
    first = items[0]
    if type(first) is bytes or type(first) is str:
        return 40 * len(items) + sum(map(len, items))
    if type(first) is int:
        return 8 * len(items)
    # The records in one tuple are alike, so a few of them stand for all.
    return len(items) * (NOMINAL_BYTES + max(map(_size, items[:4])))


@cache
def _large_fields(kind: Any) -> tuple[Callable[[Any], tuple[bytes, ...]] | None, tuple[str, ...]]:
    """Return, for a class of records, a getter for the fields that are byte strings or texts and
    may be long (None if there are none), and the names of those that hold records or many
    values."""
    if not is_dataclass(kind):
        return None, ()
    large = [f for f in fields(kind) if not _is_small(f)]
    flat = [f.name for f in large if f.type in ("bytes", "str")]
    deep = tuple(f.name for f in large if f.type not in ("bytes", "str"))
    if len(flat) == 1:  # an `attrgetter` of a single name returns no tuple
        return None, (*flat, *deep)
    return (attrgetter(*flat) if flat else None), deep


def _is_small(field: Field[Any]) -> bool:
    """Whether a field is of a fixed size, or about the size of a node's id."""
    wire_kind = field.metadata.get("kind")
    if wire_kind is not None:
        return isinstance(wire_kind, _SMALL_KINDS) or (
            isinstance(wire_kind, Blob | Text) and wire_kind.largest <= NOMINAL_BYTES
        )
    return field.type in _SMALL_TYPES or field.name in _SMALL_NAMES
