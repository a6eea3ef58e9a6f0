"""What edgeagent's steps cost on a GPU, beside those of torch alone and of two processes of torch.

All contenders train the same GPT-2 with the same batches on one device, without a network: alone,
or as two processes that share the GPU and talk over loopback. What is added to a step of torch
alone is therefore the way of gradients from the GPU to the processor, the sum there, and the way of
the result back. DistributedDataParallel takes the same way with gloo.

`of which` is taken from the agent's events: computing, with the way of the sums to the processor;
the sum over the network; and the rest, which is the update and the way back.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeagent.errors import UsageError
from edgeagent.launch import package_environment
from edgeagent.trainer.devices import usable_device
from tests.scenarios.cluster import Cluster, free_ports
from tests.testbed.bench.gpu_job import network
from tests.testbed.bench.ground import say, turns, why
from tests.testbed.bench.report import Run, write
from tests.testbed.namespaces import TestbedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HELP = "gpu: what a step takes on a GPU, with edgeagent and with torch"
JOB = Path(__file__).with_name("gpu_job.py")
ROOT = Path(__file__).resolve().parents[3]
START_S = 180.0
WARM = 8  # steps that are not counted: the first kernels are chosen and compiled in them
SIZES = ((4, 512), (12, 768), (24, 1024))  # layers and width


@dataclass(frozen=True, slots=True)
class Way:
    """One contender: a loop of `gpu_job.py`, how many processes, and options of `edgeagent run`."""

    loop: str
    processes: int
    options: tuple[str, ...] = ()


WAYS = {
    "torch, one process": Way("torch", 1),
    "edgeagent, one device": Way("trainer", 1),
    "edgeagent, one device, divided optimizer": Way("trainer", 1, ("--shard-optimizer",)),
    "DistributedDataParallel (gloo), two processes": Way("ddp", 2),
    "edgeagent, two devices": Way("trainer", 2),
    "edgeagent, two devices, divided optimizer": Way("trainer", 2, ("--shard-optimizer",)),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
    add = parser.add_argument
    add("--device", default="cuda", help="that all train on (cuda)")
    add("--size", type=int, nargs=2, action="append", metavar=("LAYERS", "WIDTH"), dest="sizes")
    add("--steps", type=int, default=30, metavar="N", help="that are measured (30)")
    add("--repeat", type=int, default=1, metavar="N")
    add("--threads", type=int, default=4, metavar="N", help="of each process (4)")
    add("--only", choices=WAYS, action="append", metavar="CONTENDER")


def run(args: argparse.Namespace) -> int:
    """Measure, write and print; return the exit status.

    Raises `TestbedError` if there is no such device.
    """
    try:
        usable_device(args.device)
    except UsageError as error:
        raise TestbedError(str(error)) from None
    runs: list[Run] = []
    parts: dict[str, Any] = {}
    bounds: dict[str, float] = {}
    for layers, width in args.sizes or SIZES:
        count = sum(p.numel() for p in network(layers, width).parameters())
        case = f"{count / 1e6:.0f} million parameters"
        for repeat in range(args.repeat):
            for name in turns(args.only or list(WAYS), repeat):
                try:
                    seconds, shares = _measured(args, WAYS[name], layers, width)
                except (AssertionError, UsageError, OSError, subprocess.SubprocessError) as error:
                    runs.append(Run(case, name, None, why(error)))
                    say(f"{case}, {name}: {why(error)}")
                    continue
                runs.append(Run(case, name, seconds))
                parts[f"{case}, {name}"] = shares
                text = ", ".join(f"{what} {1000 * s:.1f}" for what, s in shares.items())
                say(f"{case}, {name}: {1000 * seconds:.1f} ms ({text})")
    about = {"device": args.device, "steps": args.steps, "of which": parts}
    write(args.out, "gpu", about, runs, bounds)
    print((args.out / "gpu.md").read_text())
    return 0 if all(r.seconds is not None for r in runs if "edgeagent" in r.contender) else 1


def _measured(
    args: argparse.Namespace, way: Way, layers: int, width: int
) -> tuple[float, dict[str, float]]:
    """Return the median seconds of a step, and what they consist of as far as that is known."""
    shape = ["--device", args.device, "--layers", str(layers), "--width", str(width)]
    shape += ["--loop", way.loop]
    with tempfile.TemporaryDirectory() as folder:
        if way.loop == "trainer":
            return _by_agents(args, way, shape, Path(folder))
        return _by_torch(args, way, shape, Path(folder)), {}


def _by_torch(args: argparse.Namespace, way: Way, shape: Sequence[str], folder: Path) -> float:
    (port,) = free_ports(1)
    command = [sys.executable, str(JOB), *shape, "--steps", str(args.steps + WARM)]
    files = [folder / f"{rank}.json" for rank in range(way.processes)]
    own = ["--port", str(port)]
    commands = [
        [*command, *own, "--rank", str(k), "--times", str(file)] for k, file in enumerate(files)
    ]
    environment = {**package_environment({}), "OMP_NUM_THREADS": str(args.threads)}
    return by_processes(commands, environment, files[0], args.steps)


def by_processes(
    commands: Sequence[Sequence[str]], environment: Mapping[str, str], times: Path, count: int
) -> float:
    """Run processes of torch side by side; return the median seconds of the last `count` steps, the
    ends of which the first one writes into the file `times`. Raises `AssertionError` if one fails.
    """
    processes = [
        subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    for process in processes:
        _, said = process.communicate(timeout=START_S)
        assert not process.returncode, (said.strip().splitlines() or ["no reason given"])[-1]
    return median_step(json.loads(times.read_text()), count)


def _by_agents(
    args: argparse.Namespace, way: Way, shape: Sequence[str], folder: Path
) -> tuple[float, dict[str, float]]:
    options = (*way.options, "--device", args.device, "--threads", str(args.threads))
    settings = {"OMP_NUM_THREADS": str(args.threads)}
    names = ("alice", "bob")[: way.processes]
    with Cluster(folder, job=str(JOB), options=options) as cluster:
        about: dict[str, Any] = {"script": shape, "environment": settings}
        first = cluster.start(names[0], **about)
        first.wait("joined", START_S)
        for name in names[1:]:
            other = cluster.start(name, peers=[first], **about)
            other.wait("joined", START_S)
        first.wait_until("members", lambda: first.members == sorted(names), START_S)
        begun = first.iteration
        wanted = begun + WARM + args.steps
        first.wait_until("steps", lambda: first.iteration >= wanted, START_S)
        steps = [e for e in first.all("step") if begun + WARM <= e["iteration"] <= wanted]
    parts = {
        name: statistics.median(float(e[key]) for e in steps)
        for name, key in (("computing", "compute_s"), ("sum", "sync_s"), ("waiting", "stall_s"))
    }
    return median_step([float(e["t"]) for e in steps], args.steps), parts


def median_step(times: Sequence[float], count: int) -> float:
    """Return the median seconds of the last `count` updates."""
    return statistics.median(b - a for a, b in pairwise(times[-count - 1 :]))
