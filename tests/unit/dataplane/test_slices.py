"""Work on a large vector is done in slices, with the same result."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from edgeagent.config import THREAD_VARIABLES
from edgeagent.dataplane import reduce
from edgeagent.launch import package_environment
from protocols.rounds.control_word import bits

from .cluster import CHUNKS, Cluster, Shape, Tag

ROUNDS: list[Tag] = [(3, 0), (4, 0), (4, 1), (5, 0), (6, 0)]


@pytest.mark.parametrize("seed", range(40))
def test_work_in_slices_comes_to_the_same_bits(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduce, "SLICE_SECONDS", -1.0)  # one chunk at a time
    draw = random.Random(seed)
    count = draw.randint(1, 7)
    parents = [0] + [draw.randint(0, k - 1) for k in range(1, count)]
    shape = Shape(parents, [[draw.randrange(count)] for _ in range(draw.randint(0, 2))])
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


_OTHER_THREADS = """
import time
import numpy as np
from edgeagent.dataplane.wire_format import square_sum

part = np.ones(1 << 17, np.float32)
square_sum(part)
time.sleep(0.5)  # the BLAS library's threads spin for a moment when they have begun, and then sleep

def others():
    return time.process_time() - time.thread_time()

before, own = others(), time.thread_time()
for _ in range(400):
    assert square_sum(part) == 1 << 17
print((others() - before) / (time.thread_time() - own))
"""


def test_no_other_thread_is_needed_for_the_sum_of_squares() -> None:
    kept = {k: v for k, v in os.environ.items() if k not in THREAD_VARIABLES}
    ended = subprocess.run(
        [sys.executable, "-c", _OTHER_THREADS],
        env=package_environment(kept),
        capture_output=True,
        text=True,
        check=True,
    )
    # With the BLAS library's threads, all others together compute at least as much as this one
    # wherever there are two cores; on one core there are none and the test proves nothing.
    assert float(ended.stdout) < 0.2
