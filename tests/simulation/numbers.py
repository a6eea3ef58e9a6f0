"""The known numbers that stand for training in the simulated world.

Micro-batch m of iteration i contributes a known vector, so that the right state after every
iteration is known exactly. Nodes see the state as bytes only: it is repeated until it is large
enough for several shards, and may begin with frozen weights.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protocols.cluster.view import Member

# How many elements the gradient has. Each is a chunk, so this few keep histories quick.
VECTOR = 4
# How many elements the training state has: so many that a pull has several shards.
STATE_ELEMENTS = 4096
# How many bytes of the state never change in a world that has frozen weights: some whole shards and
# a part of the next one, which joiners have to pull in any case.
CONSTANT_BYTES = 40 << 10
# Each device whose number this divides starts with other frozen weights than the rest.
OTHER_WEIGHTS = 3


def contribution(iteration: int, micro_batch: int) -> list[int]:
    """Return the known gradient of one micro-batch, which differs from those of its neighbours."""
    return [(iteration * 31 + micro_batch * 7 + k * 3) % 1009 + 1 for k in range(VECTOR)]


def settings(iteration: int) -> bytes:
    """Return what every script sets in its optimizer in an iteration, as opaque bytes."""
    return b"lr of %d" % iteration


@cache
def expected_state(iteration: int, micro_batches: int) -> list[int]:
    """Return the state at the start of `iteration` if every micro-batch counted exactly once."""
    if iteration == 0:
        return [0] * VECTOR
    parts = [contribution(iteration - 1, m) for m in range(micro_batches)]
    before = expected_state(iteration - 1, micro_batches)
    return [sum(column) for column in zip(before, *parts, strict=True)]


def state_bytes(state: list[int]) -> bytes:
    """Return the flat training state that stands for `state`, which it repeats many times."""
    return b"".join(x.to_bytes(16, "little") for x in state) * (STATE_ELEMENTS // VECTOR)


def weights_of(host: Member) -> bytes:
    """Return the frozen weights with which a device starts in a world that has some."""
    kind = 1 if int(host.name[1:]) % OTHER_WEIGHTS else 2
    return kind.to_bytes(16, "little") * (CONSTANT_BYTES // 16)


@cache
def leaves_of(whole: bytes, shard_bytes: int) -> tuple[bytes, ...]:
    """Return the SHA-256 of each shard of the flat state `whole`, in order."""
    pieces = [whole[k : k + shard_bytes] for k in range(0, len(whole), shard_bytes)]
    return tuple(hashlib.sha256(p).digest() for p in pieces)
