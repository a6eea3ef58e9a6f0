"""A forked process is as one that has started anew, as far as a program can see."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios import forking
from tests.scenarios.cluster import Cluster
from tests.scenarios.processes import children, living

LOOKS = """
import json, os, signal, sys
main = sys.modules["__main__"]
print(json.dumps({
    "argv": sys.argv,
    "command": sys.orig_argv,
    "path": sys.path,
    "main": [__name__, main.__file__, main.__dict__ is globals()],
    "folder": os.getcwd(),
    "settings": dict(os.environ),
    "leads its session": os.getsid(0) == os.getpid(),
    "parent": os.getppid(),
    "descriptors": sorted(n for n in os.listdir("/proc/self/fd") if int(n) < 1000)[:-1],
    "interrupt": str(signal.getsignal(signal.SIGINT)),
    "streams": [
        (s.seekable(), s.isatty(), s.encoding, s.errors, s.line_buffering)
        for s in (sys.stdin, sys.stdout, sys.stderr)
    ],
    "passed": os.read(int(sys.argv[1]), 10).decode(),
}))
"""
STARTS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, sys.argv[1]], process_group=0)
print(child.pid, flush=True)
print(child.wait(), flush=True)
time.sleep(60)
"""
# A program, and the exit status that a user of it sees.
ENDS = {
    "pass": 0,
    "import sys; sys.exit(7)": 7,
    "import sys; sys.exit('farewell')": 1,
    "raise ValueError": 1,
    "import os, signal; os.kill(os.getpid(), signal.SIGTERM)": -signal.SIGTERM,
    "import os, signal; os.kill(os.getpid(), signal.SIGINT)": -signal.SIGINT,
    "import atexit, os; atexit.register(os._exit, 9)": 9,
    "import threading, time, os; threading.Timer(0.05, os._exit, (8,)).start()": 8,
}

pytestmark = pytest.mark.skipif(
    not forking.USE.allowed, reason="all processes of this run start anew (--long)"
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Nothing but its environment is used."""
    return Cluster(tmp_path_factory.mktemp("cluster"))


def settings(cluster: Cluster) -> dict[str, str]:
    """Return an environment in which processes may be forked."""
    return cluster.environment({"OMP_NUM_THREADS": "1"})


def looks(cluster: Cluster, folder: Path, command: Sequence[str], *, forks: bool) -> dict[str, Any]:
    """Run a program that prints what it sees."""
    reading, writing = os.pipe()
    os.write(writing, b"passed on")
    try:
        with forking.starts(spare=False) if forks else nullcontext():
            process = subprocess.Popen(
                [*command, str(reading), "more"],
                cwd=folder,
                env=settings(cluster),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                pass_fds=(reading,),
                start_new_session=True,
                text=True,
            )
        printed, _ = process.communicate(timeout=60)
    finally:
        os.close(reading)
        os.close(writing)
    assert process.returncode == 0
    seen: dict[str, Any] = json.loads(printed)
    assert seen["parent"] == os.getpid()
    return {**seen, "descriptors": len(seen["descriptors"])}


@pytest.mark.parametrize("words", [["looks.py"], ["-P", "looks.py"], ["-m", "looks"]], ids=" ".join)
def test_a_program_sees_the_same(cluster: Cluster, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "looks.py").write_text(LOOKS)
    command = [sys.executable, *words]
    anew = looks(cluster, tmp_path, command, forks=False)
    forked = looks(cluster, tmp_path, command, forks=True)
    at = str(anew["argv"].index("more") - 1)  # the descriptor has another number each time
    for seen in (anew, forked):
        del seen["argv"][int(at)], seen["command"][-2]
    assert forked == anew
    assert forked["passed"] == "passed on"


@pytest.mark.parametrize("program", ENDS)
def test_its_end_is_seen_by_who_has_started_it(
    cluster: Cluster, tmp_path: Path, program: str
) -> None:
    script = tmp_path / "ends.py"
    script.write_text(f"print('begun', flush=True)\n{program}\n")
    with forking.starts(spare=True):
        ended = subprocess.run(
            [sys.executable, str(script)],
            env=settings(cluster),
            capture_output=True,
            text=True,
            check=False,
        )
    assert ended.returncode == ENDS[program], ended.stderr
    assert ended.stdout == "begun\n"
    assert ("farewell" in ended.stderr) == ("farewell" in program)
    assert ("ValueError" in ended.stderr) == ("ValueError" in program)


def test_the_process_that_it_starts_is_its_own(cluster: Cluster, tmp_path: Path) -> None:
    starts, ends = tmp_path / "starts.py", tmp_path / "ends.py"
    starts.write_text(STARTS)
    ends.write_text("import os, sys; sys.exit(5 if os.getpgrp() == os.getpid() else 6)")
    with forking.starts(spare=True):
        process = subprocess.Popen(
            [sys.executable, str(starts), str(ends)],
            env=settings(cluster),
            stdout=subprocess.PIPE,
            text=True,
        )
    try:
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 0
        assert process.stdout.readline() == "5\n"
        assert not children(process.pid)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_spare_ends_with_its_parent(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text("import time; print(flush=True); time.sleep(60)")
    with forking.starts(spare=True):
        process = subprocess.Popen(
            [sys.executable, str(script)], env=settings(cluster), stdout=subprocess.PIPE
        )
    assert process.stdout is not None
    process.stdout.readline()
    (spare,) = children(process.pid)
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 60
    while any(other.pid == spare for other in living()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    "change",
    [
        lambda settings: {**settings, "OMP_NUM_THREADS": "2"},
        lambda settings: {**settings, "PYTHONHASHSEED": "0"},
        lambda settings: {k: v for k, v in settings.items() if k != "PYTHONPATH"},
        lambda settings: {**settings, "PYTHONPATH": f"/other:{settings['PYTHONPATH']}"},
    ],
    ids=["threads", "hashes", "compiler", "modules"],
)
def test_what_is_read_at_the_start_of_a_process_needs_a_new_one(
    cluster: Cluster, change: Callable[[dict[str, str]], dict[str, str]]
) -> None:
    own = settings(cluster)
    command = [sys.executable, "-P", "-m", "edgeagent"]
    assert forking.can_fork(command, own)
    assert not forking.can_fork(command, change(own))
    for other in (["/bin/sh", "x.py"], [sys.executable, "-c", "pass"], [sys.executable]):
        assert not forking.can_fork(other, own)
