"""Planned trees compared with all spanning trees, all simple paths, and a round played by chunks.

The second implementations simply enumerate. If results must be exactly equal, rates are powers of
two, so that no sum is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise
from math import inf, isclose

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edgeagent.planner.measures import Filled, name_of, qualities
from edgeagent.planner.trees import (
    LEAST_GAIN,
    fastest_tree,
    plan_tree,
    round_time,
    shallow_tree,
    significant,
)
from protocols import limits
from protocols.cluster.policy import Policy
from protocols.cluster.tree import Tree, tree_fault
from protocols.cluster.view import View, make_view
from protocols.network.measures import Measures, Rate
from tests.unit.protocols.records import LINEAGE, member, node, view_of

SIZE = 1e6
MEGABIT = 125_000.0  # bytes/s
Links = dict[tuple[bytes, bytes], Rate]


@st.composite
def shapes(draw: st.DrawFn, most: int = 5) -> View:
    """Connected views of up to `most` members."""
    count = draw(st.integers(1, most))
    links = [(draw(st.integers(1, k - 1)), k) for k in range(2, count + 1)]
    pairs = list(combinations(range(1, count + 1), 2))
    extra = draw(st.lists(st.sampled_from(pairs), max_size=8)) if pairs else []
    return view_of(count, links + extra)


@st.composite
def measured(
    draw: st.DrawFn, view: View, *, delays: bool, alike: bool = False, gaps: bool = False
) -> Measures:
    """Measures of its links; `alike`: delays are the same both ways; `gaps`: some are missing."""
    found: Links = {}
    for link in view.edges:
        there, back = draw(st.tuples(*[st.integers(0, 5).map(lambda k: 2.0**k)] * 2))
        wait = st.integers(0, 64).map(lambda k: k / 64) if delays else st.just(0.0)
        one = draw(wait)
        other = one if alike else draw(wait)
        found[link.low, link.high] = Rate(one, there * MEGABIT)
        found[link.high, link.low] = Rate(other, back * MEGABIT)
    if gaps:
        lost = draw(st.lists(st.sampled_from(list(found)), max_size=4)) if found else []
        found = {ends: rate for ends, rate in found.items() if ends not in lost}
    return Measures(found)


def cases(
    *, delays: bool, alike: bool = False, gaps: bool = False
) -> st.SearchStrategy[tuple[View, Measures]]:
    """Views with measures of their links."""

    def with_measures(view: View) -> st.SearchStrategy[tuple[View, Measures]]:
        return st.tuples(st.just(view), measured(view, delays=delays, alike=alike, gaps=gaps))

    return shapes().flatmap(with_measures)


def all_trees(view: View) -> Iterator[Tree]:
    """Every spanning tree of `view` from every root."""
    for chosen in combinations(view.edges, len(view.nodes) - 1):
        for root in view.nodes:
            up = {root: b""}
            for _ in view.nodes:
                for e in chosen:
                    for child, parent in ((e.low, e.high), (e.high, e.low)):
                        if parent in up and child not in up:
                            up[child] = parent
            if len(up) == len(view.nodes):
                yield Tree(view.nodes, tuple(up[n] for n in view.nodes))


def simple_paths(view: View, start: bytes, end: bytes) -> Iterator[list[bytes]]:
    """Every path without repetition."""
    waiting = [[start]]
    while waiting:
        path = waiting.pop()
        if path[-1] == end:
            yield path
        waiting += [[*path, n] for n in view.neighbours(path[-1]) if n not in path]


def weight(measures: Measures, a: bytes, b: bytes) -> float:
    """Seconds per byte of the slower direction; everything is measured."""
    return 1 / min(measures.links[a, b].rate, measures.links[b, a].rate)


def shortest(view: View, measures: Measures, start: bytes, end: bytes) -> tuple[float, int]:
    """(length, hops) of the shortest path, the one with fewest hops among equals."""
    return min(
        (sum(weight(measures, a, b) for a, b in pairwise(p)), len(p) - 1)
        for p in simple_paths(view, start, end)
    )


@given(cases(delays=False))
def test_the_fastest_tree_has_shortest_paths_from_the_root_of_best_quality(
    case: tuple[View, Measures],
) -> None:
    view, measures = case
    tree = fastest_tree(view, measures)
    far = {r: max(shortest(view, measures, r, n)[0] for n in view.nodes) for r in view.nodes}
    assert tree.root == min(view.nodes, key=lambda r: (far[r], r))
    for child, parent in tree.edges:
        length, hops = shortest(view, measures, tree.root, child)
        through = {n: shortest(view, measures, tree.root, n) for n in view.neighbours(child)}
        good = [
            n
            for n, (way, count) in through.items()
            if (way + weight(measures, n, child), count + 1) == (length, hops)
        ]
        assert parent == min(good)
        assert len(tree.path(child)) - 1 == hops


def played(tree: Tree, measures: Measures, chunks: int, chunk_bytes: float) -> float:
    """Return when the last node has the last chunk. Each direction of an edge sends one chunk at a
    time, and a parent adds a chunk when it has that of all its children."""
    order = sorted(tree.nodes, key=lambda n: len(tree.path(n)))
    up = dict(tree.edges)
    busy: dict[tuple[bytes, bytes], float] = {}
    end = 0.0

    def sent(a: bytes, b: bytes, ready: float) -> float:
        busy[a, b] = max(busy.get((a, b), 0.0), ready) + chunk_bytes / measures.links[a, b].rate
        return busy[a, b] + measures.links[a, b].delay_s

    for _ in range(chunks):
        ready = dict.fromkeys(tree.nodes, 0.0)
        for n in reversed(order):
            if n in up:
                ready[up[n]] = max(ready[up[n]], sent(n, up[n], ready[n]))
        for n in order:
            if n in up:
                ready[n] = sent(up[n], n, ready[up[n]])
        end = max(end, *ready.values())
    return end


@given(cases(delays=True), st.integers(1, 6), st.data())
def test_a_modelled_round_is_never_too_short_and_exact_along_a_chain(
    case: tuple[View, Measures], chunks: int, data: st.DataObject
) -> None:
    view, measures = case
    tree = data.draw(st.sampled_from(list(all_trees(view))))
    chunk_bytes = SIZE / 8
    modelled = round_time(tree, measures, chunks * chunk_bytes, chunk_bytes=chunk_bytes)
    real = played(tree, measures, chunks, chunk_bytes)
    assert real <= modelled * (1 + 1e-9)
    if len(tree.nodes) == tree.depth + 1:
        assert isclose(real, modelled)
    slowest = max((weight(measures, *ends) for ends in tree.edges), default=0.0)
    pace = chunks * chunk_bytes * slowest
    assert pace <= modelled * (1 + 1e-9)
    delays = round_time(tree, measures, 0.0)
    assert isclose(round_time(tree, measures, chunks * chunk_bytes), pace + delays)


@given(cases(delays=False, gaps=True))
def test_no_tree_is_faster_where_links_have_no_delay(case: tuple[View, Measures]) -> None:
    view, measures = case
    plan = plan_tree(view, measures, SIZE, None)
    every = [round_time(tree, measures, SIZE) for tree in all_trees(view)]
    if not measures.links:
        assert plan.predicted_s is None
    else:
        assert plan.predicted_s is not None
        assert isclose(plan.predicted_s, min(every))


def has_only_shortest_paths(view: View, weigh: Callable[[bytes, bytes], float], tree: Tree) -> bool:
    """Whether each node's path in `tree` is shorter than every other from its root."""
    for n in view.nodes:
        lengths = {
            tuple(p): sum(weigh(a, b) for a, b in pairwise(p))
            for p in simple_paths(view, tree.root, n)
        }
        own = lengths.pop(tuple(reversed(tree.path(n))), None)
        if own is None or any(other <= own for other in lengths.values()):
            return False
    return True


@given(cases(delays=True), st.sampled_from([0.0, SIZE / 16]))
def test_no_widest_tree_of_least_ways_there_and_back_is_faster(
    case: tuple[View, Measures], chunk_bytes: float
) -> None:
    view, measures = case
    assume(len(view.nodes) > 1)
    predicted_s = plan_tree(view, measures, SIZE, None, chunk_bytes=chunk_bytes).predicted_s
    assert predicted_s is not None
    slowest = [max(weight(measures, *ends) for ends in tree.edges) for tree in all_trees(view)]
    links = [e for e in view.edges if weight(measures, e.low, e.high) <= min(slowest)]
    wide = make_view(view.lineage, view.number, list(view.members), links)

    def there_and_back(a: bytes, b: bytes) -> float:
        rates = measures.links[a, b], measures.links[b, a]
        return sum(r.delay_s + chunk_bytes / r.rate for r in rates)

    for tree in all_trees(wide):
        if has_only_shortest_paths(wide, there_and_back, tree):
            time = round_time(tree, measures, SIZE, chunk_bytes=chunk_bytes)
            assert predicted_s <= time * (1 + 1e-9)


@given(cases(delays=True, alike=True), st.sampled_from([0.0, SIZE / 16]))
def test_the_best_is_no_slower_than_any_candidate(
    case: tuple[View, Measures], chunk_bytes: float
) -> None:
    view, measures = case
    assume(len(view.nodes) > 1)
    plan = plan_tree(view, measures, SIZE, None, chunk_bytes=chunk_bytes)
    tree = Tree(view.nodes, plan.parents)
    Policy(1, 1, view, plan.parents, (1,) * len(view.nodes), (), plan.reason)  # checks the tree
    assert (plan.root, plan.depth) == (tree.root, tree.depth)
    assert plan.predicted_s is not None

    def time(other: Tree) -> float:
        return round_time(other, measures, SIZE, chunk_bytes=chunk_bytes)

    def slowest(other: Tree) -> float:
        return max(weight(measures, *ends) for ends in other.edges)

    def hops(other: Tree) -> float:
        return round_time(other, measures, 0.0, chunk_bytes=chunk_bytes)

    assert plan.predicted_s == time(tree)
    every = list(all_trees(view))
    least = min(map(slowest, every))
    pace = (SIZE - chunk_bytes) * least
    # delays alike and rates of one direction for both: then the widest tree with the least way
    level = {
        ends: Rate(r.delay_s, 1 / weight(measures, *ends)) for ends, r in measures.links.items()
    }
    even = Measures(level)
    wide = [t for t in every if slowest(t) == least]
    way = min(round_time(t, even, 0.0, chunk_bytes=chunk_bytes) for t in wide)
    planned = plan_tree(view, even, SIZE, None, chunk_bytes=chunk_bytes)
    assert planned.predicted_s is not None
    assert planned.predicted_s <= (pace + way) * (1 + 1e-9)
    for other in every:
        if has_only_shortest_paths(view, partial(weight, measures), other):
            assert plan.predicted_s <= time(other) * (1 + 1e-9)
    fapt = fastest_tree(view, measures)
    assert plan.predicted_s <= time(fapt)
    assert hops(tree) <= plan.predicted_s
    if isclose(plan.predicted_s, time(fapt), rel_tol=1e-12):
        assert tree == fapt
        assert plan.reason.startswith("fastest aggregation paths, root by quality, rooted at")


@given(cases(delays=True))
def test_the_order_in_which_links_were_measured_does_not_matter(
    case: tuple[View, Measures],
) -> None:
    view, measures = case
    turned = dict(reversed(list(measures.links.items())))
    again = plan_tree(view, Measures(turned), SIZE, None)
    assert plan_tree(view, measures, SIZE, None) == again


def triangle(*rates: float) -> tuple[View, Measures]:
    """Members 1, 2, 3 with links of these rates in Mbit/s: 1-2, 2-3, 1-3."""
    found: Links = {}
    for (a, b), rate in zip([(1, 2), (2, 3), (1, 3)], rates, strict=True):
        found[node(a), node(b)] = found[node(b), node(a)] = Rate(0.0, rate * MEGABIT)
    return view_of(3), Measures(found)


def test_the_example_of_the_bounds() -> None:
    view, measures = triangle(100, 60, 40)
    plan = plan_tree(view, measures, 1e8, None)
    assert plan.parents == (node(2), b"", node(2))
    assert plan.predicted_s == pytest.approx(13.333, rel=1e-3)
    assert plan.reason == (
        "fastest aggregation paths, root by quality, rooted at n2, of depth 1; "
        "slowest link n2-n3 (60 Mbit/s), about 13.3 s a round; "
        "left out as slower than all in use: n1-n3 (40 Mbit/s)"
    )


def test_the_slower_direction_counts() -> None:
    view, measures = triangle(100, 60, 80)
    one_way = dict(measures.links) | {(node(3), node(1)): Rate(0.0, 1 * MEGABIT)}
    assert plan_tree(view, measures, SIZE, None).root == node(1)
    assert plan_tree(view, Measures(one_way), SIZE, None).root == node(2)


def test_a_wider_tree_wins_where_all_fastest_paths_are_narrow() -> None:
    # six in a ring of 100 Mbit/s, a link of 60 from each to the one opposite: always a short cut
    ring = [(k, k % 6 + 1) for k in range(1, 7)]
    across = [(1, 4), (2, 5), (3, 6)]
    found: Links = {}
    for (a, b), rate in [(e, 100) for e in ring] + [(e, 60) for e in across]:
        found[node(a), node(b)] = found[node(b), node(a)] = Rate(0.0, rate * MEGABIT)
    view, measures = view_of(6, ring + across), Measures(found)
    assert round_time(fastest_tree(view, measures), measures, SIZE) == SIZE / (60 * MEGABIT)
    plan = plan_tree(view, measures, SIZE, None)
    assert plan.predicted_s == SIZE / (100 * MEGABIT)
    assert plan.reason == (
        "widest tree (0.133 s a round along the fastest aggregation paths from n1), rooted at n1, "
        "of depth 3; slowest link n1-n2 (100 Mbit/s), about 0.08 s a round; left out as slower "
        "than all in use: n1-n4 (60 Mbit/s), n2-n5 (60 Mbit/s), n3-n6 (60 Mbit/s); "
        "left out as they shorten no path: n4-n5 (100 Mbit/s)"
    )


def test_both_ways_of_a_link_count() -> None:
    # a ring of equal rates; 1 -> 2 takes 4 s, 3 -> 2 and 3 -> 4 take 1 s, all else nothing
    ring = [(1, 2), (2, 3), (3, 4), (1, 4)]
    found = {(node(a), node(b)): Rate(0.0, 1e6) for a, b in ring + [(b, a) for a, b in ring]}
    for a, b, delay_s in ((1, 2, 4.0), (3, 2, 1.0), (3, 4, 1.0)):
        found[node(a), node(b)] = Rate(delay_s, 1e6)
    view, measures = view_of(4, ring), Measures(found)
    plan = plan_tree(view, measures, 1e6, None)
    assert plan.predicted_s == 2.0  # one for the payload, one for 3's sum or the way down to 2
    assert plan.predicted_s == min(round_time(t, measures, 1e6) for t in all_trees(view))
    assert plan.reason.startswith("widest tree (6 s a round ")


def test_another_root_wins_where_its_paths_avoid_the_narrow_link() -> None:
    found: Links = {}
    ring = [(1, 2), (2, 3), (3, 4), (1, 4)]
    for (a, b), rate in zip(ring, (100, 100, 100, 60), strict=True):
        found[node(a), node(b)] = found[node(b), node(a)] = Rate(0.0, rate * MEGABIT)
    view, measures = view_of(4, ring), Measures(found)
    fapt = fastest_tree(view, measures)
    assert fapt.root == node(1)
    assert (node(4), node(1)) in fapt.edges
    plan = plan_tree(view, measures, SIZE, None)
    assert (plan.root, plan.predicted_s) == (node(2), SIZE / (100 * MEGABIT))
    assert plan.reason == (
        "fastest aggregation paths, another root (0.133 s a round along the fastest aggregation "
        "paths from n1), rooted at n2, of depth 2; slowest link n1-n2 (100 Mbit/s), "
        "about 0.08 s a round; left out as slower than all in use: n1-n4 (60 Mbit/s)"
    )


def test_links_that_are_not_measured_are_typical() -> None:
    view, measures = triangle(100, 60, 40)
    found = {e: r for e, r in measures.links.items() if node(3) not in e or node(2) not in e}
    filled = Filled(Measures(found))
    assert filled.typical == Rate(0.0, 70 * MEGABIT)
    assert filled.rate(node(2), node(3)) == 70 * MEGABIT
    assert not filled.is_known(node(2), node(3))
    assert filled.is_known(node(1), node(2))
    assert (
        Filled(Measures(found | {(node(2), node(3)): Rate(0.5, 7.0)})).rate(node(3), node(2)) == 7
    )
    plan = plan_tree(view, Measures(found), SIZE, None)
    assert plan.root == node(2)
    assert plan.reason.endswith("; 1 not measured, taken as typical (70 Mbit/s)")


def test_extreme_rates_can_be_planned_with() -> None:
    view = view_of(3)
    tiny, huge = Rate(1e308, 5e-324), Rate(0.0, 1e308)
    found = {(e.low, e.high): tiny for e in view.edges}
    found |= {(e.high, e.low): huge for e in view.edges}
    plan = plan_tree(view, Measures(found), 1e300, None)
    assert plan.predicted_s is not None
    assert 0 < plan.predicted_s < inf
    assert not tree_fault(view, dict(zip(view.nodes, plan.parents, strict=True)))
    for delay, rate in ((-1.0, 1.0), (inf, 1.0), (0.0, 0.0), (0.0, inf), (0.0, float("nan"))):
        with pytest.raises(ValueError, match="must be positive"):
            Rate(delay, rate)


@given(shapes(), st.data())
def test_without_measures_the_tree_is_shallow_or_stays(view: View, data: st.DataObject) -> None:
    plan = plan_tree(view, Measures(), SIZE, None)
    parents, depth = shallow_tree(view)
    assert (plan.parents, plan.depth, plan.predicted_s) == (parents, depth, None)
    assert plan.reason.endswith(f"of depth {depth}: no link is measured yet")
    present = data.draw(st.sampled_from(list(all_trees(view)))).parents
    kept = plan_tree(view, Measures(), SIZE, present)
    assert kept.parents == present
    assert kept.reason.startswith("tree in force kept, rooted at")


def test_a_tree_gives_way_only_to_one_that_is_worth_it() -> None:
    assert significant(1.0, 0.84)
    assert not significant(1.0, 1 - LEAST_GAIN)
    assert not significant(inf, inf)
    view, measures = triangle(100, 60, 60)
    present = (b"", node(1), node(1))
    for rate, keeps in ((50, True), (70, True), (71, False), (99, False)):
        view, measures = triangle(100, rate, 60)
        plan = plan_tree(view, measures, SIZE, present)
        best = plan_tree(view, measures, SIZE, None)
        assert (plan.parents == present) is keeps
        assert best.predicted_s is not None
        now_s = round_time(Tree(view.nodes, present), measures, SIZE)
        assert significant(now_s, best.predicted_s) is not keeps
        kept = keeps and best.parents != present
        assert plan.reason.startswith("tree in force kept, another would not save 15%") is kept
        assert plan.predicted_s == (now_s if keeps else best.predicted_s)


@given(shapes(), st.data())
def test_what_is_in_force_and_no_tree_any_more_has_no_say(view: View, data: st.DataObject) -> None:
    anything = st.sampled_from([b"", *view.nodes, node(99)])
    count = len(view.nodes) + data.draw(st.sampled_from([0, 0, 0, 1]))
    noise = tuple(data.draw(st.lists(anything, min_size=count, max_size=count)))
    tree = data.draw(st.sampled_from(list(all_trees(view)))).parents
    bent = list(tree)
    bent[data.draw(st.integers(0, len(tree) - 1))] = data.draw(anything)
    for parents in (noise, tree, tuple(bent)):
        plan = plan_tree(view, Measures(), SIZE, parents)
        try:
            Policy(1, 1, view, parents, (1,) * len(view.nodes), (), "tree")
        except ValueError:
            assert plan == plan_tree(view, Measures(), SIZE, None)
        else:
            assert plan.parents == parents


def test_members_that_no_link_connects_have_no_tree() -> None:
    view = view_of(3, [(1, 2)])
    known = Measures({(node(1), node(2)): Rate(0.0, 1.0)})
    for measures in (known, Measures()):
        with pytest.raises(ValueError, match="do not connect"):
            plan_tree(view, measures, SIZE, None)
        with pytest.raises(ValueError, match="do not connect"):
            fastest_tree(view, measures)


def test_one_member_is_its_own_tree() -> None:
    elsewhere = Measures({(node(8), node(9)): Rate(0.5, 1.0)})
    plan = plan_tree(view_of(1), elsewhere, SIZE, None)
    assert (plan.parents, plan.root, plan.depth, plan.predicted_s) == ((b"",), node(1), 0, 0.0)
    assert plan.reason == ("fastest aggregation paths, root by quality, rooted at n1, of depth 0")


def test_a_reason_fits_into_a_policy_whatever_the_names() -> None:
    long = "ä" * (limits.MAX_NAME_BYTES // 2)
    view = view_of(40)
    view = make_view(LINEAGE, 1, [replace(m, name=long) for m in view.members], view.edges)
    found = {(e.low, e.high): Rate(0.0, 10.0 * k + 1) for k, e in enumerate(view.edges)}
    plan = plan_tree(view, Measures(found), SIZE, None)
    assert len(plan.reason.encode()) < limits.MAX_TEXT_BYTES // 2
    assert " more" in plan.reason
    assert name_of(view, node(1)) == long
    assert name_of(view, node(41)) == "00000000"


def test_a_node_is_as_good_as_the_median_of_its_links() -> None:
    _, measures = triangle(100, 60, 40)
    found = qualities((node(1), node(2), node(3), node(4)), measures)
    expected = {node(1): 70, node(2): 80, node(3): 50, node(4): 70}
    assert found == {n: rate * MEGABIT for n, rate in expected.items()}
    assert qualities((node(1),), Measures()) == {node(1): 0.0}
    assert qualities((member(1).node,), measures) == {node(1): 70 * MEGABIT}
