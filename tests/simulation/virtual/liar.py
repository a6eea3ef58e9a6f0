"""A member that sends impossible things: it runs the real code, but its frames are changed.

The lie follows from its seed. It changes one field of one kind of message, or of bulk frames, again
and again. Messages of a kind that the member would not send by itself are made up. Gradients are
left alone, because members are trusted with those.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import msgpack

from protocols.errors import RemoteProtocolError
from protocols.rounds.control_word import ControlWord, decode_word
from protocols.wire import codec
from protocols.wire.bulk import BulkHeader, BulkKind, checksum
from protocols.wire.envelope import Envelope
from protocols.wire.messages import DIRECT_MESSAGES, EVERYONE, MESSAGES, Message
from tests.unit.protocols.records import plain

if TYPE_CHECKING:
    from tests.simulation.virtual.world import Host

NUMBERS = (0, 1, 2, 255, 1 << 16, 1 << 30, (1 << 31) - 1, 1 << 32, (1 << 63) - 1, (1 << 64) - 1)
FLOATS = (0.0, -1.0, 1e308, float("inf"), float("nan"))
MADE_UP_S = 0.05  # seconds between two messages that are made up
HEADER_FIELDS = tuple(f.name for f in fields(BulkHeader) if f.name not in ("kind", "length"))
HEADER_LIMITS = {"iteration": 1 << 64, "reference": 1 << 64}
WORD_FIELDS = tuple(f.name for f in fields(ControlWord))
# Fields with which members are trusted, as with gradients: every user may stop the training of all.
TRUSTED = ("loss_sum", "settings", "other_settings", "stop")
BULK_LIES = (
    *(("header", name) for name in HEADER_FIELDS),
    *(("word up", name) for name in WORD_FIELDS if name not in TRUSTED),
    *(("word down", name) for name in WORD_FIELDS if name not in TRUSTED),
    ("payload down", ""),
    ("raw word", ""),
)


@dataclass(frozen=True)
class Lie:
    """What is changed: a `kind` of message, or a field of `bulk` frames, such as ("header", name).
    `chance`: how likely it is for one frame."""

    seed: int
    kind: type[Message] | None
    bulk: tuple[str, str] | None
    chance: float

    def __str__(self) -> str:
        what = self.kind.__name__ if self.kind else " ".join(self.bulk or ())
        return f"{what}, seed {self.seed}"


def lie_of(seed: int) -> Lie:
    """Return the lie of a seed; consecutive seeds cover all kinds of messages and bulk fields."""
    subjects: list[type[Message] | tuple[str, str]] = [*MESSAGES, *BULK_LIES]
    subject = subjects[seed % len(subjects)]
    chance = random.Random(seed).choice((0.1, 1.0))
    if isinstance(subject, tuple):
        return Lie(seed, None, subject, chance)
    return Lie(seed, subject, None, chance)


class Liar:
    """Changes what one host sends, from the moment at which this object is made."""

    def __init__(self, host: Host, lie: Lie) -> None:
        self.host = host
        self.lie = lie
        self.told = 0  # frames changed so far
        self._dice = random.Random(lie.seed)
        host.network.tamper = self
        if lie.kind is not None:
            host.world.loop.call_later(MADE_UP_S, self._make_up)

    # --- control frames -----------------------------------------------------------------------

    def control(self, frame: bytes) -> bytes:
        """Return the control frame to send instead of `frame`, which may be the same."""
        envelope = codec.decode(frame)
        mine = envelope.tags.origin == self.host.me.node
        wanted = type(envelope.message) is self.lie.kind and mine
        if not wanted or self._dice.random() >= self.lie.chance:
            return frame
        self.told += 1
        raw = msgpack.unpackb(frame)
        how = self._dice.random()
        if how < 0.15:
            place = self._dice.randrange(len(frame))
            flipped = frame[place] ^ (1 << self._dice.randrange(8))
            return frame[:place] + bytes([flipped]) + frame[place + 1 :]
        raw[2] = self._changed(raw[2])
        packed: bytes = msgpack.packb(raw)
        return packed

    def _changed(self, value: Any) -> Any:
        """Return `value` with one thing changed, at a random depth."""
        dice = self._dice
        match value:
            case bool():
                return not value
            case int():
                near = (value + 1, max(0, value - 1), value + 1000)
                return min(dice.choice((*NUMBERS, *near)), (1 << 64) - 1)
            case float():
                return dice.choice(FLOATS)
            case bytes():
                other = dice.choice([h.me.node for h in self.host.world.hosts])
                flipped = bytes([value[0] ^ 1, *value[1:]]) if value else b"\x01"
                return dice.choice((b"", flipped, value + b"\xff", bytes(len(value)), other))
            case str():
                return dice.choice(("", value + "x", "x" * 5000))
            case list() if value and dice.random() < 0.85:
                place = dice.randrange(len(value))
                return [*value[:place], self._changed(value[place]), *value[place + 1 :]]
            case list():
                return dice.choice(([], value + value[-1:], value[:-1]))
            case _:
                return 7

    def _make_up(self) -> None:
        """Send a message of the kind of the lie, even if this member had no reason to."""
        host, kind = self.host, self.lie.kind
        node = host.shell.node
        if host.gone is not None or kind is None:
            return
        host.world.loop.call_later(MADE_UP_S, self._make_up)
        if node is None or not node.context.links:
            return
        message = self._fitting(plain(kind))
        to = (
            EVERYONE if self._dice.random() < 0.5 else self._dice.choice(sorted(node.context.links))
        )
        to = self._dice.choice(sorted(node.context.links)) if kind in DIRECT_MESSAGES else to
        context, policy = node.context, node.context.policy
        here = (policy.view.number, policy.version) if policy is not None else (0, 0)
        tags = (context.lineage, context.election.term, *here, context.iteration, context.attempt)
        envelope = context.router.stamp(tags, to, message)
        for neighbour in context.router.ways(envelope, tuple(sorted(context.links)), None):
            if (link := host.shell.peers.links.get(neighbour)) is not None:
                link.send_control(codec.encode(Envelope(envelope.tags, message)))

    def _fitting(self, record: Any) -> Any:
        """Return a made-up message with plausible values in its fields, so that it is not dropped
        at once."""
        node = self.host.shell.node
        policy = node.context.policy if node is not None else None
        if node is None or policy is None:
            return record
        term = node.context.election.term + self._dice.choice((0, 0, 1))
        others = [h.me.node for h in self.host.world.hosts]
        known = {
            "policy": policy,
            "fence_term": term,
            "new_term": term + 1,
            "next_term": term + 1,
            "policy_term": policy.term,
            "version": policy.version + self._dice.choice((0, 1)),
            "iteration": node.context.iteration,
            "peer": self._dice.choice(others),
            "node": self._dice.choice(others),
            "number": self._dice.choice((1, 2, 5, 9)),
            "asked": True,
        }
        if hasattr(record, "restart"):
            count = len(policy.view.members)
            work = tuple(bytes([1 << k]) for k in range(count))
            changes = {"policy": replace(policy, version=policy.version + 1)}
            bitmaps = {"have": (b"",) * count, "work": work}
            restart = replace(record.restart, **changes, **bitmaps, iteration=known["iteration"])
            return replace(record, fence_term=term, number=known["number"], restart=restart)
        assert is_dataclass(record)
        have = {f.name for f in fields(record)} & known.keys()
        fitting: dict[str, Any] = {name: known[name] for name in sorted(have)}
        instance: Any = record
        return replace(instance, **fitting)

    # --- bulk frames ----------------------------------------------------------------------------

    def bulk(self, header: BulkHeader, payload: bytes) -> tuple[BulkHeader, bytes]:
        """Return the bulk frame to send instead, which may be the same."""
        if self.lie.bulk is None or header.kind not in (BulkKind.UP, BulkKind.DOWN):
            return header, payload
        if self._dice.random() >= max(self.lie.chance, 0.02):
            return header, payload
        what, name = self.lie.bulk
        lies: dict[str, Callable[[BulkHeader, bytes, str], tuple[BulkHeader, bytes] | None]] = {
            "header": self._header,
            "word up": self._word,
            "word down": self._word,
            "payload down": self._payload,
            "raw word": self._raw_word,
        }
        changed = lies[what](header, payload, name)
        self.told += changed is not None
        return changed or (header, payload)

    def _header(self, header: BulkHeader, payload: bytes, name: str) -> tuple[BulkHeader, bytes]:
        value = getattr(header, name)
        most = HEADER_LIMITS.get(name, 1 << 32)
        while True:
            new = self._changed(value)
            fits = not isinstance(new, int) or new < most
            if new != value and fits and not (name == "lineage" and len(new) != 16):
                fields_: dict[str, Any] = {name: new}
                return replace(header, **fields_), payload

    def _word(
        self, header: BulkHeader, payload: bytes, name: str
    ) -> tuple[BulkHeader, bytes] | None:
        kind = BulkKind.UP if self.lie.bulk and self.lie.bulk[0] == "word up" else BulkKind.DOWN
        if header.index or header.kind is not kind:
            return None
        raw = msgpack.unpackb(payload)
        raw[WORD_FIELDS.index(name)] = self._changed(raw[WORD_FIELDS.index(name)])
        return self._resized(header, msgpack.packb(raw))

    def _raw_word(
        self, header: BulkHeader, payload: bytes, _name: str
    ) -> tuple[BulkHeader, bytes] | None:
        if header.index:
            return None
        changed = self._flipped(payload)
        try:
            before, after = decode_word(payload), decode_word(changed)
        except RemoteProtocolError:
            return self._resized(header, changed)
        trusted = any(getattr(before, name) != getattr(after, name) for name in TRUSTED)
        return None if trusted else self._resized(header, changed)

    def _payload(
        self, header: BulkHeader, payload: bytes, _name: str
    ) -> tuple[BulkHeader, bytes] | None:
        if header.kind is not BulkKind.DOWN:
            return None
        return header, self._flipped(payload)

    def _flipped(self, payload: bytes) -> bytes:
        place = self._dice.randrange(len(payload))
        flipped = payload[place] ^ (1 << self._dice.randrange(8))
        return payload[:place] + bytes([flipped]) + payload[place + 1 :]

    def _resized(self, header: BulkHeader, payload: bytes) -> tuple[BulkHeader, bytes]:
        down = header.kind is BulkKind.DOWN
        check = checksum(payload, header.square_sum) if down else header.check
        return replace(header, length=len(payload), check=check), payload
