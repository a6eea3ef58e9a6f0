"""A training script with Adam and a model of so many parameters, in the shapes of a transformer.

Computing is cheap, so that steps show what the optimizer and the network take; with `--compute-ms`
a micro-batch sleeps for that time, as computing would take it on processors of its own.

Usage: edgeagent run tests/testbed/bench/divided_job.py -- --parameters N [--compute-ms T]
"""

from __future__ import annotations

import argparse
import time

import torch

from edgeagent import Trainer
from tests.testbed.synthetic import FLOAT_BYTES, SAMPLES, Synthetic


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, required=True)
    parser.add_argument("--compute-ms", type=float, default=0.0)
    args = parser.parse_args()
    model = Synthetic(0, FLOAT_BYTES * args.parameters)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-9)
    data = torch.utils.data.TensorDataset(torch.linspace(0, 1, SAMPLES).unsqueeze(1))
    trainer = Trainer(model, optimizer, global_batch=256)
    for (x,) in trainer.loader(data):
        loss = model(x)
        time.sleep(args.compute_ms / 1e3)
        loss.backward()
        trainer.update(loss)


if __name__ == "__main__":
    main()
