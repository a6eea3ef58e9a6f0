"""The pure parts of the all-reduce benchmark, and its ring on loopback."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import math
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edgeagent.planner.policies import checked, request_of
from protocols.network.measures import NOTHING_KNOWN
from tests.bounds.summing import ring_time, tree_time
from tests.scenarios.cluster import free_ports
from tests.testbed.bench import allreduce, imposed_tree, ring, topologies
from tests.testbed.bench.report import Run
from tests.testbed.calibrate import TCP_SHARE
from tests.testbed.namespaces import TestbedError
from tests.testbed.network import MBIT
from tests.unit.protocols.records import view_of

if TYPE_CHECKING:
    from protocols.cluster.view import View

SEEDS = range(1, 6)
SHAPES = ("star", "balanced", "widest")
MB = 1e6


def drawn(count: int = 9, seed: int = 1, limit: float = 300.0) -> topologies.Plan:
    return topologies.draw(count, seed, (20.0, 155.0), limit, 0.03)


def tree_of(shape: str, plan: topologies.Plan) -> topologies.Tree:
    if shape == "balanced":
        return topologies.balanced(plan.nodes, 2)
    return topologies.star(plan) if shape == "star" else topologies.widest(plan)


def named_view(plan: topologies.Plan, count: int) -> View:
    """Return a view with all links between the first `count` nodes."""
    numbers = range(1, count + 1)
    view = view_of(count, [(a, b) for a in numbers for b in numbers if a < b])
    names = zip(view.members, plan.nodes, strict=False)
    return replace(view, members=tuple(replace(m, name=name) for m, name in names))


def test_equal_seeds_draw_equal_networks_in_range() -> None:
    assert drawn() == drawn()
    assert drawn().rates != drawn(seed=2).rates
    assert all(20 * MBIT <= rate <= 155 * MBIT for rate in drawn().rates.values())
    assert len(drawn().rates) == 9 * 8
    with pytest.raises(ValueError):
        drawn(count=13)


def test_on_a_stretched_network_everything_takes_so_many_times_as_long() -> None:
    plan, size = drawn(4), 2 * MB
    before, after = (topologies.lower_bounds(p, size) for p in (plan, plan.stretched(4)))
    assert after == {name: pytest.approx(4 * seconds) for name, seconds in before.items()}
    assert plan.stretched(4).stretched(1 / 4) == plan


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_tree_is_one_and_its_levels_hold_everybody(shape: str, seed: int) -> None:
    plan = drawn(seed=seed)
    tree = tree_of(shape, plan)
    levels = topologies.levels(tree)
    assert sorted(node for level in levels for node in level) == sorted(plan.nodes)
    assert len(levels[0]) == 1
    for above, below in pairwise(levels):
        assert all(tree[node] in above for node in below)


@pytest.mark.parametrize("seed", SEEDS)
def test_trees_and_rings_are_the_best_of_their_kind(seed: int) -> None:
    plan = drawn(7, seed)
    rates = plan.goodput()
    slowest = min(plan.slower(n, p) for n, p in topologies.widest(plan).items() if p)
    assert MB / (slowest * TCP_SHARE) == pytest.approx(tree_time(MB, rates))
    order = topologies.ring_order(plan)
    assert sorted(order) == list(plan.nodes)
    slowest = min(plan.rates[pair] for pair in pairwise((*order, order[0])))
    best = 2 * 6 / 7 * MB / (slowest * TCP_SHARE)
    assert best == pytest.approx(ring_time(MB, rates))
    hub = topologies.levels(topologies.star(plan))[0][0]
    worst = {a: min(plan.slower(a, b) for b in plan.nodes if b != a) for a in plan.nodes}
    assert worst[hub] == max(worst.values())


def test_a_balanced_tree_has_no_deeper_level_than_it_needs() -> None:
    sizes = [len(level) for level in topologies.levels(topologies.balanced("abcdefghi", 2))]
    assert sizes == [1, 2, 4, 2]
    sizes = [len(level) for level in topologies.levels(topologies.balanced("abcdefghi", 3))]
    assert sizes == [1, 3, 5]


def test_no_tree_and_no_ring_beats_the_bounds() -> None:
    pytest.importorskip("scipy")
    plan = drawn(6, limit=1000.0)
    bounds = topologies.lower_bounds(plan, MB)
    assert bounds["partition"] <= bounds["trees"] * (1 + 1e-6)
    for time in (tree_time(MB, plan.goodput()), ring_time(MB, plan.goodput())):
        assert bounds["trees"] <= time
    tight = topologies.lower_bounds(drawn(6, limit=50.0), MB)
    assert tight["trees"] >= 2 * 5 * MB / (6 * 50 * MBIT * TCP_SHARE) * (1 - 1e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("micro_batches", [5, 9, 20])
def test_an_imposed_tree_is_a_valid_plan(
    shape: str, micro_batches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = drawn()
    tree = tree_of(shape, plan)
    (tmp_path / "tree.json").write_text(json.dumps(tree))
    monkeypatch.setenv(imposed_tree.VARIABLE, str(tmp_path / "tree.json"))
    view = named_view(plan, len(plan.nodes))
    away = view.nodes[:1]
    request = request_of(view, micro_batches, away, NOTHING_KNOWN, MB)
    made = checked(imposed_tree.imposed(request), view, micro_batches, away)
    names = {m.node: m.name for m in view.members}
    parents = zip(view.nodes, made.parents, strict=True)
    assert {names[n]: names[p] if p else "" for n, p in parents} == tree
    assert made.shares[0] == 0
    assert max(made.shares) - min(made.shares[1:]) <= 1


def test_a_tree_whose_members_or_links_are_missing_is_not_imposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = drawn(4)
    (tmp_path / "tree.json").write_text(json.dumps({"d": "", "a": "d", "b": "d", "c": "d"}))
    monkeypatch.setenv(imposed_tree.VARIABLE, str(tmp_path / "tree.json"))
    whole = named_view(plan, 4)
    for view in (named_view(plan, 3), replace(whole, edges=whole.edges[:-1])):
        with pytest.raises(ValueError):
            imposed_tree.imposed(request_of(view, 4, (), NOTHING_KNOWN, MB))


def test_agents_find_the_policy_only_meanwhile(tmp_path: Path) -> None:
    before = dict(os.environ)
    with allreduce.imposed({"a": ""}, tmp_path):
        package = os.environ["PYTHONPATH"].split(os.pathsep)[0]
        (entries,) = Path(package).glob("*.dist-info/entry_points.txt")
        assert entries.read_text().startswith("[edgeagent.policies]\nimposed = ")
        spec = importlib.util.spec_from_file_location(
            "edgeagent_bench", Path(package) / "edgeagent_bench.py"
        )
        assert spec is not None
        assert spec.origin is not None
        assert json.loads(Path(os.environ[imposed_tree.VARIABLE]).read_text()) == {"a": ""}
    assert dict(os.environ) == before


@pytest.mark.parametrize(("count", "elements"), [(2, 10), (3, 7), (4, 3 * ring.PIECE + 5)])
def test_the_ring_sums(count: int, elements: int) -> None:
    async def everybody() -> None:
        addresses = [("127.0.0.1", port) for port in free_ports(count)]
        members = await asyncio.gather(*(ring.connect(r, addresses) for r in range(count)))
        for repeat in range(2):
            start = np.arange(elements, dtype=np.float32) + repeat
            mine = [start * (rank + 1) for rank in range(count)]
            expected = np.sum(np.array(mine), axis=0)
            async with asyncio.timeout(10.0):
                await asyncio.gather(
                    *(m.reduce(data) for m, data in zip(members, mine, strict=True))
                )
            for data in mine:
                np.testing.assert_allclose(data, expected, rtol=1e-6)
        for member in members:
            member.close()

    asyncio.run(everybody())


def test_pieces_cover_a_block_once() -> None:
    cuts = ring.cuts(100_000, 3)
    found = [k for cut in cuts for piece in ring.pieces(cut) for k in range(100_000)[piece]]
    assert found == list(range(100_000))


def test_a_round_lasts_from_the_last_beginning_to_the_last_end() -> None:
    rounds = [
        [{"began": 1.0, "ended": 3.0}, {"began": 2.0, "ended": 2.5}],
        [{"began": 4.0, "ended": 7.0}, {"began": 4.5, "ended": 7.5}],
        [{"began": 8.0, "ended": 10.0}, {"began": 8.0, "ended": 10.5}],
    ]
    assert allreduce.median_round(rounds, "began") == pytest.approx(2.5)


def test_a_round_of_agents_is_a_step_without_the_slowest_computation() -> None:
    steps = {
        "a": {k: {"t": 2.0 * k, "compute_s": 0.5} for k in range(4)},
        "b": {k: {"t": 2.0 * k + 0.1, "compute_s": 0.25 * k} for k in range(4)},
    }
    assert allreduce.rounds_of(steps, range(1, 4)) == pytest.approx([1.5, 1.5, 1.25])


def test_a_program_that_fails_says_why_with_its_last_line(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("begins\nRuntimeError: no such device\n\n")
    assert allreduce.last_line(tmp_path / "log", "x") == "RuntimeError: no such device"
    (tmp_path / "log").write_text("")
    assert allreduce.last_line(tmp_path / "log", "exit status 1") == "exit status 1"


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    allreduce.add_options(parser)
    return parser.parse_args(words)


def test_a_scaled_network_has_the_same_ideal_times() -> None:
    pytest.importorskip("scipy")
    whole = allreduce.drawn(options("--limit", "300", "--scale", "1"), 5)
    quarter = allreduce.drawn(options("--limit", "300"), 5)
    assert quarter.limit == pytest.approx(whole.limit / 4)
    times = [topologies.lower_bounds(plan, size) for plan, size in ((whole, MB), (quarter, MB / 4))]
    assert times[0] == pytest.approx(times[1])


def test_without_a_limit_only_the_links_bound() -> None:
    pytest.importorskip("scipy")
    free = allreduce.drawn(options(), 5)
    assert free.limit == math.inf
    bounds = topologies.lower_bounds(free, MB)
    wide = topologies.lower_bounds(replace(free, limit=1e12), MB)
    assert bounds["trees"] == pytest.approx(wide["trees"])


class Contenders(allreduce.Bench):
    """A benchmark without agents: one contender runs, another raises an unexpected error."""

    def ring(self, folder: Path) -> list[Run]:
        assert folder.is_dir()
        return [Run(self.case, allreduce.RING, 1.0)]

    def gloo(self, folder: Path) -> list[Run]:
        raise KeyError(f"odd {folder.is_dir()}\nand more")


def test_an_unexpected_error_is_a_failed_line_and_the_others_go_on() -> None:
    args = options("--repeats", "2", "--only", "ring,gloo")
    plan = allreduce.drawn(args, 4)
    runs: list[Run] = []
    allreduce.measure(Contenders(args, plan, plan.network(), {"links": 0.5}), runs)
    assert [(r.contender, r.seconds) for r in runs] == [
        (allreduce.RING, 1.0),
        (allreduce.GLOO, None),
        (allreduce.GLOO, None),
        (allreduce.RING, 1.0),
    ]
    assert runs[1].why == "'odd True\\nand more'"


def test_nobody_called_like_that_is_said() -> None:
    args = options("--only", "nobody")
    plan = allreduce.drawn(args, 4)
    with pytest.raises(TestbedError, match="edgeagent, star"):
        allreduce.measure(Contenders(args, plan, plan.network(), {"links": 0.5}), [])


def test_contenders_are_chosen_by_how_their_names_begin_or_by_a_whole_name() -> None:
    names = ["edgeagent", "edgeagent, bf16", "ring"]
    assert allreduce.chosen(names, "") == names
    assert allreduce.chosen(names, "edgeagent") == names[:2]
    assert allreduce.chosen(names, "=edgeagent,ring") == ["edgeagent", "ring"]


def test_several_networks_have_a_table_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = options("--nodes", "4", "6", "--only", "ring,gloo")
    args.out = tmp_path
    benches, runs = [], list[Run]()
    for nodes in args.nodes:
        plan = allreduce.drawn(args, nodes)
        benches.append(Contenders(args, plan, plan.network(), {"links": 0.1, "limits": 0.5}))
        benches[-1].worked["ring"] = [0.25]
        allreduce.measure(benches[-1], runs)
    lines = allreduce.results(args, benches, runs)
    assert [(line.case, line.ratio) for line in lines if line.contender == allreduce.RING] == [
        ("4 nodes, 2 MB", 2.0),
        ("6 nodes, 2 MB", 2.0),
    ]
    said = capsys.readouterr().out
    assert said.count("| physical bound | 0.500 |") == 2
    assert "6 nodes, 2 MB: ring 25%" in said
    written = json.loads((tmp_path / "all-reduce.json").read_text())
    assert list(written["about"]["networks"]) == ["4 nodes, 2 MB", "6 nodes, 2 MB"]


def test_a_wrong_sum_is_no_result() -> None:
    right, wrong = {"right": True}, {"right": False}
    assert allreduce.exact([[right, right]]) == [[right, right]]
    with pytest.raises(AssertionError, match="the sum is wrong"):
        allreduce.exact([[right, right], [right, wrong]])


def test_edgeagent_is_measured_once_with_each_algorithm_of_tcp_and_each_time_of_computing() -> None:
    assert allreduce.variants(options()) == []
    several = allreduce.variants(options("--congestion", "reno,bbr", "--compute-ms", "0,1000"))
    assert [(tcp, ms) for _, tcp, ms in several] == [
        ("reno", 0.0),
        ("reno", 1000.0),
        ("bbr", 0.0),
        ("bbr", 1000.0),
    ]
    assert several[1][0] == "edgeagent, reno, 1000 ms of computing"
    ((name, tcp, _),) = allreduce.variants(options("--compute-ms", "5"))
    assert (name, tcp) == ("edgeagent, 5 ms of computing", "")
    with pytest.raises(TestbedError):
        allreduce.variants(options("--compute-ms", "soon"))
