"""Claims: what each member says about its training state, as bytes in the control word.

A claim is the short digest of one member's state after an update (`limits.CLAIM_BYTES`). Usually
all claim the same, so the control word has each digest once, with a bitmap of the members (their
numbers in the view) that claim it; ascending by digest, so that equal claims are equal bytes.
"""

from __future__ import annotations

from protocols import limits

_BITMAP_BYTES = limits.MAX_MEMBERS // 8
_ENTRY_BYTES = limits.CLAIM_BYTES + _BITMAP_BYTES


def claim(digest: bytes, member: int) -> bytes:
    """Return the claims of a word in which only the member with the number `member` in the view
    claims something: `digest`, of `limits.CLAIM_BYTES`. An empty digest makes no claim."""
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
    """Return the claims of both parts together. Raises `ValueError` if a member is in both, or if
    one of them is malformed."""
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
