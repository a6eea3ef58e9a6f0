"""Children that die with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from edgeagent.lifetime import dies_with_parent

LIMIT_S = 30.0
PARENT = """
import subprocess, sys, time
from edgeagent.lifetime import dies_with_parent
loop = "import time\\nwhile True: time.sleep(1)"
child = subprocess.Popen([sys.executable, "-c", loop], preexec_fn=dies_with_parent())
print(child.pid, flush=True)
time.sleep(1000)
"""


def is_alive(pid: int) -> bool:
    """Whether a process runs. One that has ended and was not yet reaped by its parent does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux kills them")
def test_a_child_dies_with_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_alive(child)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + LIMIT_S
    while is_alive(child):
        assert time.monotonic() < deadline, "it outlives its parent"
        time.sleep(0.01)


def test_other_systems_have_no_such_thing() -> None:
    assert dies_with_parent("darwin") is None
