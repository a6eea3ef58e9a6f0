"""Where R of an iteration lies while others are read."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from edgeagent.dataplane.reduced_memory import ReducedMemory
from edgeagent.dataplane.weight_chunks import WeightChunks
from edgeagent.marks import MARK_APPLYING, MARK_ITERATION

CHUNK, ELEMENTS = 4, 14  # three chunks of weights, and one of buffers with two elements
# First element of the vector, first byte of the state, number of elements.
PLACES = ((6, 0, 5), (0, 64, 3))


class Bench:
    """The memory of a member. Its state has two parameters, of five and of three elements."""

    def __init__(self, *, divided: bool = True) -> None:
        self.state = np.zeros(20, np.float32)
        self.marks = np.zeros(8, np.int64)
        hello = Mock(chunk_elements=CHUNK, elements=ELEMENTS, weights=PLACES)
        memory = Mock()
        memory.state.array.return_value, memory.marks.array.return_value = self.state, self.marks
        self.weights = WeightChunks(hello, memory)
        self.shared = (np.zeros(ELEMENTS, np.float32), np.zeros(ELEMENTS, np.float32))
        self.memory = ReducedMemory(self.shared, CHUNK, self.weights if divided else None)

    def reduce(self, iteration: int) -> None:
        """Begin the round of `iteration`, and write its number into all that is no padding."""
        self.memory.make_room(iteration)
        for chunk in (1, 2, 3, 4):
            part = self.memory.part(iteration, chunk)
            for k in range(len(part)):
                at = (chunk - 1) * CHUNK + k
                part[k] = iteration if at < 3 or at in range(6, 11) or at >= 12 else 0

    def apply(self, iteration: int) -> None:
        """Have the trainer take over what the round of `iteration` has left."""
        self.state[0:5] = self.state[16:19] = iteration
        self.marks[MARK_ITERATION] = iteration + 1

    def whole(self, iteration: int) -> list[float]:
        """Return R of `iteration`, by chunks."""
        parts = [self.memory.part(iteration, chunk) for chunk in (1, 2, 3, 4)]
        return [float(x) for part in parts for x in part]


def right(n: float) -> list[float]:
    return [n, n, n, 0, 0, 0, n, n, n, n, n, 0, n, n]


def test_weights_in_the_state_stand_for_the_r_before() -> None:
    bench = Bench()
    assert bench.weights.chunks == 3
    bench.reduce(7)
    assert bench.memory.lend(7) == 1
    bench.apply(7)
    bench.memory.returned(7)
    bench.reduce(8)
    assert bench.memory.lend(8) == 0  # all of it lies in shared memory
    assert bench.whole(8) == right(8)
    assert bench.whole(7) == right(7)
    # All weights have one buffer; the buffers of even and odd iterations lie apart.
    assert not bench.shared[1][:12].any()
    assert list(bench.shared[1][12:]) == [7, 7]
    with pytest.raises(AssertionError, match="another one has its place"):
        bench.memory.sections(7)
    assert bench.memory.lend(7) is None


def test_what_the_trainer_has_not_taken_over_stays_where_it_is() -> None:
    bench = Bench()
    bench.reduce(7)
    bench.marks[MARK_ITERATION], bench.marks[MARK_APPLYING] = 8, 9  # it hangs in a later update
    before = bench.memory.sections(7)[0]
    bench.reduce(8)
    assert bench.whole(7) == right(7)
    assert np.shares_memory(before, bench.memory.sections(7)[0]), "nothing was copied"
    assert bench.memory.lend(8) is None
    assert bench.whole(8) == right(8)
    bench.reduce(9)
    assert bench.memory.lend(9) == 1
    assert bench.whole(8) == right(8)


@pytest.mark.parametrize("divided", [True, False])
def test_what_is_read_is_not_written_to(divided: bool) -> None:
    bench = Bench(divided=divided)
    bench.reduce(7)
    assert bench.memory.lend(7) == 1
    bench.reduce(8)
    # Undivided sums of even and odd iterations do not get into each other's way.
    assert bench.memory.lend(8) == (None if divided else 0)
    bench.memory.returned(8)
    bench.reduce(9)
    assert bench.memory.lend(9) is None
    assert list(np.concatenate(bench.memory.sections(9))) == right(9)
    bench.memory.returned(7)
    bench.apply(9)
    bench.reduce(10)
    assert bench.memory.lend(10) == 0
    assert bench.whole(9) == right(9)


def test_what_is_copied_is_not_written_to() -> None:
    bench = Bench()
    bench.reduce(7)
    first, second = bench.memory.pin(7), bench.memory.pin(7)
    bench.apply(7)
    bench.memory.unpin(7)
    bench.reduce(8)
    for sections in (first, second):
        assert list(np.concatenate(sections)) == right(7)
    assert bench.memory.lend(8) is None
    bench.memory.unpin(7)
    bench.apply(8)
    bench.reduce(9)
    assert bench.memory.lend(9) == 1


def test_a_kept_r_is_no_longer_in_shared_memory() -> None:
    bench = Bench()
    bench.reduce(7)
    kept: Any = bench.memory.kept(7)
    assert bench.memory.kept(7) is kept
    bench.reduce(8)
    assert list(kept) == bench.whole(7) == right(7)
    assert bench.memory.lend(8) == 0
    bench.memory.forget()
    assert bench.memory.lend(8) is None


@pytest.mark.parametrize("divided", [True, False])
def test_an_r_that_is_being_copied_is_neither_written_to_nor_moved(divided: bool) -> None:
    bench = Bench(divided=divided)
    bench.reduce(7)
    keeping = bench.memory.keeping(7)
    assert keeping is not None
    bench.reduce(8)
    assert bench.whole(7) == right(7)
    bench.reduce(9)  # it would lie where R of 7 does
    assert bench.memory.lend(9) is None
    assert list(np.concatenate(keeping.sections)) == right(7)
    bench.memory.keep(keeping)
    assert 7 not in bench.memory._places, "it is known no longer, and does not come back"
    bench.reduce(10)
    bench.apply(10)
    bench.reduce(11)
    assert bench.memory.lend(11) == 1


def test_a_copied_r_lies_where_it_was_copied_to() -> None:
    bench = Bench()
    bench.reduce(7)
    keeping = bench.memory.keeping(7)
    assert keeping is not None
    np.concatenate(keeping.sections, out=keeping.target)
    bench.memory.keep(keeping)
    bench.reduce(8)
    assert bench.memory.lend(8) == 0
    assert bench.whole(7) == right(7)
    assert bench.memory.kept(7) is keeping.target
    assert bench.memory.keeping(7) is None


def test_a_copy_for_the_cluster_before_is_not_taken_for_one_of_this() -> None:
    bench = Bench()
    bench.reduce(7)
    keeping = bench.memory.keeping(7)
    assert keeping is not None
    bench.memory.forget()
    bench.reduce(7)
    bench.memory.keep(keeping)
    assert bench.whole(7) == right(7)
    assert bench.memory.kept(7) is not keeping.target


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_its_own_is_taken_as_it_is_written_to() -> None:
    """To clear 500 MB in advance took half a second of the event loop."""
    vector = np.broadcast_to(np.float32(0), (64 << 20,))
    memory = ReducedMemory((vector, vector), CHUNK)
    memory.make_room(7)
    memory.pin(7)
    before = resident()
    memory.make_room(9)
    assert resident() - before < 16 << 20
    assert memory.part(9, 1).tolist() == [0] * CHUNK


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
