"""Whether the members' training states differ, and whose is taken for the wrong one.

After each update a member takes a short digest of its state's scalars and of a part of its tensors
(another part each time), its claim, and says it in its control word of the next iteration. Equal
words are reduced everywhere, so all members come to the same verdict without another message.

Law: if claims differ, the state that most members have counts, those that go on before those that
leave; of two that as many have, that of the member with the lowest id. Who has another one applies
nothing any more, contributes nothing, and pulls the state anew. What was summed with its gradients
is summed again without them. Claims show mistakes, not lies: a member can claim what it likes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from protocols.rounds.control_word import ControlWord

_BITMAP_BYTES = limits.MAX_MEMBERS // 8
_ENTRY_BYTES = limits.CLAIM_BYTES + _BITMAP_BYTES
PIECE_BYTES = 8  # of the digest of one tensor's piece in `StatePieces`


def claim(digest: bytes, member: int) -> bytes:
    """Return the claim of one member, number `member` of the view: `digest` has
    `limits.CLAIM_BYTES`. No digest (empty), no claim."""
    return digest + (1 << member).to_bytes(_BITMAP_BYTES, "little") if digest else b""


def read_claims(data: bytes) -> dict[bytes, int]:
    """Return digest -> bitmap of the members that claim it, ascending by digest.

    Raises `ValueError` unless `data` is what `merge_claims` could have made."""
    if len(data) % _ENTRY_BYTES:
        raise ValueError("claims of no whole number")
    found: dict[bytes, int] = {}
    seen, before = 0, b""
    for at in range(0, len(data), _ENTRY_BYTES):
        digest = data[at : at + limits.CLAIM_BYTES]
        members = int.from_bytes(data[at + limits.CLAIM_BYTES : at + _ENTRY_BYTES], "little")
        if not members or members & seen or digest <= before:
            raise ValueError("claims that contradict each other")
        seen, before = seen | members, digest
        found[digest] = members
    return found


def merge_claims(a: bytes, b: bytes) -> bytes:
    """Return the claims of both parts together; raises `ValueError` if a member is in both."""
    if not a or not b:
        return a or b
    whole = read_claims(a)
    taken = sum(whole.values())
    for digest, members in read_claims(b).items():
        if members & taken:
            raise ValueError("two claims of one member")
        whole[digest] = whole.get(digest, 0) | members
    return b"".join(d + whole[d].to_bytes(_BITMAP_BYTES, "little") for d in sorted(whole))


def claimants(data: bytes) -> int:
    """Return the bitmap of all members that claim anything."""
    return sum(read_claims(data).values())


def differing(word: ControlWord) -> tuple[int, ...]:
    """Return the members (their numbers in the view, ascending) whose state differs from the one
    that counts."""
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


def is_final(word: ControlWord) -> bool:
    """Whether what was reduced with `word` has every micro-batch, from members with one state: sums
    of which that is not true are summed again, so they are not worth keeping."""
    return not (any(word.refusing) or any(word.late) or differing(word))


def first_difference(mine: bytes, theirs: bytes) -> int | None:
    """Return the number of the first piece of the state whose digests differ, None if none does:
    both are digests of `PIECE_BYTES`, one after the other."""
    for at in range(0, min(len(mine), len(theirs)), PIECE_BYTES):
        if mine[at : at + PIECE_BYTES] != theirs[at : at + PIECE_BYTES]:
            return at // PIECE_BYTES
    return None


def bitmap(members: Iterable[int]) -> int:
    """Return the bitmap of these numbers."""
    return sum(1 << n for n in members)
