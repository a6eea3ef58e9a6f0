"""What TLS costs the processors for each gigabyte that a link carries, beside the same without it.

Two processes send and receive frames over one bulk connection on loopback with the agents' own
transport (`encryption_link.py`), with TLS and without, in turns. Agents cannot do without it: this
is for judging what it costs. What they do with a chunk beside (checks, sums) is not in it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from edgeagent.transport.identity import load_identity
from tests.scenarios.cluster import free_ports
from tests.testbed.bench.ground import Busy, say, turns, why
from tests.testbed.bench.report import Run, write
from tests.testbed.namespaces import TestbedError

HELP = "encryption: what TLS costs the processors for each gigabyte on a link"
SCRIPT = Path(__file__).resolve().parent / "encryption_link.py"
TLS, PLAIN = "TLS", "without"
WAYS = {TLS: (), PLAIN: ("--plain",)}
MB, GB, KIB = 10**6, 10**9, 1 << 10
RUN_S = 300.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
    parser.add_argument("--mb", type=int, default=1000, help="sent in each run, MB (1000)")
    parser.add_argument(
        "--frame-kib", type=int, nargs="+", default=[8, 64, 256], help="of a frame, KiB (8 64 256)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs of each (3)")


def run(args: argparse.Namespace) -> int:
    """Measure, write and print; return 0 if all runs ended."""
    runs: list[Run] = []
    busy = Busy.now()
    for repeat in range(args.repeats):
        for frame in args.frame_kib:
            for way in turns(tuple(WAYS), repeat):
                case = f"{frame} KiB"
                try:
                    per_gb = measured(args.mb * MB, frame * KIB, way)
                except (TestbedError, OSError, subprocess.TimeoutExpired) as error:
                    runs.append(Run(case, way, None, why(error)))
                    say(f"{case}, {way}: failed: {why(error)}")
                    continue
                for part, seconds in per_gb.items():
                    runs.append(Run(f"{case}: {part}", way, seconds))
                said = ", ".join(f"{part} {seconds:.3f} s" for part, seconds in per_gb.items())
                say(f"{case}, {way}: for each GB {said}")
    settings = {k: v for k, v in vars(args).items() if isinstance(v, int | float | str | list)}
    about: dict[str, Any] = {"settings": settings, "busy": Busy.now().since(busy)}
    write(args.out, "encryption", about, runs, {})
    print((args.out / "encryption.md").read_text())
    return 0 if all(r.seconds is not None for r in runs) else 1


def measured(total: int, frame: int, way: str) -> dict[str, float]:
    """Return what a gigabyte takes: processor seconds of the sender, of the receiver and of both,
    and seconds. Raises `TestbedError` if an end fails."""
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        load_identity(folder)
        numbers = (str(port), str(total), str(frame), folder, *WAYS[way])
        receiver = _started("receive", *numbers)
        sender = None
        try:
            assert receiver.stdout is not None
            if not receiver.stdout.readline():
                raise TestbedError("the receiver has ended")
            sender = _started("send", *numbers)
            ends = [_result(process) for process in (sender, receiver)]
        finally:
            for process in filter(None, (receiver, sender)):
                process.kill()
                process.wait()
    sent, received = (end["processor_s"] * GB / total for end in ends)
    seconds = ends[1]["seconds"] * GB / total
    return {"sender": sent, "receiver": received, "both": sent + received, "time": seconds}


def _started(role: str, *numbers: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", str(SCRIPT), role, *numbers]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _result(process: subprocess.Popen[str]) -> dict[str, float]:
    out, _ = process.communicate(timeout=RUN_S)
    if process.returncode != 0 or not out:
        raise TestbedError(f"an end failed with status {process.returncode}")
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    return found
