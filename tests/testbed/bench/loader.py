"""How fast slow samples come: a Trainer's loader beside torch's DataLoader, with as many workers.

Each run is a process of its own that trains a small model alone on this device (`loader_loop`). A
sample is a sleep, so that the processors are free for any number of workers. The bound is what so
many sleeping workers can deliver. Only what comes after `WARM` iterations counts: the start of the
processes, and the samples that they fetched ahead meanwhile, are left out.

Both contenders take turns, with the same model, the same samples and the same micro-batches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from edgeagent.launch import package_environment
from tests.testbed.bench.ground import Busy, say, turns
from tests.testbed.bench.report import Run, write

HELP = "loader: slow samples, fetched by workers of the trainer's loader and of torch's"
LOOPS = {"edgeagent": "trainer", "torch DataLoader": "torch"}
WAIT_S = 300.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 4], metavar="N")
    parser.add_argument("--sample-ms", type=float, default=5.0, metavar="MS")
    parser.add_argument("--iterations", type=int, default=32, metavar="N", help="of 128 samples")
    parser.add_argument("--repeat", type=int, default=3, metavar="N")


def run(args: argparse.Namespace) -> int:
    """Measure, write and print; return the exit status."""
    runs: list[Run] = []
    rates: dict[tuple[str, str], list[float]] = {}
    bounds: dict[str, float] = {}
    before = Busy.now()
    for repeat in range(args.repeat):
        for workers in args.workers:
            case = f"{args.sample_ms:g} ms a sample, {workers} workers"
            for name in turns(list(LOOPS), repeat):
                found = _measured(args, LOOPS[name], workers)
                if isinstance(found, str):
                    runs.append(Run(case, name, None, found))
                    continue
                samples, seconds = found
                bounds[case] = samples * args.sample_ms / 1000 / max(1, workers)
                runs.append(Run(case, name, seconds))
                rates.setdefault((case, name), []).append(samples / seconds)
                say(f"{case}, {name}: {samples / seconds:.0f} samples/s")
    busy = Busy.now().since(before)
    about = {
        "sample_ms": args.sample_ms,
        "iterations": args.iterations,
        "processors": os.cpu_count(),
        "busy": round(busy, 3),
        "samples_per_s": {f"{case}, {name}": found for (case, name), found in rates.items()},
    }
    write(args.out, "loader", about, runs, bounds)
    print((args.out / "loader.md").read_text())
    for (case, name), several in rates.items():
        middle = statistics.median(several)
        around = f"{min(several):.0f} to {max(several):.0f}"
        print(f"{case}: {name} {middle:.0f} samples/s ({around})")
    return 0 if all(r.seconds is not None for r in runs if r.contender == "edgeagent") else 1


def _measured(args: argparse.Namespace, loop: str, workers: int) -> tuple[int, float] | str:
    """Return samples and seconds of one run, or why there are none."""
    command = [sys.executable, "-P", "-m", "tests.testbed.bench.loader_loop", "--loop", loop]
    command += ["--workers", str(workers), "--sample-ms", str(args.sample_ms)]
    command += ["--iterations", str(args.iterations)]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("EDGEAGENT_")}
    with tempfile.TemporaryDirectory() as folder:
        settings = {"EDGEAGENT_HOME": folder, "EDGEAGENT_NO_MDNS": "1", "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(
            command,
            env=package_environment({**kept, **settings}),
            cwd=Path(__file__).resolve().parents[3],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
    if ended.returncode:
        return (ended.stderr.strip().splitlines() or ["no reason given"])[-1]
    found = json.loads(ended.stdout.strip().splitlines()[-1])
    return int(found["samples"]), float(found["seconds"])
