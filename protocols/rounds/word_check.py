"""Checks of control words, made at each hop, where it is still known which neighbour sent the word.

A word that passes can neither crash a trainer nor have a micro-batch counted twice. Each word is
compared with the job (`WordShape`, which comes from the trainer). On the way up it is also compared
with what the policy lets the members below its sender say (`Part`), and on the way down with this
node's own word. Gradients themselves are trusted, because only their sender could check them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols.errors import RemoteProtocolError
from protocols.rounds.claims import claimants, read_claims
from protocols.rounds.control_word import read_squares

if TYPE_CHECKING:
    from collections.abc import Mapping

    from protocols.cluster.policy import Policy
    from protocols.rounds.control_word import ControlWord

_COUNT = struct.Struct("<I")
_ENTRY = struct.Struct("<II")  # buffer number, bytes


@dataclass(frozen=True, slots=True)
class WordShape:
    """What all words of a job have in common. `parameters`: how many tensors can have a gradient.
    `buffers`: buffer number -> size in bytes, for the buffers in which all micro-batches must
    agree. `held_chunks`: the number of data chunks if these have holders, else 0."""

    micro_batches: int
    parameters: int
    buffers: Mapping[int, int]
    held_chunks: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """What the word of the tree child `child` may contain, which speaks for it and all members
    below it. `members`: bitmap of their numbers in the view. `due`: bitmap of the micro-batches
    that are theirs, None if micro-batches were handed back and dealt out anew."""

    child: bytes
    members: int
    due: int | None


def check_word(word: ControlWord, shape: WordShape) -> None:
    """Raise `RemoteProtocolError` unless `word` fits this job."""
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
    if word.squares and len(word.squares) != 8 * shape.held_chunks:
        raise RemoteProtocolError("a control word with squares of another number of chunks")
    if any(x < 0.0 for x in read_squares(word.squares)):
        raise RemoteProtocolError("a control word with an impossible sum of squares")


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
    """Raise `RemoteProtocolError` unless `word`, which is reduced, contains `own`, this node's own
    word, and lacks no micro-batch without saying why."""
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
    """Return what the words of the children of `node` may contain. `dealt`: member -> its
    micro-batches in this attempt, None if that is not known."""
    nodes, tree = policy.view.nodes, policy.tree
    parts: list[Part] = []
    for child in tree.children(node):
        below = [child]
        for at in below:
            below += tree.children(at)
        members = sum(1 << nodes.index(n) for n in below)
        due = None if dealt is None else sum(1 << m for n in below for m in dealt[n])
        parts.append(Part(child, members, due))
    return tuple(parts)


def _check_buffers(data: bytes, sizes: Mapping[int, int]) -> None:
    """Raise `RemoteProtocolError` unless `data` is a count of buffers and then, for each of them,
    its number, its length and so many bytes; `sizes` gives the length for each number."""
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
