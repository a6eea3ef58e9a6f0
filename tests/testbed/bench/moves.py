"""What a divided optimizer has to move when devices come and go, and how long it takes to decide.

Nothing is sent here: `protocols/scheduler/levelling.py` is asked, and answered as if what is
learned had come. Beside it stands what ranges of chunks would move: with them each device has one
range of the vector, as optimizers that are divided in processes of equal number have, and the next
ones in a circle have its copies.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

from protocols import limits
from protocols.cluster.stripes import Stripe, renumbered
from protocols.cluster.view import Member, View, edge, make_view
from protocols.scheduler.levelling import level

HELP = "moves: what a divided optimizer moves when devices come and go; nothing is sent"
HOLDERS = range(2, 9)
DECISIONS = (8, 16, 32, 64)
STRIPES = limits.MAX_STRIPES
REPEAT = 3
LINEAGE = bytes(16)

Moved: TypeAlias = Counter[tuple[int, int]]  # (who lends, who learns) -> stripes


def add_options(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(args: argparse.Namespace) -> int:
    """Calculate, write and print."""
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "moves.md").write_text(table())
    print((args.out / "moves.md").read_text())
    return 0


def view_of(count: int) -> View:
    """Return so many members, all linked."""
    nodes = [number.to_bytes(16, "big") for number in range(1, count + 1)]
    members = [Member(node, 1, f"device {k}", "", (), b"", False) for k, node in enumerate(nodes)]
    return make_view(LINEAGE, 1, members, [edge(a, b) for a in nodes for b in nodes if a < b])


def levelled(view: View, stripes: tuple[Stripe, ...], copies: int) -> tuple[Stripe, ...]:
    """Return who holds what once everything is learned that `level` wants to be learned."""
    while True:
        found = level(view, stripes, copies)
        if found == stripes and not any(s.learners for s in found):
            return found
        learned = {(s, view.nodes[k]) for s, x in enumerate(found) for k in x.learners}
        stripes = level(view, found, copies, (), learned)


def ranges(view: View, stripes: tuple[Stripe, ...], copies: int) -> tuple[Stripe, ...]:
    """Return who holds what if each device owns one range of stripes, in the order in which devices
    own them now, newcomers last."""
    count = len(view.nodes)
    first = {stripe.owner: s for s, stripe in reversed(list(enumerate(stripes)))}
    order = sorted(range(count), key=lambda k: (first.get(k, len(stripes)), k))
    found: list[Stripe] = []
    for s in range(len(stripes)):
        at = s * count // len(stripes)
        wanted = min(copies + 1, count)
        found.append(Stripe(bytes(order[(at + j) % count] for j in range(wanted))))
    return tuple(found)


Divide: TypeAlias = Callable[[View, tuple[Stripe, ...], int], tuple[Stripe, ...]]


def moved(before: Sequence[Stripe], after: Sequence[Stripe]) -> Moved:
    """Return how many stripes go from whom to whom. Of several who can lend one, the one that has
    lent the least so far does."""
    found: Moved = Counter()
    lent: Counter[int] = Counter()
    for old, new in zip(before, after, strict=True):
        for k in new.holders:
            if k not in old.holders:
                lender = min(old.holders, key=lambda h: (lent[h], h))
                lent[lender] += 1
                found[lender, k] += 1
    return found


def busiest(found: Moved) -> int:
    """Return the stripes on the busiest direction of a link."""
    return max(found.values(), default=0)


def join(divide: Divide, count: int, copies: int) -> Moved:
    """Return what moves when one more joins so many."""
    start = divide(view_of(count), (Stripe(b"\0"),) * STRIPES, copies)
    return moved(start, divide(view_of(count + 1), start, copies))


def loss(divide: Divide, count: int, copies: int) -> Moved:
    """Return what moves when one of so many, in the middle, is lost; its copies are there."""
    whole, view = divide(view_of(count), (Stripe(b"\0"),) * STRIPES, copies), view_of(count)
    gone = view.nodes[count // 2]
    rest = [member for member in view.members if member.node != gone]
    edges = [e for e in view.edges if gone not in (e.low, e.high)]
    left = make_view(LINEAGE, 2, rest, edges)
    start = renumbered(whole, view.nodes, left.nodes)
    return moved(start, divide(left, start, copies))


def bound(count: int, copies: int, *, joins: bool) -> float:
    """Return how many stripes have to move at least: the newcomer's equal part, or the part of who
    was lost."""
    after = count + 1 if joins else count
    return STRIPES * min(1.0, (copies + 1) / after) if joins or count - 1 > copies else 0.0


def decision_s(count: int, copies: int, links: int) -> float:
    """Return the seconds of the longest decision on the way from one member that holds everything
    to so many that hold equally much; the shortest of some tries. Each is linked to so many others
    before and after it in a circle."""
    nodes = view_of(count).nodes
    near = range(1, min(links, count - 1) + 1)
    pairs = {edge(nodes[k], nodes[(k + j) % count]): None for k in range(count) for j in near}
    view = make_view(LINEAGE, 1, list(view_of(count).members), list(pairs))
    return min(_longest_s(view, copies) for _ in range(REPEAT))


def _longest_s(view: View, copies: int) -> float:
    stripes: tuple[Stripe, ...] = (Stripe(b"\0"),) * STRIPES
    learned: dict[tuple[int, bytes], None] = {}
    longest = 0.0
    while True:
        begun = time.perf_counter()
        found = level(view, stripes, copies, (), learned)
        longest = max(longest, time.perf_counter() - begun)
        learned = {(s, view.nodes[k]): None for s, x in enumerate(found) for k in x.learners}
        if not learned and found == stripes:
            return longest
        stripes = found


def table() -> str:
    """Return all of that as Markdown."""
    head = ["devices", "copies", "at least", "ours", "ranges", "ratio", "busiest link", "of ranges"]
    lines: list[str] = []
    for what, change in (("A device joins", join), ("A device is lost", loss)):
        lines += [f"{what}; in stripes of {STRIPES}:", ""]
        lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        for copies in (0, 1) if change is join else (1, 2):
            for count in HOLDERS:
                if change is loss and count - 1 <= copies:
                    continue  # those who are left hold all of it
                ours, others = change(levelled, count, copies), change(ranges, count, copies)
                cells = [f"{count} to {count + 1 if change is join else count - 1}", str(copies)]
                cells.append(f"{bound(count, copies, joins=change is join):.1f}")
                cells += [str(ours.total()), str(others.total())]
                cells.append(f"{others.total() / max(1, ours.total()):.2f}")
                cells += [str(busiest(ours)), str(busiest(others))]
                lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    lines += ["| members | all linked | eight links each | a ring |", "|---|---|---|---|"]
    for n in DECISIONS:
        times = [f"{1000 * decision_s(n, 1, links):.0f} ms" for links in (n, 4, 1)]
        lines.append(f"| {n} | " + " | ".join(times) + " |")
    return "\n".join(lines) + "\n"
