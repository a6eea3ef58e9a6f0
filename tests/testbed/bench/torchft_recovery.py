"""torchft's recovery over HTTP: a healthy replica serves its checkpoint, a new one fetches it.

Usage: torchft_recovery.py serve ADDRESS STATE_BYTES
       torchft_recovery.py pull URL STATE_BYTES

`serve` prints {"url": U}; `pull` prints {"seconds": S, "bytes": N}. Needs torchft.

It is done as in torchft's manager: one source, one stream (`num_chunks=0`), and what arrives is the
state dict. The time is that of `recv_checkpoint`.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from datetime import timedelta

import torch
from torchft.checkpointing.http_transport import HTTPTransport

STEP = 1
TIMEOUT = timedelta(seconds=120)


def state(size: int) -> dict[str, torch.Tensor]:
    """Return a state dict of `size` bytes, one large tensor and a few small ones."""
    small = [torch.zeros(4096) for _ in range(4)]
    large = torch.arange(size // 4 - sum(t.numel() for t in small), dtype=torch.float32)
    return {"frozen": large, **{f"layers.{k}": t for k, t in enumerate(small)}}


def serve(host: str, size: int) -> None:
    """Serve until the process is ended."""
    transport: HTTPTransport[dict[str, torch.Tensor]] = HTTPTransport(TIMEOUT, num_chunks=0)
    transport.send_checkpoint([1], STEP, state(size), TIMEOUT)
    port = transport.metadata().rpartition(":")[2]  # its host name means nothing here
    print(json.dumps({"url": f"http://{host}:{port}"}), flush=True)
    signal.pause()


def pull(url: str, size: int) -> None:
    """Fetch the checkpoint."""
    transport: HTTPTransport[dict[str, torch.Tensor]] = HTTPTransport(TIMEOUT, num_chunks=0)
    began = time.monotonic()
    got = transport.recv_checkpoint(0, url, STEP, TIMEOUT)
    seconds = time.monotonic() - began
    if not torch.equal(got["frozen"], state(size)["frozen"]):
        raise SystemExit("what arrived is not the state")
    count = sum(t.numel() * t.element_size() for t in got.values())
    print(json.dumps({"seconds": seconds, "bytes": count}), flush=True)
    transport.shutdown()


if __name__ == "__main__":
    {"serve": serve, "pull": pull}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
