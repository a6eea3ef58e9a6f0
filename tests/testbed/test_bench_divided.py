"""The benchmark of divided optimizers: its formula and its table, and with --long a real run."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testbed.bench import KINDS, divided
from tests.testbed.bench.divided import Outcome, formula, shared_bytes, table


def test_the_formula() -> None:
    assert formula(3, None) == 24.0
    # Few devices hold all of it.
    assert formula(1, 0) == formula(2, 1) == formula(2, 5) == 24.0
    assert [formula(n, 1) for n in (3, 4, 8)] == [20.0, 18.0, 15.0]
    assert formula(4, 0) == 15.0


def test_the_table() -> None:
    good = Outcome(4, "1 copies", 18.0, (18.1, 18.9, 18.3, 18.2), (60_000_000, 58_000_000), 1.25)
    rows = table([good, Outcome(2, "whole", 24.0, why="no agent")]).splitlines()
    assert rows[2] == "| 4 | 1 copies | 18.10 to 18.90 | 18.00 | +5.0 % | 60 MB | 1.25 s |"
    assert rows[3] == "| 2 | whole | failed: no agent | | | | |"
    assert len({row.count("|") for row in rows}) == 1


def test_a_process_without_a_trainer_shares_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert shared_bytes([child.pid]) == 0.0
    finally:
        child.communicate()


@pytest.mark.long
def test_memory_follows_the_formula(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    KINDS["divided"].add_options(parser)
    args = parser.parse_args(["--nodes", "3", "--parameters", "2000000"])
    args.out = tmp_path
    assert divided.run(args) == 0
    whole, parts = json.loads((tmp_path / "divided.json").read_text())["runs"]
    assert max(whole["shared"]) < 1.01 * whole["formula"]
    assert max(parts["shared"]) < 1.05 * parts["formula"]
