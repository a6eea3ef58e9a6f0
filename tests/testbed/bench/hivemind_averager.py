"""One member of hivemind's `DecentralizedAverager`.

Usage: hivemind_averager.py --rank R --addresses A,B,... --port P --mb N --rounds N --out FILE
                            --mbit N

The settings are those of its manual for a group of known size: the group is complete as soon as all
ask for it; there is no compression, since the other contenders send float32, too; the time-outs are
those that its optimizer sets. `--mbit` is the rate of this member's links, by which hivemind
divides the vector. The first member starts the hash table and leaves its address beside FILE.

A round is right if the whole group took part and has the mean of all. The search for the group
(`asked` to `began`) is timed apart from the averaging (`began` to `ended`).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

MB = 1_000_000
BOARD = "hivemind.address"
BOARD_S = 60.0
GROUP_S = 60.0
ROUND_S = 60.0
CHUNK_S = 15.0
POLL_S = 0.002
# libp2p dials from the port on which it listens. Two members that dial each other at the same time
# then get one connection of which both believe that they have opened it. Neither gets through, and
# a peer that has failed is not dialled again for seconds. The longer the delay, the more often this
# happens (libp2p/go-libp2p, issue 2925).
APART = {"LIBP2P_TCP_REUSEPORT": "false"}


def hash_table(hivemind: Any, args: argparse.Namespace) -> Any:
    """Return this member's part of the hash table."""
    address = args.addresses.split(",")[args.rank]
    board = Path(args.out).with_name(BOARD)
    first: list[str] = []
    if args.rank:
        deadline = time.monotonic() + BOARD_S
        while not board.exists():
            if time.monotonic() > deadline:
                raise TimeoutError("the first member has no address")
            time.sleep(0.05)
        first = board.read_text().split()
    where = [f"/ip4/{address}/tcp/{args.port}"]
    table = hivemind.DHT(host_maddrs=where, initial_peers=first, start=True)
    if not args.rank:
        fresh = board.with_suffix(".new")
        fresh.write_text("\n".join(str(a) for a in table.get_visible_maddrs()))
        fresh.rename(board)
    return table


def average(averager: Any, running: Any) -> tuple[float, float, float, int]:
    """Do one round; return when it was asked for, began and ended, and how many took part."""
    asked = time.time()
    control = averager.step(wait=False, timeout=GROUP_S)
    began = asked
    while not control.done():
        if control.stage.value < running.value:
            began = time.time()  # the group is still being looked for
        time.sleep(POLL_S)
    ended = time.time()
    try:
        group = control.result()
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        group = None
    return asked, began, ended, len(group or ())


def main() -> int:
    """Run one member."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--addresses", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--mb", type=float, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--mbit", type=float, required=True)
    args = parser.parse_args()
    try:
        hivemind: Any = importlib.import_module("hivemind")
    except ImportError as error:
        print(f"{error}; --hivemind-python names a Python that has it", file=sys.stderr)
        return 1
    os.environ |= APART
    # Its sockets are beside FILE, where they are removed with everything else.
    hivemind.p2p.P2P._UNIX_SOCKET_PREFIX = f"/unix{Path(args.out).parent}/"
    torch: Any = importlib.import_module("torch")
    running = importlib.import_module("hivemind.averaging.control").AveragingStage
    count = len(args.addresses.split(","))
    data = torch.zeros(int(args.mb * MB) // 4)
    averager = hivemind.averaging.DecentralizedAverager(
        [data],
        hash_table(hivemind, args),
        start=True,
        prefix="bench",
        target_group_size=count,
        min_group_size=count,
        bandwidth=args.mbit,
        allreduce_timeout=ROUND_S,
        next_chunk_timeout=CHUNK_S,
    )
    with Path(args.out).open("w") as out:
        for _ in range(args.rounds):
            with averager.get_tensors() as tensors:
                tensors[0].fill_(args.rank + 1)
            asked, began, ended, group = average(averager, running.RUNNING_ALLREDUCE)
            with averager.get_tensors() as tensors:
                right = bool(((tensors[0] - (count + 1) / 2).abs() < 1e-4).all())
            whole = group == count
            line = {"asked": asked, "began": began, "ended": ended, "right": right and whole}
            print(json.dumps(line), file=out, flush=True)
    time.sleep(2.0)  # the others may still fetch from this member
    sys.stdout.flush()
    os._exit(0)  # its daemons end with the session


if __name__ == "__main__":
    sys.exit(main())
