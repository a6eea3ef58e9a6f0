"""The greatest rate at which any set of trees can sum gradients, as a linear program.

The result is exact for every network: rates may differ by direction, and nodes and a shared channel
may have limits. The module is among the tests because the planner may not use scipy (extra
`bench`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MISSING = "packing needs scipy: pip install 'edgeagent[bench]'"


@dataclass(frozen=True, slots=True)
class Packing:
    """A packing of trees. `rate`: bytes/s of gradients that can be summed and spread to all nodes.
    `roots[r]`: the part of `rate` whose trees have the root r. `reduce[u, v]`, `broadcast[u, v]`:
    how many bytes/s of the link from u to v summing and spreading use."""

    rate: float
    roots: tuple[float, ...]
    reduce: dict[tuple[int, int], float]
    broadcast: dict[tuple[int, int], float]


def packing(
    rates: Sequence[Sequence[float]],
    up: Sequence[float] | None = None,
    down: Sequence[float] | None = None,
    shared: float = math.inf,
) -> Packing:
    """Return the best packing of reduce trees and broadcast trees into the links.

    `rates[u][v]`: bytes/s from u to v. `up[v]`, `down[v]`: what v can send and receive in all.
    `shared`: what all links can carry together. The reduce tree and the broadcast tree of a chunk
    share a root, not links. Maximise sum x_r with a_e + b_e <= c_e, where for every node v the
    flow of x_r from each r reaches v within b, and flows from v reach each r with x_r within a
    (Edmonds' branchings). Raises ValueError for fewer than two nodes, ModuleNotFoundError without
    scipy, RuntimeError if HiGHS fails.
    """
    if len(rates) < 2:
        raise ValueError("there is nothing to sum between fewer than two nodes")
    try:
        from scipy.optimize import linprog
        from scipy.sparse import coo_matrix
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(MISSING) from error
    nodes = range(len(rates))
    links = [(u, v) for u in nodes for v in nodes if u != v and rates[u][v] > 0]
    room = [
        min(rates[u][v], shared, up[u] if up else math.inf, down[v] if down else math.inf)
        for u, v in links
    ]
    scale = max(room, default=0.0) or 1.0  # HiGHS is as exact as 1e-7 near 1
    program = _Program(len(rates), links)
    for k, most in enumerate(room):
        program.at_most([(program.a(k), 1), (program.b(k), 1)], most / scale)
    for v in nodes:
        for limits, end in ((up, 0), (down, 1)):
            if limits is not None:
                used = [k for k, link in enumerate(links) if link[end] == v]
                program.at_most(program.both(used), limits[v] / scale)
    if shared < math.inf:
        program.at_most(program.both(range(len(links))), shared / scale)
    for v in nodes:
        program.flows(v)

    def matrix(entries: list[tuple[int, int, float]], rows: int) -> coo_matrix:
        row, column, value = zip(*entries, strict=True) if entries else ((), (), ())
        return coo_matrix((value, (row, column)), shape=(rows, program.width))

    cost = np.zeros(program.width)
    cost[: len(rates)] = -1
    found = linprog(
        cost,
        A_ub=matrix(program.upper, len(program.limits)),
        b_ub=program.limits,
        A_eq=matrix(program.equal, program.equations) if program.equations else None,
        b_eq=np.zeros(program.equations) if program.equations else None,
        bounds=(0, len(rates)),
        method="highs",
    )
    if found.status != 0:
        raise RuntimeError(f"HiGHS: {found.message}")
    x = np.maximum(found.x, 0) * scale
    return Packing(
        float(sum(x[: len(rates)])),
        tuple(float(x[r]) for r in nodes),
        {link: float(x[program.a(k)]) for k, link in enumerate(links)},
        {link: float(x[program.b(k)]) for k, link in enumerate(links)},
    )


class _Program:
    """Columns: x of each node; a, b of each link; for each v two flows on each link."""

    def __init__(self, count: int, links: list[tuple[int, int]]) -> None:
        self.count = count
        self.links = links
        self.width = count + 2 * len(links) * (1 + count)
        self.upper: list[tuple[int, int, float]] = []  # (row, column, factor)
        self.equal: list[tuple[int, int, float]] = []
        self.limits: list[float] = []
        self.equations = 0

    def a(self, link: int) -> int:
        """Column of what reducing uses of a link."""
        return self.count + link

    def b(self, link: int) -> int:
        """Column of what broadcasting uses of a link."""
        return self.count + len(self.links) + link

    def both(self, links: Sequence[int]) -> list[tuple[int, float]]:
        """All that some links carry."""
        return [(column, 1.0) for k in links for column in (self.a(k), self.b(k))]

    def at_most(self, terms: Sequence[tuple[int, float]], limit: float) -> None:
        """Add `sum of factor * column <= limit`."""
        self.upper += [(len(self.limits), column, factor) for column, factor in terms]
        self.limits.append(limit)

    def flows(self, v: int) -> None:
        """Every root's part reaches v within b and leaves v within a."""
        many = len(self.links)
        for use, column_of, sign in ((0, self.b, 1), (1, self.a, -1)):
            first = self.count + 2 * many * (1 + v) + use * many
            for k in range(many):
                self.at_most([(first + k, 1), (column_of(k), -1)], 0.0)
            for w in range(self.count):
                if w != v:  # what enters (leaves, in a) w, and its own part, leaves (enters) it
                    row = self.equations
                    self.equal.append((row, w, sign))
                    for k, (begin, end) in enumerate(self.links):
                        if w in (begin, end):
                            self.equal.append((row, first + k, 1 if w == end else -1))
                    self.equations += 1
