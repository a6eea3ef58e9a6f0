"""A GPT-2 on random tokens, trained by a `Trainer`, by torch alone, or by DistributedDataParallel.

Usage: gpu_job.py --loop trainer|torch|ddp --device DEVICE --layers N --width N ... --steps N

The loops of torch and DistributedDataParallel write the time of each update into the file of
`--times`, as JSON; a trainer's are in the events of its agent. All compute under autocast with
bfloat16 and step AdamW.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import distributed
from torch.utils.data import TensorDataset

from models.gpt2 import GPT2, GPT2Config, next_token_loss

CONTEXT = 256
VOCABULARY = 4096
SEQUENCES = 64  # in the data set
BATCH = 8  # sequences of a micro-batch, two of which are an update


def options() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--loop", choices=("trainer", "torch", "ddp"), required=True)
    add("--device", required=True)
    add("--layers", type=int, required=True)
    add("--width", type=int, required=True)
    add("--steps", type=int, default=0)
    add("--times", type=Path)
    add("--divided", action="store_true", help="have the trainer divide the optimizer's state")
    add("--rank", type=int, default=0)
    add("--port", type=int, default=0, help="at which the two processes of ddp meet")
    return parser


def network(layers: int, width: int) -> GPT2:
    """Return the network, always with the same weights."""
    torch.manual_seed(0)
    return GPT2(GPT2Config(VOCABULARY, CONTEXT, width, layers, max(1, width // 64), 0.0))


def tokens() -> torch.Tensor:
    """Return the data set: int64 [SEQUENCES, CONTEXT + 1]."""
    draw = torch.Generator().manual_seed(1)
    return torch.randint(VOCABULARY, (SEQUENCES, CONTEXT + 1), generator=draw)


def loss_of(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of some sequences."""
    with torch.autocast(batch.device.type, torch.bfloat16):
        logits = model(batch[:, :-1])
    return next_token_loss(logits.float(), batch[:, 1:])


def by_trainer(args: argparse.Namespace) -> None:
    """Train as the README has it."""
    from edgeagent import Trainer

    model = network(args.layers, args.width).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    trainer = Trainer(
        model,
        optimizer,
        global_batch=2 * BATCH,
        micro_batch=BATCH,
        steps=args.steps or None,
        shard_optimizer=args.divided or None,  # else as the command line says
    )
    for (batch,) in trainer.loader(TensorDataset(tokens())):
        loss = loss_of(model, batch.to(args.device))
        loss.backward()
        trainer.update(loss)


def by_torch(args: argparse.Namespace) -> None:
    """Train as a script for torch does: alone, or as one of two processes."""
    device = torch.device(args.device)
    model: torch.nn.Module = network(args.layers, args.width).to(device)
    micro_batches = [0, 1]
    if args.loop == "ddp":
        where = f"tcp://127.0.0.1:{args.port}"
        distributed.init_process_group("gloo", init_method=where, rank=args.rank, world_size=2)
        model = torch.nn.parallel.DistributedDataParallel(model)
        micro_batches = [args.rank]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = tokens().to(device)
    ended = []
    for step in range(args.steps):
        for number in micro_batches:
            first = BATCH * (2 * step + number) % SEQUENCES
            (loss_of(model, data[first : first + BATCH]) / len(micro_batches)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()
        ended.append(time.time())
    args.times.write_text(json.dumps(ended))
    if args.loop == "ddp":
        distributed.destroy_process_group()


if __name__ == "__main__":
    given = options().parse_args()
    if given.loop == "trainer":
        by_trainer(given)
    else:
        by_torch(given)
