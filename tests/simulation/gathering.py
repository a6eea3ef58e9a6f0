"""What must hold of the sums of rounds in which it matters who computed what (`training.py`).

An all-knowing observer notes which micro-batches each device computes, in which order, and what it
contributes to each attempt of a round. A contribution must be what follows from these micro-batches
and from the state at the start of the round:

- with local steps, all of them one after the other from that start, none of them twice;
- with subnets, changes of those numbers alone that belong to the first cells which it was given. A
  number whose device was lost keeps its value, and so does one whose cell came to a device later.

An update must be, number by number, the sum of what the devices contributed to one attempt, in
which each micro-batch was computed by exactly one of them.

The right state then follows from the updates, so it is known for each commit id, and all devices
with that id must have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols.rounds import control_word
from tests.simulation.numbers import VECTOR, contribution
from tests.simulation.training import PRIME, cell_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.simulation.host import Host, Mark, Reduce


class Gathering:
    """The observer of one world."""

    def __init__(self, *, micro_batches: int, subnets: bool) -> None:
        """`micro_batches`: how many a round has."""
        self._in_all, self._subnets = micro_batches, subnets
        # The key of an attempt -> device -> its micro-batches and its contribution.
        self._given: dict[Mark, dict[bytes, tuple[tuple[int, ...], list[int]]]] = {}
        self._states: dict[bytes, list[int]] = {}  # commit id -> the state
        # A device's life, iteration and turn -> its micro-batches, in the order of its work.
        self._work: dict[tuple[object, ...], list[tuple[int, ...]]] = {}

    def worked(self, host: Host, micro_batches: tuple[int, ...]) -> None:
        """Note that `host` has computed these, too, in its turn."""
        self._work.setdefault(_turn(host), []).append(micro_batches)

    def _expected(self, host: Host) -> list[int]:
        """Return what `host` should contribute now."""
        iteration, state = host.iteration, host.state
        work = [given for given in self._work.get(_turn(host), []) if given]
        if self._subnets:
            cells = work[0] if work else ()
            together = [sum(contribution(iteration, m)[k] for m in cells) for k in range(VECTOR)]
            return [
                self._in_all * ((3 * state[k] + together[k]) % PRIME)
                if cell_of(iteration, k, self._in_all) in cells
                else 0
                for k in range(VECTOR)
            ]
        numbers = [m for given in work for m in given]
        weights = list(state)
        for m in numbers:
            moves = contribution(iteration, m)
            weights = [(3 * w + g) % PRIME for w, g in zip(weights, moves, strict=True)]
        return [len(numbers) * ((w - s) % PRIME) for w, s in zip(weights, state, strict=True)]

    def contributed(self, host: Host, reduce: Reduce) -> None:
        """Note what `host` gives to its attempt."""
        assert reduce.word is not None
        assert reduce.own is not None
        done = control_word.numbers(reduce.word.done, self._in_all)
        given = self._given.setdefault(reduce.round.spec.key, {})
        assert host.me.node not in given, f"{host.me.name} contributes twice to one attempt"
        right = self._expected(host) if done else [0] * VECTOR
        assert reduce.own == right or host.is_wrong, f"{host.me.name} contributes something else"
        given[host.me.node] = (done, list(reduce.own))

    def check(self, name: str, chunk: int, value: object, made: Mark) -> None:
        """Check the value of a data chunk that the attempt `made` has summed up."""
        key, iteration = made[:-1], made[3]
        given = self._given.get(key, {})
        done = sorted(m for numbers, _ in given.values() for m in numbers)
        where = f"{name}: chunk {chunk} of {iteration}"
        assert done == list(range(self._in_all)), f"{where} is the sum of {done}"
        assert value == sum(own[chunk - 1] for _, own in given.values()), f"{where} is no sum"
        if self._subnets:
            changed = [node for node, (_, own) in given.items() if own[chunk - 1]]
            assert len(changed) <= 1, f"{where} is changed by two devices"

    def kept(self, host: Host, reduce: Reduce, chunks: tuple[int, ...]) -> None:
        """Check chunks that a fence may keep."""
        for chunk in chunks:
            if chunk:
                self.check(host.me.name, chunk, reduce.partial[chunk], reduce.made[chunk])

    def updated(self, host: Host, commit: bytes, made: Mapping[int, Mark]) -> None:
        """Check the update after which `host` has the state called `commit`."""
        total = host.sums[host.iteration - 1]
        for chunk in range(1, VECTOR + 1):
            self.check(host.me.name, chunk, total[chunk - 1], made[chunk])
        if commit:
            self._states.setdefault(commit, list(host.state))
            assert self.is_right(host, commit), f"{host.me.name}: wrong state {host.iteration}"

    def is_right(self, host: Host, commit: bytes) -> bool:
        """Return whether `host` has the state called `commit`, as far as that is known."""
        return self._states.get(commit, host.state) == host.state


def _turn(host: Host) -> tuple[object, ...]:
    """Return what all work of `host` has in common that goes into one contribution."""
    return (host.me.node, host.me.incarnation, host.life, host.iteration, host.turn)
