"""AdapTrain's comparison: four devices of unequal speed, one of which is busier for a while.

Real agents on loopback train `tests/scenarios/scripts/subnets.py`, a net of three linear layers on
the digits, whose steps sleep in proportion to the weights of the subnet and to how slow the device
is (1, 1.93, 3.5 and 2.85 times, the ratios of V100, T4, A2 and P4 GPUs). In the middle third of the
rounds the first device is 2.5 times as slow.

- **ours**: subnets as large as devices are fast, as measured.
- **IST**: equal subnets.
- **ideal at first**: the sizes that are right for the speeds at the beginning.
- **data parallel**: the whole model, samples by speed, a sum in every step; 20 steps are a round.

Told are seconds for all rounds, the part of the time in which devices compute (non-idle), in calm
rounds apart, when the whole model first tells the given part of the test pictures right, and at the
end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeagent.errors import EdgeAgentError
from tests.scenarios.cluster import SCRIPTS, Agent, Cluster
from tests.testbed.bench import share_policies
from tests.testbed.bench.ground import Busy, say, turns, why
from tests.testbed.bench.report import Run, write

HELP = "subnets: parts of a model as large as devices are fast, beside equal and fixed ones"
SCRIPT = str(SCRIPTS / "subnets.py")
SLOW = {"a": 1.0, "b": 1.93, "c": 3.5, "d": 2.85}
BURST = 2.5  # times as slow as usual is device a in the middle third
LOCAL_STEPS = 20
OURS, IST, IDEAL, PARALLEL = ALL = ("ours", "IST", "ideal at first", "data parallel")
SETTLE = 8  # rounds that do not count, in which devices join and are measured
WAIT_S = 900.0


@dataclass(frozen=True, slots=True)
class Found:
    """What one run showed; `reached` is None if the accuracy was never reached."""

    seconds: float
    non_idle: float
    calm: float
    reached: float | None
    accuracy: float


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
    parser.add_argument("--rounds", type=int, default=60, help="that are measured (60)")
    parser.add_argument("--base-ms", type=float, default=200.0, help="of a step, fastest device")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each contender (3)")
    parser.add_argument("--accuracy", type=float, default=0.9, help="part told right (0.9)")
    parser.add_argument(
        "--only", nargs="+", choices=ALL, default=ALL, metavar="NAME", help="contenders (all)"
    )


@contextlib.contextmanager
def policies(folder: Path) -> Iterator[None]:
    """Let agents that are started while the block runs find the policies of `share_policies`."""
    package = folder / "package"
    about = package / "edgeagent_bench_shares-0.dist-info"
    about.mkdir(parents=True)
    shutil.copy(share_policies.__file__, package / "edgeagent_bench_shares.py")
    about.joinpath("METADATA").write_text(
        "Metadata-Version: 2.1\nName: edgeagent-bench-shares\nVersion: 0\n"
    )
    entries = "".join(f"{n} = edgeagent_bench_shares:{n}\n" for n in ("equal", "fixed"))
    about.joinpath("entry_points.txt").write_text(f"[edgeagent.policies]\n{entries}")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(package), *([before] if before else [])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def measured(args: argparse.Namespace, name: str, seed: int, folder: Path) -> Found:
    """Let four agents train, and return what their events tell."""
    each = 1 if name != PARALLEL else LOCAL_STEPS
    shares = folder / "shares.json"
    # The parts with which all end together, by the exponent that follows from the net's shapes.
    shares.write_text(json.dumps({n: slow ** (-1 / _exponent()) for n, slow in SLOW.items()}))
    policy = {IST: ("--policy", "equal"), IDEAL: ("--policy", "fixed")}.get(name, ())
    options = ("--standby", "never", *policy)
    slowness = {n: folder / f"{n}.slow" for n in SLOW}
    for n, slow in SLOW.items():
        slowness[n].write_text(str(slow))
    with Cluster(folder, job=SCRIPT, options=options) as cluster:
        agents: list[Agent] = []
        for n in SLOW:
            environment = {
                "SLOW": str(slowness[n]),
                "BASE": str(args.base_ms / 1e3),
                "SEED": str(seed),
                "LOCAL_STEPS": str(LOCAL_STEPS if each == 1 else 0),
                share_policies.VARIABLE: str(shares),
            }
            end = [str(folder / "end")]
            agents.append(cluster.start(n, peers=agents[:1], script=end, environment=environment))
        first = agents[0]
        for agent in agents:
            agent.wait_members(*SLOW)
        begin = first.iteration + SETTLE * each
        third = args.rounds * each // 3
        first.wait_until("the burst", lambda: first.iteration >= begin + third, WAIT_S)
        _say_slow(slowness["a"], BURST * SLOW["a"])
        first.wait_until("its end", lambda: first.iteration >= begin + 2 * third, WAIT_S)
        _say_slow(slowness["a"], SLOW["a"])
        last = begin + args.rounds * each
        first.wait_until("the end", lambda: first.iteration >= last, WAIT_S)
        return _found(args, agents, begin, last, third)


def _found(
    args: argparse.Namespace, agents: list[Agent], begin: int, last: int, third: int
) -> Found:
    first = agents[0]
    ends = {e["iteration"]: float(e["t"]) for e in first.all("step")}
    computes = [
        {e["iteration"]: float(e["compute_s"]) for e in agent.all("step")} for agent in agents
    ]

    def busy(which: range) -> float:
        whole = sum(ends[k] - ends[k - 1] for k in which) * len(agents)
        return sum(mine.get(k, 0.0) for mine in computes for k in which) / whole

    every = range(begin + 1, last + 1)
    seen = [
        (float(e["t"]), float(e["value"])) for e in first.all("evaluated") if e["iteration"] > 0
    ]
    start = float(first.all("step")[0]["t"])
    reached = next((t - start for t, value in seen if value >= args.accuracy), None)
    return Found(
        seconds=ends[last] - ends[begin],
        non_idle=busy(every),
        calm=busy(range(begin + 1, begin + third)),
        reached=reached,
        accuracy=statistics.median(value for _, value in seen[-5:]),
    )


def _say_slow(file: Path, slow: float) -> None:
    """Replace the file in one piece, since a script may be reading it."""
    new = file.with_suffix(".new")
    new.write_text(str(slow))
    new.replace(file)


def _exponent() -> float:
    from torch import nn

    from edgeagent.trainer.subnets import fully_connected

    layers = (nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    model = nn.Sequential(*layers)
    return fully_connected(model).exponent(model)


def run(args: argparse.Namespace) -> int:
    """Measure, write and print; return 0 if all runs ended."""
    runs: list[Run] = []
    found: dict[str, list[Found]] = {}
    busy = Busy.now()
    case = f"{args.rounds} rounds"
    for seed in range(args.seeds):
        for name in turns(args.only, seed):
            with tempfile.TemporaryDirectory() as text, policies(Path(text)):
                try:
                    one = measured(args, name, seed + 1, Path(text))
                except (AssertionError, EdgeAgentError) as error:
                    runs.append(Run(case, name, None, why(error)))
                    say(f"{name} failed: {error}")
                    continue
            found.setdefault(name, []).append(one)
            runs.append(Run(case, name, one.seconds))
            say(f"{name}, seed {seed + 1}: {one}")
    settings = {k: v for k, v in vars(args).items() if isinstance(v, (int, float, str))}
    about: dict[str, Any] = {"settings": settings, "busy": Busy.now().since(busy)}
    about["found"] = {name: [str(one) for one in many] for name, many in found.items()}
    write(args.out, "subnets", about, runs, {})
    print((args.out / "subnets.md").read_text())
    for name, many in found.items():
        reached = [f"{one.reached:.0f}" if one.reached is not None else "-" for one in many]
        print(
            f"{name}: non-idle {statistics.mean(one.non_idle for one in many):.3f},"
            f" calm {statistics.mean(one.calm for one in many):.3f},"
            f" {args.accuracy:.0%} after {', '.join(reached)} s,"
            f" at the end {statistics.mean(one.accuracy for one in many):.3f}"
        )
    print(f"processors {100 * about['busy']:.0f} % busy")
    return 0 if all(r.seconds is not None for r in runs) else 1
