"""hivemind's state download: averagers that share their state, and one that loads it.

Usage: hivemind_state.py serve ADDRESS STATE_BYTES [PEER...]
       hivemind_state.py pull ADDRESS STATE_BYTES PEER...

`serve` prints {"peers": [its addresses]}; `pull` prints {"seconds": S, "bytes": N}. Needs hivemind.

The settings are the default ones, without compression. The time is that of `load_state_from_peers`,
which includes asking the distributed hash table who has a state. Hivemind itself chooses the one
peer from which it loads.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import hivemind
import torch
from hivemind.averaging import DecentralizedAverager

PREFIX = "scaleout"
TIMEOUT_S = 120.0
APART = {"LIBP2P_TCP_REUSEPORT": "false"}  # as `hivemind_averager.py` says


def state(size: int) -> list[torch.Tensor]:
    """Return tensors of `size` bytes in all, one large and a few small ones."""
    small = [torch.zeros(4096) for _ in range(4)]
    large = torch.arange(size // 4 - sum(t.numel() for t in small), dtype=torch.float32)
    return [large, *small]


def averager(host: str, size: int, peers: list[str], shares: bool) -> DecentralizedAverager:
    """Start an averager in a node of the hash table."""
    maddrs = [f"/ip4/{host}/tcp/0"]
    dht = hivemind.DHT(initial_peers=peers, host_maddrs=maddrs, start=True)
    tensors = state(size) if shares else [torch.zeros_like(t) for t in state(size)]
    return DecentralizedAverager(
        tensors, dht, prefix=PREFIX, start=True, allow_state_sharing=shares
    )


def serve(host: str, size: int, peers: list[str]) -> None:
    """Share the state until the process is ended."""
    mine = averager(host, size, peers, True)
    found = [str(a) for a in mine.dht.get_visible_maddrs() if f"/{host}/" in str(a)]
    print(json.dumps({"peers": found}), flush=True)
    signal.pause()


def pull(host: str, size: int, peers: list[str]) -> None:
    """Load the state."""
    mine = averager(host, size, peers, False)
    began = time.monotonic()
    got = None
    while got is None:  # None is returned while no peer has declared its state
        if time.monotonic() - began > TIMEOUT_S:
            raise SystemExit("no peer shared its state")
        asked = time.monotonic()
        got = mine.load_state_from_peers(timeout=TIMEOUT_S)
    seconds = time.monotonic() - asked
    _, tensors = got
    if not torch.equal(tensors[0], state(size)[0]):
        raise SystemExit("what arrived is not the state")
    count = sum(t.numel() * t.element_size() for t in tensors)
    print(json.dumps({"seconds": seconds, "bytes": count}), flush=True)
    mine.shutdown()
    mine.dht.shutdown()


if __name__ == "__main__":
    os.environ |= APART
    hivemind.p2p.P2P._UNIX_SOCKET_PREFIX = f"/unix{os.getcwd()}/"  # removed with everything else
    {"serve": serve, "pull": pull}[sys.argv[1]](sys.argv[2], int(sys.argv[3]), sys.argv[4:])
