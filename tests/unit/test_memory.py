"""What the kernel's files say of free memory, control groups and processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgeagent import memory
from edgeagent.memory import Room, room, usage

MEMINFO = "MemTotal:  2000 kB\nMemAvailable:  1000 kB\nSwapFree:  300 kB\nHugePages_Total:  0\n"


def system(folder: Path, group: str, files: dict[str, str]) -> Room:
    """Return what `room` finds where the kernel's files are these."""
    proc, groups = folder / "proc", folder / "groups"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(MEMINFO)
    (proc / "self" / "cgroup").write_text(group)
    for name, text in files.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(text)
    return room(str(proc), str(groups), str(folder))


def test_a_device_without_limits(tmp_path: Path) -> None:
    found = system(tmp_path, "0::/\n", {})
    assert (found.available, found.swap, found.group) == (1_024_000, 307_200, None)
    assert (found.free, found.with_swap) == (1_024_000, 1_331_200)
    assert found.shared_files is not None
    assert found.shared_files > 0


def test_the_tightest_group_counts_and_its_files_can_be_dropped(tmp_path: Path) -> None:
    files = {
        "memory.max": "max\n",
        "room/memory.max": "900000\n",
        "room/memory.current": "500000\n",
        "room/memory.stat": "anon 4\ninactive_file 1000\n",
        "room/agent/memory.max": "max\n",
        "room/agent/memory.current": "400000\n",
    }
    found = system(tmp_path, "0::/room/agent\n", files)
    assert found.group == found.free == found.with_swap == 401_000


def test_the_first_version_of_control_groups(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/memory.usage_in_bytes": "5\n",
        "memory/a/memory.limit_in_bytes": "700000\n",
        "memory/a/memory.usage_in_bytes": "800000\n",
        "memory/a/memory.stat": "total_inactive_file 50000\n",
    }
    found = system(tmp_path, "4:memory:/a\n3:cpu,cpuacct:/b\n0::/\n", files)
    assert found.group == 0


def test_a_system_that_says_nothing(tmp_path: Path) -> None:
    found = room(str(tmp_path), str(tmp_path), str(tmp_path / "none"))
    assert found == Room(None, 0, None, None)
    assert (found.free, found.with_swap) == (None, None)
    assert usage(proc=str(tmp_path)) is None
    assert memory.children_private(str(tmp_path)) == 0


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's /proc")
def test_this_process_and_its_children() -> None:
    assert memory.forget_peak()
    before = memory.peak()
    held = bytearray(os.urandom(1 << 20) * 64)
    after, used = memory.peak(), usage()
    assert before is not None
    assert after is not None
    assert after - before > 60 << 20
    assert used is not None
    assert used.private > len(held)
    assert usage(os.getpid()) is not None
    del held
    sleeper = [sys.executable, "-c", "x = b'1' * (32 << 20); print(flush=True); input()"]
    with subprocess.Popen(sleeper, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert memory.children_private() > 32 << 20
        child.communicate(b"\n")
