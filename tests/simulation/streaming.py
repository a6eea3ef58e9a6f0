"""A trainer that announces chunks of its sum while it still computes others, as real ones may.

Until the trainer's answer nobody can rely on what left so: it may hang, hand the work back, or be
given more in another attempt meanwhile.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from protocols import events
from protocols.rounds.control_word import bits
from tests.simulation.numbers import VECTOR, contribution

if TYPE_CHECKING:
    from protocols import effects
    from tests.simulation.host import Host

MOST_ANNOUNCEMENTS = 3  # of one work


def give(host: Host, work: effects.GiveWork) -> None:
    """Have the trainer of `host` compute `work` after what it has to do already, and perhaps
    announce chunks at some moments meanwhile."""
    now, dice = host.world.now, host.world.random
    begins = max(now, host.busy_until)
    host.soon(host.computing(), partial(host.work, partial(host.compute, work)))
    if host.world.is_long and len(work.micro_batches) > 1:
        middle = dice.uniform(begins, host.busy_until)
        computed = dice.randint(1, len(work.micro_batches) - 1)
        said = events.Progressed(work.iteration, computed, work.turn)
        host.soon(middle - now, partial(host.work, partial(host.handle, said)))
    if not host.world.streams or not work.micro_batches:
        return
    for _ in range(dice.randint(0, MOST_ANNOUNCEMENTS)):
        at = dice.uniform(begins, host.busy_until)
        first = dice.randint(1, VECTOR)
        chunks = tuple(range(first, dice.randint(first, VECTOR) + 1))
        host.soon(at - now, partial(host.work, partial(announce, host, work, chunks)))


def announce(host: Host, work: effects.GiveWork, chunks: tuple[int, ...]) -> None:
    """Put the sum over all that the trainer has been told of by now into its memory, and announce
    that it is ready in these chunks."""
    if host.gone is not None or work.iteration != host.iteration or work.turn < host.turn:
        return
    again = work.turn != host.turn  # the sum begins anew
    done, own = ((), [0] * VECTOR) if again else (host.done, host.own)
    parts = [contribution(work.iteration, m) for m in work.micro_batches]
    host.ahead = [sum(column) for column in zip(own, *parts, strict=True)]
    host.ahead[0] += host.is_wrong * len(work.micro_batches)
    covered = tuple(sorted((*done, *work.micro_batches)))
    host.handle(events.ChunksReady(work.iteration, covered, bits(chunks), work.turn))


def contribute(host: Host, chunks: tuple[int, ...]) -> None:
    """Contribute what the trainer has announced."""
    reduce = host.reduce
    assert reduce is not None
    reduce.own = list(host.ahead)
    host.drive(reduce.round.contribute_chunks(chunks))
