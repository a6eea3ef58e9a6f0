"""The histories of `rare.py`, without a planted bug."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation import rare
from tests.variants import variants

# Seeds in which a leaver that led a fence had gone, and nobody told a member that was behind.
ONCE_STUCK = (190, 811)


@pytest.mark.parametrize("history", list(rare.HISTORIES.values()))
@pytest.mark.parametrize("seed", variants([*range(2), *ONCE_STUCK], long=range(50)))
def test_rare(history: Callable[[int], None], seed: int) -> None:
    history(seed)
