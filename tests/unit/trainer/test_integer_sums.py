"""Sums of integers in blocks: the trainer's own sums, added along trees, and their exponents."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from edgeagent.dataplane.integer_format import Integers
from edgeagent.dataplane.wire_format import Formats
from edgeagent.errors import UsageError
from edgeagent.integer_blocks import BLOCK, BLOCK_WORDS, FIELD, LARGEST_SHIFT, LOST, WIDE
from edgeagent.trainer import exponents as exponents_module
from edgeagent.trainer.exponents import Exponents
from edgeagent.trainer.gradients import is_finite, plan_vector
from edgeagent.trainer.integer_sum import IntegerSum
from edgeagent.trainer.layout import plan_layout
from protocols.errors import RemoteProtocolError
from tests.unit.trainer.replicas import network, run_cluster

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = [3000, 17, 1024, 256, 4097]
COUNT = 12  # micro-batches
Gradients = list[list[torch.Tensor]]  # of each micro-batch, of each parameter


def layout() -> Any:
    return plan_vector(SIZES, [5], torch.float32, in_blocks=True)


class Room:
    """What all nodes of one iteration have alike: layout and exponents."""

    def __init__(self) -> None:
        self.layout = layout()
        self.exponents = Exponents(self.layout)
        self.view = torch.zeros(self.exponents.values.numel(), dtype=torch.int16)
        self.exponents.attach(self.view)
        self.iteration = 0

    def contribution(self, gradients: Gradients, own: list[int]) -> tuple[Any, Integers]:
        """Return the words of a node that has computed these micro-batches, and its format."""
        shared = torch.zeros(self.layout.words)
        wide = torch.zeros(self.layout.elements // BLOCK, BLOCK, dtype=torch.int64)
        parameters = [torch.nn.Parameter(torch.zeros(size)) for size in SIZES]
        sums = IntegerSum(
            self.layout,
            shared,
            parameters,
            [f"p{n}" for n in range(len(SIZES))],
            torch.device("cpu"),
            None,
            wide,
            self.exponents,
        )
        for number in own:
            for parameter, gradient in zip(parameters, gradients[number], strict=True):
                parameter.grad = gradient.clone()
            sums.floats[:5] += torch.arange(5) * (number + 1) * 1e-3
            assert sums.add()
            assert all(parameter.grad is None for parameter in parameters)
        blocks = self.layout.chunk_elements // BLOCK
        return shared.numpy(), Integers(wide.numpy().reshape(-1), blocks)

    def reduce(self, gradients: Gradients, nodes: int, seed: int) -> Any:
        """Return R of a random tree of `nodes`, the micro-batches dealt out at random."""
        generator = random.Random(seed)
        shares: list[list[int]] = [[] for _ in range(nodes)]
        for number in generator.sample(range(COUNT), COUNT):
            generator.choice(shares).append(number)
        own = [self.contribution(gradients, share) for share in shares]
        parents = [generator.randrange(n) for n in range(1, nodes)]
        results = [np.zeros(self.layout.words, np.float32) for _ in range(nodes)]
        size = self.layout.chunk_words
        for chunk in range(1, self.layout.chunks + 1):
            part = slice((chunk - 1) * size, chunk * size)
            started = [False] * nodes
            for node in range(nodes - 1, 0, -1):
                words, form = own[node]
                mine = (results[node] if started[node] else words)[part]
                sent = bytes(form.ascending(chunk, mine, own=not started[node]))
                parent = parents[node - 1]
                words, form = own[parent]
                assert form.takes(len(sent), words[part], up=True)
                base = results[parent] if started[parent] else words
                out, first = results[parent][part], not started[parent]
                form.add(chunk, base[part], memoryview(sent), out, first=first)
                started[parent] = True
            if not started[0]:
                results[0][part] = own[0][0][part]
            own[0][1].settle(chunk, results[0][part], own=not started[0])
        return results[0]

    def follow(self, reduced: Any) -> None:
        numbers = self.layout.numbers(torch.from_numpy(reduced))
        finite = bool(torch.isfinite(numbers).all())
        self.exponents.follow(torch.from_numpy(reduced), self.iteration, finite=finite)
        self.iteration += 1

    def numbers(self, reduced: Any) -> Any:
        return self.layout.numbers(torch.from_numpy(reduced)).reshape(-1)


def some_gradients(seed: int, scale: Callable[[int], float] = lambda _: 1.0) -> Gradients:
    generator = torch.Generator().manual_seed(seed)
    return [
        [torch.randn(size, generator=generator) * scale(n) for size in SIZES] for n in range(COUNT)
    ]


def exact(room: Room, gradients: Gradients) -> Any:
    """Return the sum in float64, in the places of the vector."""
    total = torch.zeros(room.layout.elements, dtype=torch.float64)
    for each in gradients:
        for offset, gradient in zip(room.layout.gradient_offsets, each, strict=True):
            total[offset : offset + gradient.numel()] += gradient.double()
    for number in range(COUNT):
        start = room.layout.buffer_offsets[0]
        total[start : start + 5] += (torch.arange(5) * (number + 1) * 1e-3).double()
    return total


HARD: dict[str, Callable[[int], float]] = {
    "plain": lambda _: 1e-3,
    "unlike": lambda n: 10.0 ** (n - 9),
    "spike": lambda n: 2.0**18 if n == 5 else 1e-4,
    "large": lambda _: 2.0**12,
    "tiny": lambda _: 2.0**-80,
}


@pytest.mark.parametrize("kind", HARD)
def test_a_sum_has_the_same_bits_on_any_number_of_nodes(kind: str) -> None:
    room = Room()
    for iteration in range(4):
        gradients = some_gradients(iteration, HARD[kind])
        first = room.reduce(gradients, 1, 0)
        for nodes, seed in ((1, 1), (2, 2), (4, 3), (7, 4), (7, 5)):
            assert room.reduce(gradients, nodes, seed).tobytes() == first.tobytes()
        room.follow(first)
    found, right = room.numbers(first).double(), exact(room, gradients)
    for offset, size in zip(room.layout.gradient_offsets, SIZES, strict=True):
        part = slice(offset, offset + size)
        error = (found[part] - right[part]).norm() / right[part].norm()
        assert error < (1e-6 if kind != "tiny" else 1.0)
    start = room.layout.buffer_offsets[0]
    assert torch.allclose(found[start : start + 5], right[start : start + 5], rtol=1e-5)


def test_sums_beyond_int32_become_wide_and_stay_exact() -> None:
    room = Room()
    gradients = [[torch.full((size,), 31.0 + n / 8) for size in SIZES] for n in range(COUNT)]
    words, _ = room.contribution(gradients, list(range(COUNT)))
    marks = room.layout.marks(torch.from_numpy(words))
    assert bool((marks & WIDE).any()), "12 x 31 x 2^25 is more than 2^31"
    single = room.reduce(gradients, 1, 0)
    for nodes in (3, 7):
        assert room.reduce(gradients, nodes, nodes).tobytes() == single.tobytes()
    right = exact(room, gradients).float()
    within = slice(0, room.layout.gradient_elements)
    assert torch.equal(room.numbers(single)[within], right[within])


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 2.0**60])
def test_what_cannot_be_added_is_lost_on_all_nodes_and_skips_the_update(value: float) -> None:
    room = Room()
    gradients = some_gradients(0)
    gradients[3][2][100] = value
    for nodes in (1, 5):
        reduced = room.reduce(gradients, nodes, nodes)
        form = Formats(integers=Integers(np.zeros(room.layout.elements, np.int64), 1)).of(1)
        assert np.isnan(form.square_sum(reduced))
    room.follow(reduced)
    assert bool((room.layout.marks(torch.from_numpy(reduced)) & LOST).any())
    raised = room.exponents.values.max() == 61
    assert raised == (value == 2.0**60), "the next iteration can hold it, if it is a number"


def test_exponents_rise_at_once_and_fall_slowly() -> None:
    room = Room()
    for _ in range(3):
        room.follow(room.reduce(some_gradients(1, lambda _: 2.0**-20), 1, 0))
    low = room.exponents.values.clone()
    assert (low[0] < -8).all()
    room.follow(room.reduce(some_gradients(1), 1, 0))
    assert (room.exponents.values[0] >= 1).all()
    high = room.exponents.values.clone()
    for _ in range(exponents_module.FALLS_EVERY):
        room.follow(room.reduce(some_gradients(1, lambda _: 0.25), 1, 0))
    assert (high[0] - room.exponents.values[0] == 1).all()
    again = Exponents(room.layout)
    again._view = room.view
    again.adopt()
    assert torch.equal(again.values, room.exponents.values)


def test_a_gradient_that_leaves_early_gives_the_same_sum() -> None:
    room = Room()
    gradients = some_gradients(2)
    expected, _ = room.contribution(gradients, [0])
    shared = torch.zeros(room.layout.words)
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in SIZES]
    wide = torch.zeros(room.layout.elements // BLOCK, BLOCK, dtype=torch.int64)
    names, cpu = [""] * len(SIZES), torch.device("cpu")
    sums = IntegerSum(room.layout, shared, parameters, names, cpu, None, wide, room.exponents)
    for parameter, gradient in zip(parameters, gradients[0], strict=True):
        parameter.grad = gradient.clone()
    sums.take(4)
    sums.take(1)
    sums.floats[:5] += torch.arange(5) * 1e-3
    sums.add(lambda number: number in (4, 1))
    words = torch.from_numpy(expected).view(torch.int32)
    assert torch.equal(room.layout.numbers(shared.view(torch.int32)), room.layout.numbers(words))
    largest = FIELD << LARGEST_SHIFT
    found, right = room.layout.marks(shared), room.layout.marks(words)
    assert torch.equal(found & largest, right & largest), "empty blocks may lack their exponent"
    sums.clear()
    assert not shared.view(torch.int32).any()


def chunk(blocks: int = 2) -> Any:
    words = np.zeros(blocks * BLOCK_WORDS, np.float32)
    words.view(np.int32)[-blocks:] = 512 | (500 << 10)
    return words


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda words: np.put(words, -1, 513 | (500 << 10)), "other exponents"),
        (lambda words: np.put(words, -1, 512 | WIDE), "not marked"),
        (lambda words: np.put(words, -1, 1 << 30), "not marked"),
    ],
)
def test_a_sum_that_cannot_be_is_refused(change: Callable[[Any], None], error: str) -> None:
    form = Integers(np.zeros(2 * BLOCK, np.int64), 2)
    own, out, sent = chunk(), chunk(), chunk()
    change(sent.view(np.int32))
    with pytest.raises(RemoteProtocolError, match=error):
        form.add(1, own, memoryview(sent.tobytes()), out, first=True)


def test_lengths_of_chunks_are_bounded() -> None:
    form, like = Integers(np.zeros(2 * BLOCK, np.int64), 2), chunk()
    row = 8 * BLOCK
    assert [form.takes(like.nbytes + n * row, like, up=True) for n in range(-1, 4)] == [
        False,
        True,
        True,
        True,
        False,
    ]
    assert not form.takes(like.nbytes + 4, like, up=True)
    assert not form.takes(like.nbytes + row, like, up=False)


def test_the_state_has_a_place_for_the_exponents() -> None:
    spec = Exponents(layout()).spec
    assert plan_layout([spec]).specs == (spec,)
    assert spec.bytes == 2 * layout().elements // BLOCK


def make(exact: bool = True, **options: Any) -> Any:
    """Return what makes a job with batch norm, AdamW and clipping; `exact`: with `--exact`."""

    def made() -> tuple[torch.nn.Module, torch.optim.Optimizer, dict[str, Any]]:
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        settings: dict[str, Any] = {"global_batch": 48, "micro_batch": 8, "max_grad_norm": 0.5}
        if exact:
            settings["wire"] = "exact"
        return model, optimizer, {**settings, **options}

    return made


def states(nodes: int, *, exact: bool = True, join: int = 0, **options: Any) -> list[bytes]:
    """Return the state after each of 6 iterations on so many nodes, the last of them from iteration
    `join` on."""
    how = {"keep_states": True, "join_at": {nodes - 1: join} if join else {}}
    served = run_cluster(make(exact, **options), nodes, 6, cluster=how)
    assert len(served.states) == 6
    return served.states


def test_a_training_has_the_same_bits_on_any_number_of_nodes() -> None:
    alone = states(1)
    assert states(2) == alone
    assert states(4, join=3) == alone
    assert states(3, join=2, _mirror=True) == alone, "an image apart from the shared memory"
    assert states(3, overlap=True) == alone, "gradients that leave early"


def test_without_exact_sums_it_has_not() -> None:
    assert states(1, exact=False) != states(3, exact=False)


def test_float64_is_refused_in_words() -> None:
    with pytest.raises(UsageError, match="leave --exact away"):
        plan_vector([10], [], torch.float64, in_blocks=True)


def test_a_change_of_a_buffer_that_is_lost_skips_the_update() -> None:
    """A statistic that has become NaN would stay so, and the next iteration can hold the number."""
    room = Room()
    start = room.layout.buffer_offsets[0] // room.layout.chunk_elements
    squares = [1.0] * room.layout.chunks
    assert is_finite(squares, room.layout)
    squares[start] = float("nan")
    assert not is_finite(squares, room.layout)
    plain = plan_vector(SIZES, [5], torch.float32)
    squares = [1.0] * plain.gradient_chunks + [float("nan")]
    assert is_finite(squares, plain), "without exact sums it is the script's own number"
