"""The pure parts of `scripts/bench scale-out`, and shards over two hops on loopback.

Namespaces and agents are left to the benchmark itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from protocols.member.pull import Pull, PullDone
from protocols.scheduler.planning import Offer
from tests.testbed.bench import relay, scaleout
from tests.testbed.bench.carry import carry
from tests.testbed.bench.ground import turns
from tests.testbed.bench.programs import reason, routes
from tests.testbed.bench.report import Run, lines
from tests.testbed.bench.strategies import usual_step_s
from tests.testbed.bench.strategies_agent import DIVISIONS, Fixed, Moments
from tests.testbed.bench.trial import JOINER, Failed, idle_s
from tests.testbed.namespaces import TestbedError
from tests.testbed.shaping import MBIT

TRUTH = {"a": (10e6, 0.001), "b": (30e6, 0.001), "c": (20e6, 0.001)}
SHARDS = tuple(range(60))
SHARD_BYTES = 1 << 20


def offers(*names: str) -> tuple[Offer, ...]:
    """Return sources whose measured rates are the opposite of their true rates."""
    return tuple(Offer(n.encode(), n, 1e9 / TRUTH[n][0], 0.001, 0) for n in names)


def counts(plan: dict[bytes, tuple[int, ...]]) -> dict[str, int]:
    """Return source -> how many shards it has to send."""
    return {node.decode(): len(shards) for node, shards in plan.items()}


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("fastest", {"a": 0, "b": 60, "c": 0}),
        ("even", {"a": 20, "b": 20, "c": 20}),
        ("optimum", {"a": 10, "b": 30, "c": 20}),
    ],
)
def test_a_strategy_divides_as_its_name_says_and_keeps_to_it(
    name: str, wanted: dict[str, int]
) -> None:
    fixed = Fixed(DIVISIONS[name], TRUTH)
    first = fixed.assign(SHARDS, SHARD_BYTES, offers("a", "b", "c"))
    assert counts(first) == wanted
    assert sorted(k for shards in first.values() for k in shards) == list(SHARDS)
    later = fixed.assign(SHARDS[1::2], SHARD_BYTES, offers("c", "a"))
    assert later == {n: tuple(k for k in first[n] if k % 2) for n in (b"c", b"a")}


def test_a_pull_by_the_fastest_source_waits_for_it_and_asks_nobody_else(tmp_path: Path) -> None:
    nodes = tuple(n.encode() for n in TRUTH)
    known = dict(zip(nodes, offers("a", "b", "c"), strict=True))
    fixed = Fixed(DIVISIONS["fastest"], TRUTH)
    pull = Pull(4, SHARD_BYTES, nodes, lambda node, busy: known[node], fixed.assign)
    seen = tmp_path / "moments"
    moments = Moments(seen)
    began, shard = moments.watched(pull.began), moments.watched(pull.shard)
    began(b"a")
    began(b"c")
    assert not pull.expects(b"a", 0)
    assert not seen.exists()
    began(b"b")
    assert "asked" in json.loads(seen.read_text())
    for source in (b"a", b"c"):
        pull.manifest(source, tuple(bytes([k]) * 32 for k in range(4)))
    effects: list[Any] = []
    for k in range(4):
        assert pull.expects(b"b", k)
        effects = shard(b"b", k, bytes([k]) * 32)
    assert PullDone() in effects
    assert set(json.loads(seen.read_text())) == {"asked", "verified"}


def test_idle_counts_only_what_steps_in_the_span_took_longer() -> None:
    ends = [0.0, 0.1, 0.2, 0.31, 1.31, 1.4, 1.5, 9.0]
    assert idle_s(ends, 0.25, 1.45, 0.1) == pytest.approx(0.9)
    assert idle_s(ends, 2.0, 3.0, 0.1) == pytest.approx(7.4)
    assert idle_s(ends[:3], 0.0, 1.0, 0.1) == 0.0


def test_the_usual_step_needs_a_few_steps() -> None:
    assert usual_step_s([0.0, 0.1, 0.2, 5.0]) == pytest.approx(0.1)
    with pytest.raises(Failed, match="hardly"):
        usual_step_s([0.0, 0.1])


def test_far_members_go_the_way_over_which_their_part_arrives_first() -> None:
    rates = {("near", JOINER): 50, ("wide", JOINER): 90, ("far", "near"): 80, ("far", "wide"): 40}
    rates |= {(name, "near"): 80 for name in ("far2", "far3")}
    rates |= {(name, "wide"): 80 for name in ("far2", "far3")}
    members = ("near", "wide", "far", "far2", "far3")
    found = routes(members, ("near", "wide"), lambda a, b: rates[a, b])
    assert found == {
        "near": ("near",),
        "wide": ("wide",),
        "far": ("wide", "far"),
        "far2": ("wide", "far2"),
        "far3": ("near", "far3"),  # two already go over the other one
    }


def test_shards_come_over_one_hop_and_over_two() -> None:
    size, shard = 1_000_003, 65_536

    async def whole() -> float:
        server = relay.Server(relay.state(size), shard)
        async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listener:
            here = listener.sockets[0].getsockname()
            return await relay.pull(size, shard, [[here], [here, here]])

    assert 0.0 < asyncio.run(whole()) < 10.0


def test_a_checkpoint_is_carried_by_http(tmp_path: Path) -> None:
    (tmp_path / "from").write_bytes(bytes(range(256)) * 20)

    class Quiet(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(tmp_path))

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/from"
            assert carry(url, str(tmp_path / "to")) == 5120
        finally:
            server.shutdown()
            thread.join()
    assert (tmp_path / "to").read_bytes() == (tmp_path / "from").read_bytes()


def test_why_a_program_ended() -> None:
    absent = "Traceback:\nModuleNotFoundError: No module named 'torchft.checkpointing'\n"
    assert reason(absent).startswith("torchft.checkpointing is not installed")
    assert reason("x\nOSError: broken\n\n") == "OSError: broken"
    assert reason("\n") == "it ended without a word"


def test_draws_are_the_same_for_the_same_seed_and_in_range() -> None:
    members = ("n0", "n1", "n2")
    links, neighbours = scaleout.draw(random.Random("1 3"), members, 2, 0.001)
    assert (links, neighbours) == scaleout.draw(random.Random("1 3"), members, 2, 0.001)
    assert len(links) == 12
    assert all(20 * MBIT <= link.rate <= 200 * MBIT for link in links.values())
    assert len({link.rate for link in links.values()}) == 12
    assert set(neighbours) < set(members)
    assert len(neighbours) == 2
    assert len(scaleout.draw(random.Random(1), members, 9, 0.0)[1]) == 3


def test_contenders_take_turns() -> None:
    assert turns(["a", "b", "c"], 0) == ["a", "b", "c"]
    assert turns(["a", "b", "c"], 4) == ["b", "c", "a"]
    assert scaleout.chosen(None) == list(scaleout.CONTENDERS)
    assert scaleout.chosen(["greedy"]) == [scaleout.OURS]
    with pytest.raises(TestbedError, match="no contender"):
        scaleout.chosen(["nobody"])


def test_each_run_is_compared_with_its_own_bound() -> None:
    runs = [Run("c", "x", 2.0, bound_s=1.0), Run("c", "x", 9.0, bound_s=3.0)]
    runs.append(Run("c", "x", 2.0, bound_s=2.0))
    (line,) = lines(runs, {"c": 100.0})
    assert line.ratio == 2.0
    assert line.median == 2.0


def test_the_options_have_working_defaults() -> None:
    parser = argparse.ArgumentParser()
    scaleout.add_options(parser)
    args = parser.parse_args([])
    assert args.members == [6, 11]
    assert scaleout.about(args, scaleout.Results())["options"]["state_mb"] == 60.0
