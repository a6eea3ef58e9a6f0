"""Updates are rounded alike on every processor: fixed digests, and each operation against numpy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

from edgeagent.launch import package_environment
from edgeagent.trainer import exact_arithmetic
from edgeagent.trainer.exact_arithmetic import ExactArithmetic
from edgeagent.trainer.fingerprint import update_digest
from edgeagent.trainer.numerics import rounding
from tests.variants import variants

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[3]
OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, foreach=False),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-3, foreach=False),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=False),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2, foreach=False),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, foreach=False),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=2e-3, foreach=False),
}
# What the trial update of `fingerprint.py` leaves, by IEEE 754 alone: on any processor.
DIGESTS: dict[str, str] = {
    "SGD": "869d9dba727c285292df6781147072f2dbe1b6dd28f42f616d3a2a30043b5ae7",
    "Adam": "cbb9fee6756b2d937bd2e4a7b68f0c57f03284a671d7d0386b9262eb060cacac",
    "AdamW": "ce88a5dafc3d93298d5e14106288ed4cf00d0b97932b4f65488e94af9bf5836b",
    "Adagrad": "efbbf6921e6a0d15aeb23d9cf245a14e12b8f6812e0bab7f4b6379b1282b8fb6",
    "RMSprop": "5f1522ffe50b365e9a27283991032e4283cdbc0d44bceadce2532183497fc01d",
    "NAdam": "539e8b63dd467c772442213d6798a4b0c0f3e6edbab920fc579928b0dcebc2de",
}
ROUNDING = (
    "square roots 8328e52d, divisions af4f4bee, multiply-adds 01a44db6, divide-adds b26fed02,"
    " interpolations d7ef995f"
)


def digest(name: str) -> str:
    """Return the digest of a trial update by the optimizer called `name`."""
    return update_digest(OPTIMIZERS[name]([nn.Parameter(torch.zeros(3))]))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_leaves_the_same_bits_as_everywhere(name: str) -> None:
    assert digest(name) == DIGESTS[name], (
        f"{name}'s update rounds differently here ({rounding(torch.device('cpu'))}, where others"
        f" have {ROUNDING}): this device could not train with others"
    )


@pytest.mark.parametrize("level", variants(["default"], long=["avx2", "avx512"]))
def test_vector_instructions_make_no_difference(level: str) -> None:
    """Torch falls back to what the processor has."""
    asked = (
        "from tests.unit.trainer.test_exact_arithmetic import DIGESTS, OPTIMIZERS, digest\n"
        "print([name for name in OPTIMIZERS if digest(name) != DIGESTS[name]])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", asked],
        cwd=ROOT,
        env={**package_environment(os.environ), "ATEN_CPU_CAPABILITY": level},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout == "[]\n", ended.stderr


def test_operations_leave_the_same_bits_as_everywhere() -> None:
    assert rounding(torch.device("cpu")) == ROUNDING


def numbers(count: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Return positive numbers of all sizes."""
    drawn = np.random.default_rng(seed)
    values = drawn.uniform(0.5, 1.0, count) * 2.0 ** drawn.integers(-9, 9, count)
    return torch.from_numpy(values).to(dtype)


def exact(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return tensor.numpy().copy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 7, 771, exact_arithmetic.BLOCK + 5])
def test_operations_round_once_each_as_numpy_does(dtype: torch.dtype, count: int) -> None:
    x, y, z = (numbers(count, dtype, seed) for seed in range(3))
    a, b, c = exact(x), exact(y), exact(z)
    f = a.dtype.type(0.1)
    with ExactArithmetic():
        found = {
            "square root": (x.sqrt(), np.sqrt(a)),
            "reciprocal root": (x.rsqrt(), a.dtype.type(1) / np.sqrt(a)),
            "sum": (x.add(y, alpha=0.1), a + f * b),
            "difference": (x.sub(y, alpha=0.1), a - f * b),
            "product": (x.addcmul(y, z, value=0.1), a + f * b * c),
            "quotient": (x.addcdiv(y, z, value=0.1), a + f * b / c),
            "near": (x.lerp(y, 0.1), a + f * (b - a)),
            "far": (x.lerp(y, 0.9), b - (b - a) * (a.dtype.type(1) - a.dtype.type(0.9))),
            "plain": (x / y, a / b),
            "number": (x.div(0.1), a / f),
        }
        in_place = x.clone()
        assert in_place.addcmul_(y, z, value=0.1) is in_place
        listed = [x.clone(), y.clone()]
        torch._foreach_lerp_(listed, [y, z], 0.1)
        roots = torch._foreach_sqrt([x, y])
    for name, (ours, numpys) in found.items():
        assert np.array_equal(ours.numpy(), numpys), name
    assert torch.equal(in_place, found["product"][0])
    assert torch.equal(listed[0], found["near"][0])
    assert np.array_equal(roots[1].numpy(), np.sqrt(b))
    assert np.array_equal(x.numpy(), a)
    assert x.add(y, alpha=0.1).dtype == dtype  # torch's own again


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once_at_the_end(dtype: torch.dtype) -> None:
    x, y, z = (numbers(771, dtype, seed).clamp(max=8.0) for seed in range(3))
    with ExactArithmetic():
        found = x.addcmul(y, z, value=0.1), x.sqrt()
    wide = x.float() + y.float() * 0.1 * z.float()
    assert torch.equal(found[0], wide.to(dtype))
    assert torch.equal(found[1], torch.from_numpy(np.sqrt(x.float().numpy())).to(dtype))


def test_what_is_no_update_of_floats_is_torchs_own() -> None:
    counts, masks = torch.arange(6), torch.tensor([True, False])
    wide, narrow = torch.ones(2, dtype=torch.float64), torch.ones(2)
    rows, column = torch.ones(3, 4), torch.arange(3.0).view(3, 1)
    with ExactArithmetic():
        assert torch.equal(counts.add(counts, alpha=2), 3 * torch.arange(6))
        assert counts[:2].sqrt().dtype == torch.float32
        assert masks.logical_not().tolist() == [False, True]
        assert wide.add(narrow, alpha=0.5).dtype == torch.float64
        assert column.add(rows, alpha=2.0).shape == (3, 4)
        assert torch.equal(rows.clone().t().add_(torch.ones(4, 3), alpha=2.0), 3 * torch.ones(4, 3))
        assert narrow.lerp(torch.zeros(2), torch.tensor(1.0)).tolist() == [0.0, 0.0]
        assert narrow.neg().sqrt().isnan().all()
        with pytest.raises(RuntimeError):
            narrow.add_(torch.ones(5), alpha=2.0)


def test_a_device_that_divides_by_numbers_otherwise() -> None:
    """As CUDA does: rehearsed with tensors that have no values."""
    elsewhere = torch.ones(3, device="meta")
    with ExactArithmetic():
        assert (elsewhere / 3.0).device == elsewhere.device
        assert elsewhere.div_(3.0) is elsewhere
        assert elsewhere.sqrt_() is elsewhere
