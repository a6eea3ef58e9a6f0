"""Random histories: many seeds, and those that once failed (`seeds.txt`).

`scripts/storm FIRST LAST` plays many more.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation import storm

SEEDS = range(100)
ONCE_FAILED = [int(s) for s in (Path(__file__).parent / "seeds.txt").read_text("utf-8").split()]


@pytest.mark.parametrize("seed", sorted({*SEEDS, *ONCE_FAILED}))
def test_storm(seed: int) -> None:
    storm.run(seed)
