"""Work on a large vector is done in slices, with the same result."""

from __future__ import annotations

import random

import pytest

from edgeagent.dataplane import reduce
from protocols.rounds.control_word import bits

from .cluster import CHUNKS, Cluster, Shape, Tag

ROUNDS: list[Tag] = [(3, 0), (4, 0), (4, 1), (5, 0), (6, 0)]


@pytest.mark.parametrize("seed", range(40))
def test_work_in_slices_comes_to_the_same_bits(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduce, "SLICE_SECONDS", -1.0)  # one chunk at a time
    draw = random.Random(seed)
    count = draw.randint(1, 7)
    parents = [0] + [draw.randint(0, k - 1) for k in range(1, count)]
    shape = Shape(parents, [draw.randrange(count) for _ in range(draw.randint(0, 2))])
    cluster = Cluster(shape, ROUNDS, seed, "float32", sliced=True)
    cluster.run()
    cluster.check()


def test_work_is_put_off_and_nothing_is_left_undone_when_the_round_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reduce, "SLICE_SECONDS", -1.0)
    cluster = Cluster(Shape([0], []), [(3, 0), (3, 1)], 1, "float32", sliced=True)
    (host,) = cluster.hosts
    host.start()
    host.contribute()
    assert len(host.later) == 1
    assert not host.results
    assert host.reducer.freeze() == bits(tuple(range(CHUNKS)))
    assert (3, 0) in host.results
    cluster.run()
    assert (3, 1) in host.results
