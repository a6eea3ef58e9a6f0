"""How many micro-batches of the global batch each member computes.

Law: shares add up to the global batch; a member that is away gets none unless all are away.
"""

from __future__ import annotations


def even_shares(
    nodes: tuple[bytes, ...], micro_batches: int, away: tuple[bytes, ...]
) -> tuple[int, ...]:
    """Return the shares in the order of `nodes`; those of present nodes differ by at most one."""
    present = [n for n in nodes if n not in away] or list(nodes)
    each, rest = divmod(micro_batches, len(present))
    extra = dict.fromkeys(present[:rest], 1)
    return tuple(each + extra.get(n, 0) if n in present else 0 for n in nodes)
