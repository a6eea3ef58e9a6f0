"""A tree of names drawn with branches, one row for each name.

Law: pure; ends for any input, also one that is no tree because two members share a name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DEEPEST = 8  # levels that are indented; what lies deeper says its depth instead


def tree_rows(root: str, parents: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (branches, name), the root first, each name before what hangs below it.

    `parents`: child -> parent. What cannot be reached from `root` is left out.
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
        hanging = sorted(children.get(name, ()), reverse=True)  # the last to wait is drawn first
        for number, child in enumerate(hanging):
            if depth >= DEEPEST:
                waiting.append((child, f"{below}({depth + 1}) ", below, depth + 1))
            elif number == 0:
                waiting.append((child, f"{below}`- ", f"{below}   ", depth + 1))
            else:
                waiting.append((child, f"{below}|- ", f"{below}|  ", depth + 1))
