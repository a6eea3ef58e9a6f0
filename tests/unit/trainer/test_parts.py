"""Small parts of the trainer: sample order, layout, gradient vector, buffers, fingerprint."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.shared_memory import create_shared_memory
from edgeagent.trainer.buffers import ModelBuffers
from edgeagent.trainer.fingerprint import (
    dataset_fields,
    job_fields,
    said_fields,
    sample_digest,
    update_digest,
)
from edgeagent.trainer.gradients import (
    clip_coefficient,
    gradient_bits,
    is_finite,
    mean_of,
    plan_vector,
    set_gradients,
)
from edgeagent.trainer.layout import ALIGNMENT, TensorSpec, plan_layout
from edgeagent.trainer.loader import moved
from edgeagent.trainer.mean import Mean
from edgeagent.trainer.order import SampleOrder
from edgeagent.trainer.state import TrainingState
from edgeagent.trainer.streams import RandomStreams, derived_seed
from protocols import limits
from tests.unit.trainer.replicas import Points, network

CPU = torch.device("cpu")


@given(st.integers(0, 5), st.integers(1, 60), st.integers(1, 6), st.integers(1, 6))
def test_every_epoch_has_every_sample_once(seed: int, length: int, micro: int, count: int) -> None:
    order = SampleOrder(seed, length, micro * count, micro)
    positions = [
        index
        for iteration in range(-(-3 * length // (micro * count)))
        for m in range(count)
        for index in order.indices(iteration, m)
    ]
    for epoch in range(3):
        assert Counter(positions[epoch * length : (epoch + 1) * length]) == Counter(range(length))


@given(st.integers(1, 40), st.integers(0, 30))
def test_order_depends_on_the_global_batch_alone(length: int, iteration: int) -> None:
    whole = SampleOrder(1, length, 12, 12).indices(iteration, 0)
    order = SampleOrder(1, length, 12, 3)
    parts = [order.indices(iteration, m) for m in (3, 1, 0, 2)]
    assert parts[2] + parts[1] + parts[3] + parts[0] == whole


def test_order_is_fixed_for_ever() -> None:
    assert SampleOrder(0, 10, 10, 10).indices(0, 0) == [9, 7, 3, 5, 4, 8, 2, 1, 0, 6]
    assert SampleOrder(0, 50, 10, 10).indices(0, 0) != SampleOrder(1, 50, 10, 10).indices(0, 0)
    assert derived_seed(0, 1, 2) != derived_seed(0, 12)


def test_streams_follow_from_their_labels() -> None:
    def draw(streams: RandomStreams, *labels: int) -> tuple[float, float]:
        streams.enter(*labels)
        pair = (float(torch.rand(())), float(np.random.rand()))
        streams.leave()
        return pair

    one, two = RandomStreams(4, [CPU]), RandomStreams(4, [CPU])
    assert draw(one, 1, 2) == draw(two, 1, 2)
    assert len({draw(one, 1, 2), draw(one, 2, 1), draw(RandomStreams(5, [CPU]), 1, 2)}) == 3


@given(st.lists(st.tuples(st.integers(0, 50), st.sampled_from(["F64", "F32", "BF16", "BOOL"]))))
def test_layout_is_aligned_ascending_and_disjoint(sizes: list[tuple[int, str]]) -> None:
    layout = plan_layout(
        TensorSpec(f"t{n}", dtype, (size,)) for n, (size, dtype) in enumerate(sizes)
    )
    end = 0
    for _, offset, size in layout.tensors():
        assert offset % ALIGNMENT == 0
        assert offset >= end
        end = offset + size
    assert end <= layout.size < end + ALIGNMENT
    assert [spec.name for spec in layout.specs] == sorted(f"t{n}" for n in range(len(sizes)))


def test_spans_join_neighbours() -> None:
    sizes = {"a": 3, "b": 16, "c": 0, "d": 20, "e": 1}
    layout = plan_layout([TensorSpec(name, "F32", (size,)) for name, size in sizes.items()])
    assert layout.size == 320
    assert layout.spans({"a", "b", "e"}) == ((0, 128), (256, 320))
    assert layout.spans({"b", "c", "d"}) == ((64, 256),)
    assert layout.spans({"c", "z"}) == ()


def test_equal_names_are_refused() -> None:
    with pytest.raises(UsageError, match="called x"):
        plan_layout([TensorSpec("x", "F32", (1,)), TensorSpec("x", "F32", (2,))])


@given(
    st.lists(st.integers(0, 300_000), min_size=1, max_size=6),
    st.lists(st.integers(0, 100), max_size=3),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_vector_layout(gradients: list[int], buffers: list[int], dtype: torch.dtype) -> None:
    layout = plan_vector(gradients, buffers, dtype)
    assert layout.chunk_elements % 16 == 0
    assert 0 < layout.chunk_elements * dtype.itemsize <= limits.MAX_CHUNK_BYTES
    assert all(offset % 16 == 0 for offset in layout.gradient_offsets + layout.buffer_offsets)
    end = 0
    places = zip(layout.gradient_offsets, gradients, strict=True)
    for offset, size in [*places, *zip(layout.buffer_offsets, buffers, strict=True)]:
        assert offset >= end
        end = offset + size
    assert end <= layout.elements
    boundary = layout.gradient_chunks * layout.chunk_elements
    assert all(offset >= boundary for offset in layout.buffer_offsets)
    assert layout.gradient_offsets[-1] + gradients[-1] <= boundary


@pytest.mark.parametrize(
    ("elements", "chunks"),
    [
        (1_000, 1),  # 4 KiB is the least
        (10_000, 9),
        (262_144, 43),  # 24 KB each
        (1_000_000, 84),
        (4_000_000, 160),  # from here on 160 chunks
        (10_000_000, 160),
        (61_000_000, 931),  # 256 KiB each
    ],
)
def test_small_vectors_have_fewer_chunks(elements: int, chunks: int) -> None:
    assert plan_vector([elements], [], torch.float32).chunks == chunks


def test_large_vectors_have_a_bounded_number_of_chunks() -> None:
    layout = plan_vector([2_000_000_000], [], torch.float32)
    assert layout.chunks <= 8192
    assert layout.chunk_elements * 4 <= limits.MAX_CHUNK_BYTES


def test_clipping_follows_torch() -> None:
    parameters = [nn.Parameter(torch.zeros(5, 3)), nn.Parameter(torch.zeros(7))]
    layout = plan_vector([15, 7], [], torch.float64)
    total = torch.zeros(layout.elements, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    for offset, parameter in zip(layout.gradient_offsets, parameters, strict=True):
        count = parameter.numel()
        total[offset : offset + count] = torch.randn(count, generator=generator).double() * 9
    sums = tuple(float((c**2).sum()) for c in total.split(layout.chunk_elements))
    coefficient = clip_coefficient(sums, layout, 3, 0.7)
    set_gradients(layout, mean_of(layout, total, Mean(3, 1.0, coefficient)), parameters, 3)
    clipped = [p.grad.clone() for p in parameters if p.grad is not None]
    set_gradients(layout, mean_of(layout, total, Mean(3)), parameters, 3)
    torch.nn.utils.clip_grad_norm_(parameters, 0.7)
    for ours, parameter in zip(clipped, parameters, strict=True):
        assert torch.allclose(ours, parameter.grad, rtol=1e-5)  # type: ignore[arg-type]
    assert clip_coefficient(sums, layout, 3, None) is None
    assert clip_coefficient(sums, layout, 3, 1e9) is None
    set_gradients(layout, mean_of(layout, total, Mean(3)), parameters, 1)
    assert parameters[1].grad is None
    with pytest.raises(EdgeAgentError):
        mean_of(layout, total, Mean(0))
    assert gradient_bits(b"\x02", 2) == 2
    for bitmap in (b"", b"\x07"):
        with pytest.raises(EdgeAgentError):
            gradient_bits(bitmap, 2)


def test_only_gradient_chunks_decide_about_skipping() -> None:
    layout = plan_vector([20], [4], torch.float32)
    assert layout.chunks == 2
    assert is_finite((1.0, math.inf), layout)
    assert not is_finite((math.nan, 1.0), layout)
    with pytest.raises(EdgeAgentError):
        is_finite((1.0,), layout)


class Counting(nn.Module):
    """Buffers of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.register_buffer("mean", torch.tensor([1.0, -math.inf, math.inf, 3.0]))
        self.register_buffer("count", torch.tensor(4))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("table", torch.full((3,), 0.1))
        self.register_buffer("nothing", None)
        self.mean: torch.Tensor
        self.count: torch.Tensor
        self.mask: torch.Tensor


def attached(model: nn.Module) -> tuple[ModelBuffers, torch.Tensor, dict[int, torch.Tensor]]:
    buffers = ModelBuffers(model)
    layout = plan_vector([1], buffers.sizes(), torch.float32)
    vector = torch.zeros(layout.elements)
    shared = {name: value.clone() for name, value in buffers.tensors().items()}
    buffers.attach(shared, layout, vector)
    return buffers, vector, buffers.section(layout, vector)


def test_buffers_are_averaged_or_must_agree() -> None:
    model = Counting()
    buffers, _, sums = attached(model)
    assert buffers.averaged() == [2, 3]
    for step in range(3):
        buffers.restore()
        model.mean = torch.tensor([1.0 + step, -math.inf, 6.0, 3.0 - step])  # a new tensor
        model.count += 1
        buffers.collect()
    agreed = [buffers.exact_agree]
    buffers.apply({n: total / 3 for n, total in sums.items()}, buffers.exact)
    assert torch.equal(model.mean, torch.tensor([2.0, -math.inf, 6.0, 2.0]))
    assert int(model.count) == 5
    assert torch.equal(model.get_buffer("table"), torch.full((3,), 0.1))
    buffers.restore()
    model.count += 2
    buffers.collect()
    agreed.append(buffers.exact_agree)
    assert buffers.disagreeing() == "count, mask"
    buffers.clear()
    assert [*agreed, buffers.exact_agree] == [True, False, True]


def test_buffers_that_change_their_kind_are_named() -> None:
    model = Counting()
    buffers, _, _ = attached(model)
    model.mean = torch.zeros(2)
    with pytest.raises(UsageError, match="mean"):
        buffers.collect()
    buffers.restore()
    model.nothing = torch.zeros(2)
    with pytest.raises(UsageError, match="buffer"):
        buffers.collect()


@given(st.binary(max_size=40))
def test_foreign_buffer_bytes_raise_our_error_only(data: bytes) -> None:
    buffers, _, sums = attached(Counting())
    try:
        buffers.apply(sums, data)
    except EdgeAgentError:
        return
    assert data == b"" or data[:4] == b"\0\0\0\0" or len(data) > 12


def test_too_many_changing_bytes_are_refused() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("huge", torch.zeros(20_000, dtype=torch.int64))
    buffers, _, _ = attached(model)
    buffers.collect()
    assert buffers.exact == bytes(4)
    buffers.clear()
    model.get_buffer("huge").add_(1)
    buffers.collect()
    with pytest.raises(UsageError, match="huge"):
        _ = buffers.exact


def fields_of(
    optimizer: torch.optim.Optimizer, model: nn.Module, **settings: Any
) -> dict[str, str]:
    return dict(job_fields(TrainingState(model, optimizer), optimizer, None, settings))


def test_fingerprint_names_what_differs() -> None:
    def fields(lr: float = 0.1, kind: Any = torch.optim.SGD, **settings: Any) -> dict[str, str]:
        model = network()
        return fields_of(kind(model.parameters(), lr=lr), model, **settings)

    base = fields()
    assert base == fields()
    assert base["parameter 0.weight"] == "[24, 12] torch.float32 trainable"
    assert base["buffer 1.num_batches_tracked"] == "[] torch.int64"
    assert {k for k, v in fields(0.2).items() if base.get(k) != v} == {
        "optimizer group 0",
        "update",
    }
    assert fields(kind=torch.optim.Adagrad)["optimizer"] == "Adagrad"
    assert fields(seed=3)["seed"] == "3"
    assert len(base) < limits.MAX_JOB_FIELDS


def test_update_digest_leaves_the_optimizer_alone() -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    before = [p.detach().clone() for p in model.parameters()]
    assert update_digest(optimizer) == update_digest(optimizer)
    assert update_digest(optimizer) != update_digest(torch.optim.Adam(model.parameters(), lr=0.1))
    assert not optimizer.state
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_data_set_fields() -> None:
    streams = RandomStreams(0, [CPU])
    digest = sample_digest(Points(), 200, streams)
    assert digest == sample_digest(Points(), 200, streams)
    fields = dataset_fields(said_fields(Points()), 200, digest)
    assert fields == (("samples", "200"), ("sample digest", digest))
    mixed = [{"a": [1, 2.5, "x", None, b"y"], "b": np.arange(3), "c": object()}] * 2
    assert sample_digest(mixed, 2, streams) == sample_digest(mixed, 2, streams)
    assert sample_digest([1, 2], 2, streams) != sample_digest([1, 3], 2, streams)


def test_moved_keeps_the_structure() -> None:
    batch = {"x": [torch.ones(1), (torch.ones(2), "text")]}
    copied = moved(batch, CPU)
    assert copied["x"][1][1] == "text"
    assert type(copied["x"][1]) is tuple


def test_adopting_a_foreign_state_changes_nothing() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = TrainingState(model, optimizer)
    state.attach(create_shared_memory(state.layout.size, state.vector.elements, "float32"))
    other = network()
    adam = torch.optim.Adam(other.parameters())
    foreign = TrainingState(other, adam)
    foreign.attach(create_shared_memory(foreign.layout.size, foreign.vector.elements, "float32"))
    before = state.meta()
    with pytest.raises(EdgeAgentError, match="parameter group 0"):
        state.adopt(0, foreign.meta())
    with pytest.raises(EdgeAgentError, match="another iteration"):
        state.adopt(1, before)
    assert state.meta() == before


def test_a_moved_model_is_noticed() -> None:
    model = network()
    state = TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1))
    state.attach(create_shared_memory(state.layout.size, state.vector.elements, "float32"))
    model.to(torch.float64)
    with pytest.raises(UsageError, match="was moved"):
        state.guards.check()
