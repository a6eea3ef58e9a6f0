"""A training script whose cost is what is asked for: state, gradients, time to compute.

Usage: edgeagent run tests/testbed/synthetic.py -- [--state-mb N] [--gradient-mb N] [--compute-ms N]
                                                  [--load FILE]

Law: everything about it is real but the arithmetic: a micro-batch sleeps for its time. While a file
`slowdown` with a factor lies in the working folder, micro-batches take so many times as long. What
is frozen in the file of `--load` is read and kept, but is no part of the training state: whoever
starts with that file has it, and nobody pulls it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from edgeagent import Trainer

MB = 1_000_000
FLOAT_BYTES = 4
SAMPLES = 4096
SLOWDOWN = Path("slowdown")
LAYERS = 4  # trainable tensors


class Synthetic(nn.Module):
    """Trainable tensors of `gradient_bytes` in all, and a frozen one that fills the state up."""

    def __init__(self, state_bytes: int, gradient_bytes: int) -> None:
        super().__init__()
        each = max(16, gradient_bytes // FLOAT_BYTES // LAYERS)
        self.layers = nn.ParameterList(nn.Parameter(torch.zeros(each)) for _ in range(LAYERS))
        frozen = max(16, (state_bytes - LAYERS * each * FLOAT_BYTES) // FLOAT_BYTES)
        noise = torch.arange(frozen, dtype=torch.float32)
        self.frozen = nn.Parameter(noise, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one number whose gradient is dense in every trainable tensor."""
        total = sum(layer.sum() for layer in self.layers)
        return (torch.as_tensor(total) * x.mean() - 1.0) ** 2


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state-mb", type=float, default=1.0)
    parser.add_argument("--gradient-mb", type=float, default=0.5)
    parser.add_argument("--compute-ms", type=float, default=5.0, help="of one micro-batch")
    parser.add_argument("--load", metavar="FILE", help="a checkpoint of this job")
    args = parser.parse_args()
    model = Synthetic(0 if args.load else int(args.state_mb * MB), int(args.gradient_mb * MB))
    loaded = load_file(args.load) if args.load else {}
    with torch.no_grad():
        for k, layer in enumerate(model.layers if loaded else ()):
            layer.copy_(loaded[f"model.layers.{k}"])
    optimizer = torch.optim.SGD(model.layers.parameters(), lr=1e-9)
    data = torch.utils.data.TensorDataset(torch.linspace(0, 1, SAMPLES).unsqueeze(1))
    trainer = Trainer(model, optimizer, global_batch=256)
    for (x,) in trainer.loader(data):
        factor = float(SLOWDOWN.read_text()) if SLOWDOWN.exists() else 1.0
        time.sleep(args.compute_ms * 1e-3 * factor)
        loss = model(x)
        loss.backward()
        trainer.update(loss)


main()
