"""A tree of names drawn with branches, one row for each name.

Two members may have the same name, so the input need not be a tree; the drawing ends for any input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DEEPEST = 8  # levels that are indented; deeper names have their depth in brackets instead


def tree_rows(root: str, parents: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (branches, name), the root first and each name before those below it.

    `parents` maps each child to its parent. Names that cannot be reached from `root` are left out.
    """
    children: dict[str, list[str]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    seen = {}
    waiting = [(root, "", "", 0)]
    while waiting:
        name, branches, below, depth = waiting.pop()
        if name in seen:
            continue
        seen[name] = True
        yield branches, name
        hanging = sorted(children.get(name, ()), reverse=True)  # `pop` takes the last one first
        for number, child in enumerate(hanging):
            if depth >= DEEPEST:
                waiting.append((child, f"{below}({depth + 1}) ", below, depth + 1))
            elif number == 0:
                waiting.append((child, f"{below}`- ", f"{below}   ", depth + 1))
            else:
                waiting.append((child, f"{below}|- ", f"{below}|  ", depth + 1))
