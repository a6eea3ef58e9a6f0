"""Small networks for small pictures.

The networks consist of `torch.nn` modules alone. Their weights are drawn from torch's global
generator, so it has to be seeded before a network is built. Each docstring gives the shapes of
input and output, where N is the number of samples in a batch.
"""

from __future__ import annotations

from torch import nn

CLASSES = 10


def _stage(inputs: int, outputs: int, *, batch_norm: bool) -> list[nn.Module]:
    """Return a 3x3 convolution, batch norm if asked for, and ReLU.

    They map [N, inputs, H, W] to [N, outputs, H, W].
    """
    # Batch norm takes away any bias that comes before it.
    stage: list[nn.Module] = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=not batch_norm)]
    if batch_norm:
        stage.append(nn.BatchNorm2d(outputs))
    stage.append(nn.ReLU())
    return stage


def _head(features: int, hidden: int, *, dropout: float) -> list[nn.Module]:
    """Return two linear layers with dropout between them if asked for: [N, ...] to [N, CLASSES]."""
    head: list[nn.Module] = [nn.Flatten(), nn.Linear(features, hidden), nn.ReLU()]
    if dropout > 0:
        head.append(nn.Dropout(dropout))
    head.append(nn.Linear(hidden, CLASSES))
    return head


def digits_net(*, batch_norm: bool = True, dropout: float = 0.1) -> nn.Module:
    """Return a network for 8x8 digits: [N, 1, 8, 8] to logits [N, 10]; about 38,000 parameters.

    With the defaults it has dropout and batch norm, so that a run of it also tests that random
    streams and buffers are the same on all devices.
    """
    return nn.Sequential(
        *_stage(1, 16, batch_norm=batch_norm),
        *_stage(16, 32, batch_norm=batch_norm),
        nn.MaxPool2d(2),
        *_head(32 * 4 * 4, 64, dropout=dropout),
    )


def fashion_net(*, batch_norm: bool = True, dropout: float = 0.2) -> nn.Module:
    """Return a network for 28x28 pictures: [N, 1, 28, 28] to logits [N, 10].

    It has about 106,000 parameters.
    """
    return nn.Sequential(
        *_stage(1, 16, batch_norm=batch_norm),
        nn.MaxPool2d(2),
        *_stage(16, 32, batch_norm=batch_norm),
        nn.MaxPool2d(2),
        *_head(32 * 7 * 7, 64, dropout=dropout),
    )
