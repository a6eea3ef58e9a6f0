"""What a control word may say: checked at each hop, while it is known from whom it came.

Law: what passes here neither ends a trainer nor counts a micro-batch twice. A word is held against
the job (`WordShape`, from the trainer) and, on the way up, against what the policy lets the members
below its sender say (`Part`). Gradients themselves are trusted.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols.errors import RemoteProtocolError
from protocols.rounds.claims import claimants, read_claims

if TYPE_CHECKING:
    from collections.abc import Mapping

    from protocols.cluster.policy import Policy
    from protocols.rounds.control_word import ControlWord

_COUNT = struct.Struct("<I")
_ENTRY = struct.Struct("<II")  # buffer number, bytes


@dataclass(frozen=True, slots=True)
class WordShape:
    """What every word of a job is like. `parameters`: how many can have a gradient. `buffers`:
    number -> bytes of the buffers in which all micro-batches must agree."""

    micro_batches: int
    parameters: int
    buffers: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Part:
    """What the members below and including tree child `child` may say. `members`: bitmap of their
    places in the view. `due`: bitmap of the micro-batches that are theirs, None if handing back
    has mixed that up."""

    child: bytes
    members: int
    due: int | None


def check_word(word: ControlWord, shape: WordShape) -> None:
    """Raise `RemoteProtocolError` unless `word` can be one of this job."""
    done = int.from_bytes(word.done, "little")
    if done >> shape.micro_batches:
        raise RemoteProtocolError("a control word with micro-batches that there are none of")
    gradients = word.gradient_bitmap
    if done or gradients:
        if len(gradients) != -(-shape.parameters // 8):
            raise RemoteProtocolError("a control word with gradients of another model")
        if int.from_bytes(gradients, "little") >> shape.parameters:
            raise RemoteProtocolError("a control word with gradients of no parameter")
    if not word.agree:
        raise RemoteProtocolError("its micro-batches left different values in buffers")
    _check_buffers(word.integer_buffers, shape.buffers)


def check_part(word: ControlWord, part: Part) -> None:
    """Raise `RemoteProtocolError` unless the members of `part` can have said `word` together."""
    done, refusing = (int.from_bytes(x, "little") for x in (word.done, word.refusing))
    late = int.from_bytes(word.late, "little")
    if (refusing | late | claimants(word.claims)) & ~part.members:
        raise RemoteProtocolError("a control word that speaks for members elsewhere in the tree")
    if part.due is None:
        return
    if done & ~part.due:
        raise RemoteProtocolError("a control word with micro-batches of other members")
    if part.due & ~done and not (refusing or late):
        raise RemoteProtocolError("a control word without micro-batches that nobody handed back")


def check_result(word: ControlWord, own: ControlWord, micro_batches: int) -> None:
    """Raise `RemoteProtocolError` unless `word` can be what came of a round with `own` in it."""
    done, mine = (int.from_bytes(x.done, "little") for x in (word, own))
    if mine & ~done:
        raise RemoteProtocolError("a reduced control word without our micro-batches")
    claims = read_claims(word.claims)
    for digest, members in read_claims(own.claims).items():
        if members & ~claims.get(digest, 0):
            raise RemoteProtocolError("a reduced control word without our claim")
    if own.stop and not word.stop:
        raise RemoteProtocolError("a reduced control word without our wish to stop")
    excused = any(word.refusing) or any(word.late)
    if done != (1 << micro_batches) - 1 and not excused:
        raise RemoteProtocolError("a reduced control word that lacks what nobody handed back")


def policy_parts(
    policy: Policy, node: bytes, dealt: Mapping[bytes, tuple[int, ...]] | None
) -> tuple[Part, ...]:
    """Return what the children of `node` may say if the micro-batches are `dealt` so."""
    nodes = policy.view.nodes
    parts: list[Part] = []
    for child in policy.children(node):
        below = [child]
        for at in below:
            below += policy.children(at)
        members = sum(1 << nodes.index(n) for n in below)
        due = None if dealt is None else sum(1 << m for n in below for m in dealt[n])
        parts.append(Part(child, members, due))
    return tuple(parts)


def _check_buffers(data: bytes, sizes: Mapping[int, int]) -> None:
    """The bytes say how many buffers follow, then each one's number, length and content."""
    if not data:
        return
    try:
        (count,) = _COUNT.unpack_from(data)
        at = _COUNT.size
        for _ in range(count):
            number, length = _ENTRY.unpack_from(data, at)
            if sizes.get(number) != length:
                raise RemoteProtocolError("a control word with buffers of another model")
            at += _ENTRY.size + length
    except struct.error:
        at = -1
    if at != len(data):
        raise RemoteProtocolError("a control word with torn buffers")
