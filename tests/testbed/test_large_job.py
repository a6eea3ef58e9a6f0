"""The story of `scripts/large_job`, with a state of a twentieth of the size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.testbed.large_job import LAYERS, MIB, measure, table

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.long
def test_a_job_is_joined_saved_resumed_and_survives_within_the_foretold_memory(
    tmp_path: Path,
) -> None:
    # It raises if any part of it fails.
    found = measure(tmp_path, 2, ["64"], lambda line: None)
    state = found.foretold["parts"][0]["bytes"]
    assert state > 20 * MIB
    assert state < found.file_bytes < state + MIB
    assert set(found.uses) == {"ada", "bob", "cyd", "dan"}
    for use in found.uses.values():
        assert state < use.shared < found.foretold["need_bytes"]
        assert use.together < found.foretold["need_bytes"] + 64 * MIB
    lines = table(found)
    assert f"| file of the training state | {found.file_bytes / 1e6:.1f} MB |" in lines
    assert sum(line.startswith(("| ada", "| bob", "| cyd", "| dan")) for line in lines) == 4


@pytest.mark.long
def test_a_frozen_base_is_joined_saved_and_resumed(tmp_path: Path) -> None:
    found = measure(tmp_path, 8, ["2", "frozen", "0"], lambda line: None, job=LAYERS)
    assert found.foretold["parts"][0]["bytes"] < found.file_bytes
    copied = [figure for name, figure in found.rows if name.startswith("pull of")]
    assert len(copied) == 2
    for figure in copied:
        assert float(figure.split()[0]) < 10  # MB: the base, 134 MB, is on both devices
