"""Which tests suffice to reach every branch of the pure core.

Tracing makes a test two to three times as slow, and a fifth of the core's tests reach all of its
branches. `covering.txt` names these; `scripts/test` traces them alone, and runs the others as they
are. If they miss a branch, because code or tests have changed, the others are traced, too, so the
list decides only how long that takes. `scripts/test --covering` chooses it anew.

Usage: python -m tests.covering COVERAGE JUNIT

COVERAGE is the data of a run of all the core's tests with `--cov-context=test`, and JUNIT has the
seconds that each of them took. The names are written to `covering.txt`.
"""

from __future__ import annotations

import sqlite3
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pytest

LIST = Path(__file__).with_suffix(".txt")
WAYS = ("only", "others")
LEAST_SECONDS = 0.05  # that starting a test costs, so that few tests are better than many

Arc = tuple[int, int, int]  # the number of a file, and from which line to which one


def select(way: str, items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return which tests to run, those of the list or the others, and which to leave out."""
    known = dict.fromkeys(LIST.read_text("utf-8").splitlines())
    mine: list[pytest.Item] = []
    rest: list[pytest.Item] = []
    for item in items:
        (mine if (item.nodeid in known) == (way == "only") else rest).append(item)
    return mine, rest


def choose(reached: Mapping[str, set[Arc]], seconds: Mapping[str, float]) -> list[str]:
    """Return the names of tests that together reach what all of them reach, in little time.

    Those that alone reach something are needed. After them the one comes next that reaches the most
    new arcs for its time.
    """
    how_many: dict[Arc, int] = {}
    for arcs in reached.values():
        for arc in arcs:
            how_many[arc] = how_many.get(arc, 0) + 1
    chosen = [name for name, arcs in reached.items() if any(how_many[a] == 1 for a in arcs)]
    missing = how_many.keys() - set[Arc]().union(*(reached[name] for name in chosen))
    left = {name: arcs & missing for name, arcs in reached.items()}
    while missing:
        left = {name: new for name, arcs in left.items() if (new := arcs & missing)}
        best = max(left, key=lambda name: len(left[name]) / (seconds[name] + LEAST_SECONDS))
        chosen.append(best)
        missing -= left[best]
    return sorted(chosen)


def read_arcs(path: str) -> dict[str, set[Arc]]:
    """Return what each test reaches beyond what importing the modules does."""
    with sqlite3.connect(path) as data:
        names = {k: name.rpartition("|")[0] for k, name in data.execute("select * from context")}
        reached: dict[str, set[Arc]] = {}
        rows: Iterable[tuple[int, int, int, int]]
        rows = data.execute("select context_id, file_id, fromno, tono from arc")
        for context, *arc in rows:
            reached.setdefault(names[context], set()).add((arc[0], arc[1], arc[2]))
    imported = reached.pop("", set())
    return {name: arcs - imported for name, arcs in reached.items()}


def read_seconds(path: str) -> dict[str, float]:
    """Return how many seconds each test took."""
    return {
        f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}": float(
            case.get("time", "0")
        )
        for case in ElementTree.parse(path).iter("testcase")
    }


def main(coverage: str, junit: str) -> None:
    """Write the list."""
    seconds = read_seconds(junit)
    reached = {name: arcs for name, arcs in read_arcs(coverage).items() if name in seconds}
    chosen = choose(reached, seconds)
    LIST.write_text("".join(f"{name}\n" for name in chosen), "utf-8")
    part, whole = sum(seconds[name] for name in chosen), sum(seconds.values())
    print(f"{LIST.name}: {len(chosen)} of {len(seconds)} tests, {part:.0f} of {whole:.0f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
