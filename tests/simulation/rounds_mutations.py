"""Planted bugs in rounds of local steps and of subnets, where it matters who computed what.

Both are bugs that a trainer could have. `mutations.py` says what a planted bug is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from tests.simulation.host import Host
from tests.simulation.training import LocalSteps, Subnets

if TYPE_CHECKING:
    from protocols import effects


@contextmanager
def keep_steps_that_others_take() -> Iterator[None]:
    """A trainer whose work was dealt to others goes on from where that work had brought it."""
    real = Host.compute

    def compute(host: Host, work: effects.GiveWork) -> None:
        if isinstance(host.training, LocalSteps):
            with patch.object(host.training, "begin", lambda: None):
                real(host, work)
        else:
            real(host, work)

    with patch.object(Host, "compute", compute):
        yield


@contextmanager
def train_cells_that_come_later() -> Iterator[None]:
    """A trainer trains a subnet of cells, too, that were dealt to it after its own."""
    real = Subnets.add

    def add(subnets: Subnets, *work: Any) -> list[int]:
        subnets._cells = ()
        return real(subnets, *work)

    with patch.object(Subnets, "add", add):
        yield


ROUNDS_MUTATIONS: tuple[Callable[[], AbstractContextManager[None]], ...] = (
    keep_steps_that_others_take,
    train_cells_that_come_later,
)
