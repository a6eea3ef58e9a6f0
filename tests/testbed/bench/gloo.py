"""One member of `torch.distributed`'s all-reduce over gloo.

Usage: gloo.py --rank R --addresses A,B,... --port P --mb N --rounds N --out FILE

It is used as its manual says: one tensor of float32, and a group that is made once. Every round is
checked, and its times are written to FILE as JSON lines.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed

MB = 1_000_000
TIMEOUT = timedelta(seconds=60)


def main() -> int:
    """Run one member."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--addresses", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--mb", type=float, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    addresses = args.addresses.split(",")
    count = len(addresses)
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{addresses[0]}:{args.port}",
        rank=args.rank,
        world_size=count,
        timeout=TIMEOUT,
    )
    data = torch.empty(int(args.mb * MB) // 4)
    with Path(args.out).open("w") as out:
        for _ in range(args.rounds):
            data.fill_(args.rank + 1)
            began = time.time()
            distributed.all_reduce(data)
            ended = time.time()
            right = bool((data == count * (count + 1) / 2).all())
            print(
                json.dumps({"began": began, "ended": ended, "right": right}), file=out, flush=True
            )
    distributed.barrier()
    distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
