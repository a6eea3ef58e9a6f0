"""Whether the members' training states differ, and which of them is taken for the wrong one.

After each update a member takes a short digest of its state's scalars and of a part of its tensors,
another part each time. This claim travels in its control word of the next iteration. The reduced
word is the same everywhere, so all members come to the same verdict without another message.

If claims differ, the state that counts is the one that most members have, not counting those that
leave. If two states are equally frequent, leaving members are counted, too; if that does not
decide, the state of the member with the lowest id counts. A member with another state applies and
contributes nothing any more, and pulls the state anew; what was summed with its gradients is summed
again without them. Claims show mistakes and not lies, since a member can claim what it likes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols.rounds.claims import read_claims
from protocols.rounds.control_word import numbers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from protocols.rounds.control_word import ControlWord

PIECE_BYTES = 8  # length of the digest of one tensor's piece in `StatePieces`


def differing(word: ControlWord) -> tuple[int, ...]:
    """Return the members whose state differs from the one that counts, as their numbers in the
    view, ascending."""
    claims = read_claims(word.claims)
    if len(claims) < 2:
        return ()
    refusing = int.from_bytes(word.refusing, "little")

    def weight(members: int) -> tuple[int, int, int]:
        lowest = members & -members
        return (members & ~refusing).bit_count(), members.bit_count(), -lowest

    right = max(claims.values(), key=weight)
    others = sum(claims.values()) & ~right
    return tuple(n for n in range(others.bit_length()) if others >> n & 1)


def is_final(word: ControlWord, micro_batches: int) -> bool:
    """Whether what was reduced with `word` contains every micro-batch, computed from one state.
    Sums for which that does not hold are made again, so a fence must not keep them; all others are
    applied, whoever refuses work or is late, so a fence must not have them made again.

    `micro_batches`: how many an iteration has; 0 in the farewell round, where nothing is summed.
    """
    return not differing(word) and not numbers(word.done, micro_batches, unset=True)


def first_difference(mine: bytes, theirs: bytes) -> int | None:
    """Return the number of the first piece of the state whose digests differ, None if none does.
    `mine` and `theirs` are the digests of all pieces, of `PIECE_BYTES` each, one after the
    other."""
    for at in range(0, min(len(mine), len(theirs)), PIECE_BYTES):
        if mine[at : at + PIECE_BYTES] != theirs[at : at + PIECE_BYTES]:
            return at // PIECE_BYTES
    return None


def bitmap(members: Iterable[int]) -> int:
    """Return the bitmap, as an integer, in which the bits of these numbers are set."""
    return sum(1 << n for n in members)
