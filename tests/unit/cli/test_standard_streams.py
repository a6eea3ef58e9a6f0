"""Output that cannot be written, and Ctrl+C before there is anything to stop."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

from edgeagent import standard_streams
from edgeagent.launch import PACKAGE_PARENT, package_environment

EDGEAGENT = shlex.join([sys.executable, "-m", "edgeagent"])
FULL = "edgeagent: the output cannot be written: No space left on device\n"
CLOSED = "edgeagent: the output cannot be written: Bad file descriptor\n"


def shell(line: str, *, unbuffered: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a line of bash, in which $EDGEAGENT stands for the command."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("EDGEAGENT_", "PYTHONUNB"))}
    environment = package_environment({**kept, "EDGEAGENT": EDGEAGENT})
    if unbuffered:
        environment["PYTHONUNBUFFERED"] = "1"
    return subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        env=environment,
        check=False,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("unbuffered", [False, True], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("$EDGEAGENT token new > /dev/full", 1, FULL),
        ("$EDGEAGENT run --help > /dev/full", 1, FULL),
        ("$EDGEAGENT token new >&-", 1, CLOSED),
        ("$EDGEAGENT token old 2> /dev/full", 2, ""),
        ("$EDGEAGENT token old 2>&-", 2, ""),
        ("$EDGEAGENT token old <&- >&- 2>&-", 2, ""),
    ],
)
def test_output_that_cannot_be_written_is_one_line(
    line: str, status: int, said: str, unbuffered: bool
) -> None:
    ended = shell(line, unbuffered=unbuffered)
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, "", said)


@pytest.mark.parametrize("unbuffered", [False, True], ids=["buffered", "unbuffered"])
def test_a_reader_that_has_gone_is_no_error(unbuffered: bool) -> None:
    ended = shell("$EDGEAGENT token new | true; exit ${PIPESTATUS[0]}", unbuffered=unbuffered)
    # `true` may end after the token was written to the pipe.
    assert ended.returncode in (0, 141)
    assert ended.stderr == ""
    ended = shell("exec 3> >(true); sleep 0.2; $EDGEAGENT token new >&3", unbuffered=unbuffered)
    assert (ended.returncode, ended.stderr) == (141, "")


PRINTS = """
import os, sys
from edgeagent.standard_streams import open_closed_streams, outlive_output
open_closed_streams()
outlive_output("the job")
for k in range(3000):
    print("line", k, flush=k % 2 == 0)
os.system("echo a child")
print("the end", file=sys.stderr)
sys.exit(7)
"""
WARNING = "edgeagent: warning: what the job prints cannot be written any more"


@pytest.mark.parametrize("unbuffered", [False, True], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("> /dev/null", ""),
        ("> >(head -1 > /dev/null)", ""),
        ("> /dev/full", f"{WARNING} (No space left on device); the job goes on\n"),
        (">&-", f"{WARNING} (Bad file descriptor); the job goes on\n"),
    ],
)
def test_what_shall_outlive_its_output_does(where: str, said: str, unbuffered: bool) -> None:
    job = shlex.join([sys.executable, "-c", PRINTS])
    ended = shell(f"{job} {where}", unbuffered=unbuffered)
    ours = [line for line in ended.stderr.splitlines(True) if not line.startswith("sh: ")]
    assert ended.returncode == 7
    assert "".join(ours) == f"{said}the end\n"


def test_streams_that_outlive_their_places_write_as_before() -> None:
    job = shlex.join([sys.executable, "-c", PRINTS])
    ended = shell(job)
    lines = [f"line {k}" for k in range(3000)]
    assert sorted(ended.stdout.splitlines()) == sorted([*lines, "a child"])


EARLY = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
sys.argv = ["edgeagent", "token", "new"]
from edgeagent.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    "module", ["argparse", "edgeagent.command_line", "edgeagent.commands.run", "protocols"]
)
def test_ctrl_c_while_modules_are_imported_is_quiet(module: str) -> None:
    program = EARLY.replace("MODULE", repr(module))
    ended = shell(shlex.join([sys.executable, "-c", program]))
    if module == "protocols":  # which is looked for by the command itself
        assert (ended.returncode, ended.stderr) == (1, "edgeagent: stopped by Ctrl+C\n")
    else:
        assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_the_module_that_starts_the_command_imports_next_to_nothing() -> None:
    code = f"import sys; sys.path.insert(0, {PACKAGE_PARENT!r})"
    code += "; import edgeagent.cli; print(*sys.modules)"
    ended = shell(shlex.join([sys.executable, "-I", "-S", "-c", code]))
    assert "edgeagent.cli" in ended.stdout
    assert {"argparse", "typing", "signal"} & set(ended.stdout.split()) == set()


def test_a_program_that_has_no_standard_input_at_all_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(sys, "stdin")
    standard_streams.open_closed_streams()
    sys.stdin.close()
    os.fstat(0)
