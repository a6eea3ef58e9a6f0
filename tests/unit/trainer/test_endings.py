"""How a script's process ends when training is over."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
from edgeagent.trainer import endings

class Counted:
    def __init__(self):
        self.me = self  # in a cycle: only a sweep at the interpreter's end finds it

    def __del__(self):
        os.write(1, b"swept")

class Meta(type):  # as nanobind makes one for the classes that it counts
    __module__ = sys.argv[1]

counted = Counted()
endings.end_fast()
endings.end_fast()
"""


@pytest.mark.parametrize(("module", "output"), [("nanobind", b"swept"), ("torch", b"")])
def test_what_counts_leaks_is_swept_at_the_end(module: str, output: bytes) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, module], capture_output=True, timeout=60, check=True
    )
    assert ended.stdout == output
