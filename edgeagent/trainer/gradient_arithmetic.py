"""How this device rounds gradients, in a digest: for `--exact`, where all devices must do it alike.

An update is rounded alike on every processor (`exact_arithmetic.py`), but not a gradient: matrix
products and convolutions are added up in an order that depends on the processor's instructions, on
the library that was chosen for it, and on the number of threads. With `--exact` the result of a
training shall not depend on which device computed which micro-batch. So a device whose digest
differs from the cluster's is refused.

The digest is of trial layers, not of the script's own. A model whose layers differ between two
devices although these layers are alike is not noticed.
"""

from __future__ import annotations

import hashlib

import torch
from torch.nn import functional

# Numbers of a digest that are shown: enough to see that two differ.
_DIGITS = 16
# Large enough for libraries to divide the work among threads.
_ROWS, _WIDTH, _IMAGE = 192, 384, 24


def gradient_arithmetic(device: torch.device) -> str:
    """Return the number of threads and a digest of the gradients of some layers on `device`.

    Neither the script's random numbers nor its model are touched.
    """
    digest = hashlib.sha256()
    with torch.enable_grad():
        for loss, leaves in (_linear(device), _attention(device), _convolution(device)):
            for gradient in torch.autograd.grad(loss, leaves):
                data = gradient.detach().cpu().contiguous().numpy().tobytes()
                digest.update(data)
    where = f"{torch.get_num_threads()} threads" if device.type == "cpu" else device.type
    return f"{where}, {digest.hexdigest()[:_DIGITS]}"


Trial = tuple[torch.Tensor, list[torch.Tensor]]


def _linear(device: torch.device) -> Trial:
    x, a, b = (_numbers(n, shape, device) for n, shape in enumerate([(_ROWS, _WIDTH)] * 3))
    hidden = functional.gelu(functional.layer_norm(x @ a.T, (_ROWS,)) @ b)
    return hidden.square().mean(), [x, a, b]


def _attention(device: torch.device) -> Trial:
    shape = (2, 4, 64, 32)
    q, k, v = (_numbers(n, shape, device) for n in range(3))
    seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return functional.cross_entropy(seen.flatten(0, 2), _labels(512, 32, device)), [q, k, v]


def _convolution(device: torch.device) -> Trial:
    images = _numbers(0, (8, 16, _IMAGE, _IMAGE), device)
    kernel, scale = _numbers(1, (32, 16, 3, 3), device), _numbers(2, (32,), device)
    found = functional.conv2d(images, kernel, padding=1)
    found = functional.batch_norm(found, None, None, scale, None, training=True)
    return functional.max_pool2d(functional.relu(found), 2).mean(), [images, kernel, scale]


def _numbers(label: int, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Return fixed numbers in [-0.5, 0.5) that need gradients; they are made without rounding."""
    count = torch.Size(shape).numel()
    mixed = (torch.arange(1, count + 1) + label * count) * 2654435761
    values = ((mixed >> 8) & 0xFFFF).float() / 65536 - 0.5
    return values.view(shape).to(device).requires_grad_()


def _labels(count: int, classes: int, device: torch.device) -> torch.Tensor:
    return (torch.arange(count) * 7 % classes).to(device)
