"""All-reduce of one payload over the same links: ours, the classic topologies, others' programs.

Ours and the trees are real agents that train with synthetic gradients and next to no computation;
the trees are imposed by a custom policy, so that only the tree differs. The ring is our own small
program (`ring.py`); gloo and hivemind run as their manuals say. All pairs may talk, each direction
at a rate that was drawn, every node within its limit.

Law: contenders take turns, each with fresh processes on one network that was calibrated first. A
round lasts from when the last member is ready until the last one has the sum. For agents that is
the time between two steps less the computation of the slowest, so the update counts, too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.scenarios.processes import kill_session
from tests.testbed.bench import imposed_tree, topologies
from tests.testbed.bench.report import Line, Run, table, write
from tests.testbed.calibrate import calibrate
from tests.testbed.lab import Lab
from tests.testbed.network import MBIT, Network
from tests.testbed.shaping import DEVICE

HELP = "all-reduce: ours, star, k-ary tree, spanning tree, ring, gloo, hivemind"
HERE = Path(__file__).resolve().parent
OURS, STAR, WIDEST = "edgeagent", "star", "maximum spanning tree"
RING, GLOO, HIVEMIND = "ring", "gloo (torch.distributed)", "hivemind"
SEARCH = "hivemind, group search included"
PORT = 29500
SETTLE_S = 8.0  # until links are measured and the policy follows
TOGETHER_S = 120.0
ROUNDS_S = 240.0  # what all rounds of one run may take
WARM_ROUNDS = 2  # not counted: connections find their rate
MB = 1_000_000
Event = dict[str, Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what the command line takes."""
    parser.add_argument("--nodes", type=int, default=9, help="devices, 2 to 12 (9)")
    parser.add_argument("--seed", type=int, default=1, help="of the network's rates (1)")
    parser.add_argument("--mb", type=float, default=4.0, help="payload of each node, MB (4)")
    parser.add_argument("--mbit", type=float, nargs=2, default=(20.0, 155.0), help="rates from, to")
    parser.add_argument("--limit", type=float, default=300.0, help="of a node each way, Mbit/s")
    parser.add_argument("--delay-ms", type=float, default=30.0, help="of each link, one way (30)")
    parser.add_argument("--arity", type=int, default=2, help="of the balanced tree (2)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each contender (3)")
    parser.add_argument("--rounds", type=int, default=10, help="rounds that count in a run (10)")
    parser.add_argument("--only", default="", metavar="NAMES", help="names that begin so, by comma")
    parser.add_argument(
        "--hivemind-python", default=sys.executable, metavar="PATH", help="a Python with hivemind"
    )


class Bench:
    """All contenders on one network."""

    def __init__(self, args: argparse.Namespace, plan: topologies.Plan, net: Network) -> None:
        self.args = args
        self.plan = plan
        self.net = net
        self.case = f"{len(plan.nodes)} nodes, {args.mb:g} MB"

    # --- agents -------------------------------------------------------------------------------

    def agents(self, name: str, tree: topologies.Tree | None, folder: Path) -> list[Run]:
        """Return the run of real agents, along `tree` if there is one."""
        order = [[n] for n in self.plan.nodes[:1]] + [list(self.plan.nodes[1:])]
        job = ("--gradient-mb", str(self.args.mb), "--state-mb", "0.1", "--compute-ms", "0")
        options = ["--global-batch", str(len(self.plan.nodes)), "--micro-batch", "1"]
        with contextlib.ExitStack() as stack:
            if tree is not None:
                order = topologies.levels(tree)
                options += ["--policy", imposed_tree.NAME]
                stack.enter_context(imposed(tree, folder))
            lab = stack.enter_context(Lab(self.net, folder, job))
            for level in order:
                for node in level:
                    parent = (tree or {}).get(node, "")
                    near = ["--neighbours", parent] if parent else []
                    lab.start(node, *options, *near)
                for node in level:
                    lab.agents[node].wait("joined", TOGETHER_S)
            lab.wait_together(*self.plan.nodes)
            if tree is not None:
                parents = {node: parent for node, parent in tree.items() if parent}
                lab.wait(name, lambda: lab.status(self.plan.nodes[0])["tree"]["parents"] == parents)
            time.sleep(SETTLE_S if tree is None else SETTLE_S / 4)
            seconds = agent_rounds(lab, self.args.rounds)
        return [Run(self.case, name, statistics.median(seconds))]

    # --- other programs -----------------------------------------------------------------------

    def ring(self, folder: Path) -> list[Run]:
        """Return the run of our ring."""
        order = topologies.ring_order(self.plan)
        rounds = self.workers(HERE / "ring.py", sys.executable, order, folder)
        return [Run(self.case, RING, median_round(rounds, "began"))]

    def gloo(self, folder: Path) -> list[Run]:
        """Return the run of gloo."""
        rounds = self.workers(HERE / "gloo.py", sys.executable, self.plan.nodes, folder)
        return [Run(self.case, GLOO, median_round(rounds, "began"))]

    def hivemind(self, folder: Path) -> list[Run]:
        """Return the run of hivemind's averager, without and with its search for the group."""
        script, python = HERE / "hivemind_averager.py", self.args.hivemind_python
        sums = {
            a: sum(self.plan.rates[a, b] for b in self.plan.nodes if b != a)
            for a in self.plan.nodes
        }
        more = {
            node: ["--mbit", str(min(self.plan.limit, total) / MBIT)]
            for node, total in sums.items()
        }
        rounds = self.workers(script, python, self.plan.nodes, folder, more, may_fail=True)
        right = [several for several in rounds if all(event["right"] for event in several)]
        assert right, f"none of {len(rounds)} rounds gave all members the mean of all"
        lacking = len(rounds) - len(right)
        why = f"{lacking} of {len(rounds)} rounds failed" if lacking else ""
        return [
            Run(self.case, HIVEMIND, median_round(right, "began"), why),
            Run(self.case, SEARCH, median_round(right, "asked"), why),
        ]

    def workers(
        self,
        script: Path,
        python: str,
        order: Sequence[str],
        folder: Path,
        more: Mapping[str, Sequence[str]] | None = None,
        may_fail: bool = False,
    ) -> list[list[Event]]:
        """Run `script` on all nodes to its end; return what each round was for every member.

        order: nodes by rank. more: other options by node. may_fail: a wrong sum is no reason to
        end. Raises AssertionError with the reason.
        """
        addresses = ",".join(self.net.address(node) for node in order)
        count = self.args.rounds + WARM_ROUNDS
        started: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for rank, node in enumerate(order):
                command = [python, "-P", str(script), "--rank", str(rank), "--port", str(PORT)]
                command += ["--addresses", addresses, "--mb", str(self.args.mb)]
                command += ["--rounds", str(count), "--out", str(folder / f"{node}.rounds")]
                command += (more or {}).get(node, [])
                with (folder / f"{node}.log").open("wb") as log:
                    started[node] = self.net.popen(
                        node,
                        command,
                        cwd=folder,
                        env=worker_environment(),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
            wait_all(started, folder)
        finally:
            for process in started.values():
                kill_session(process.pid)
                process.wait()
        lines = [(folder / f"{node}.rounds").read_text().splitlines() for node in order]
        rounds = [[json.loads(line) for line in several] for several in zip(*lines, strict=True)]
        assert len(rounds) == count, f"{len(rounds)} of {count} rounds"
        right = all(event["right"] for several in rounds for event in several)
        assert right or may_fail, "the sum is wrong"
        return rounds[WARM_ROUNDS:]


def worker_environment() -> dict[str, str]:
    """Return the environment of another program's member."""
    settings = {"GLOO_SOCKET_IFNAME": DEVICE, "OMP_NUM_THREADS": "1"}
    # Otherwise hivemind's shared memory has names, and those outlive a member that is killed.
    settings["HIVEMIND_MEMORY_SHARING_STRATEGY"] = "file_descriptor"
    return {**os.environ, **settings}


def wait_all(started: Mapping[str, subprocess.Popen[bytes]], folder: Path) -> None:
    """Wait until all have ended well; raise AssertionError with the reason at the first that has
    not, or after `ROUNDS_S`."""
    deadline = time.monotonic() + ROUNDS_S
    left = dict(started)
    while left:
        for node, process in list(left.items()):
            status = process.poll()
            if status is not None:
                del left[node]
                assert status == 0, last_line(folder / f"{node}.log", f"exit status {status}")
        assert time.monotonic() < deadline, f"not done within {ROUNDS_S:g} s"
        time.sleep(0.05)


def last_line(log: Path, otherwise: str) -> str:
    """Return the last line that a program printed."""
    lines = log.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), otherwise)


def median_round(rounds: Sequence[Sequence[Event]], start: str) -> float:
    """Return the median time from the last member's `start` to the last one's end, in seconds."""
    times = [
        max(float(e["ended"]) for e in several) - max(float(e[start]) for e in several)
        for several in rounds
    ]
    return statistics.median(times)


def agent_rounds(lab: Lab, count: int) -> list[float]:
    """Return the next `count` rounds of all agents, in seconds."""
    names = list(lab.agents)
    first = max(agent.iteration for agent in lab.agents.values()) + WARM_ROUNDS
    for agent in lab.agents.values():
        agent.wait_until("its rounds", partial(_done, agent, first + count), ROUNDS_S)
    steps = {n: {e["iteration"]: e for e in lab.agents[n].all("step")} for n in names}
    return rounds_of(steps, range(first + 1, first + count + 1))


def _done(agent: Any, iteration: int) -> bool:
    return bool(agent.iteration >= iteration)


def rounds_of(steps: Mapping[str, Mapping[int, Event]], which: Sequence[int]) -> list[float]:
    """Return what these iterations took beside computation, in seconds, from `step` events by
    member and iteration."""
    ends = {k: max(mine[k]["t"] for mine in steps.values()) for k in (which[0] - 1, *which)}
    slowest = {k: max(mine[k]["compute_s"] for mine in steps.values()) for k in which}
    return [ends[k] - ends[k - 1] - slowest[k] for k in which]


@contextlib.contextmanager
def imposed(tree: topologies.Tree, folder: Path) -> Iterator[None]:
    """Let agents that are started meanwhile find the policy that imposes `tree`.

    A package of our own lies in a folder of the module path: a copy of the module, and what says
    that it registers a policy.
    """
    package = folder / "package"
    about = package / "edgeagent_bench-0.dist-info"
    about.mkdir(parents=True)
    shutil.copy(imposed_tree.__file__, package / "edgeagent_bench.py")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: edgeagent-bench\nVersion: 0\n")
    entry = f"[edgeagent.policies]\n{imposed_tree.NAME} = edgeagent_bench:imposed\n"
    (about / "entry_points.txt").write_text(entry)
    named = folder / "tree.json"
    named.write_text(json.dumps(tree))
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", imposed_tree.VARIABLE)}
    path = before["PYTHONPATH"]
    os.environ["PYTHONPATH"] = str(package) + (os.pathsep + path if path else "")
    os.environ[imposed_tree.VARIABLE] = str(named)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def say(text: str) -> None:
    """Tell how far it is."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Busy:
    """How long the processors of this machine had worked, and not, in ticks."""

    working: float
    idle: float

    @classmethod
    def now(cls) -> Busy:
        """Return it as the kernel says."""
        first = Path("/proc/stat").read_text().split("\n", 1)[0]
        ticks = [float(word) for word in first.split()[1:9]]
        idle = ticks[3] + ticks[4]
        return cls(sum(ticks) - idle, idle)

    def since(self, before: Busy) -> float:
        """Return the part of the time that was worked, 0 to 1."""
        working, idle = self.working - before.working, self.idle - before.idle
        return working / ((working + idle) or 1.0)


def contenders(bench: Bench) -> dict[str, Any]:
    """Return what runs each contender, by its name."""
    plan, arity = bench.plan, bench.args.arity
    trees: dict[str, topologies.Tree | None] = {
        OURS: None,
        STAR: topologies.star(plan),
        f"balanced {arity}-ary tree": topologies.balanced(plan.nodes, arity),
        WIDEST: topologies.widest(plan),
    }
    runs: dict[str, Any] = {name: partial(bench.agents, name, t) for name, t in trees.items()}
    return {**runs, RING: bench.ring, GLOO: bench.gloo, HIVEMIND: bench.hivemind}


def measure(bench: Bench, runs: list[Run], busy: dict[str, list[float]]) -> None:
    """Let the contenders take turns; add to `runs`, and to `busy` the part of the processors' time
    that was worked."""
    wanted = tuple(n for n in bench.args.only.split(",") if n)
    for repeat in range(bench.args.repeats):
        for name, contender in contenders(bench).items():
            if wanted and not name.startswith(wanted):
                continue
            before = Busy.now()
            with tempfile.TemporaryDirectory() as folder:
                try:
                    found = contender(Path(folder))
                except (AssertionError, OSError, ValueError) as error:
                    why = " ".join(str(error).split("\n", 1)[0].split())
                    found = [Run(bench.case, name, None, why or type(error).__name__)]
            runs += found
            busy.setdefault(name, []).append(round(Busy.now().since(before), 2))
            for run in found:
                took = f"{run.seconds:.3f} s" if run.seconds is not None else f"failed: {run.why}"
                say(f"{repeat + 1} of {bench.args.repeats}: {run.contender}: {took}")


def run(args: argparse.Namespace) -> int:
    """Measure, write, print; return 0 if ours ran."""
    plan = topologies.draw(
        args.nodes, args.seed, (args.mbit[0], args.mbit[1]), args.limit, args.delay_ms / 1e3
    )
    bounds = topologies.lower_bounds(plan, args.mb * MB)
    runs: list[Run] = []
    busy: dict[str, list[float]] = {}
    with plan.network() as net:
        calibrated = calibrate(net)
        say(f"{len(calibrated)} links are as described")
        bench = Bench(args, plan, net)
        try:
            measure(bench, runs, busy)
        except (KeyboardInterrupt, SystemExit):
            results(bench, runs, busy, bounds)
            raise
    found = results(bench, runs, busy, bounds)
    if not found:
        sys.exit(f"bench: nobody is called {args.only!r}")
    return 0 if all(line.runs for line in found if line.contender == OURS) else 1


def results(
    bench: Bench,
    runs: Sequence[Run],
    busy: Mapping[str, Sequence[float]],
    bounds: Mapping[str, float],
) -> list[Line]:
    """Write and print what was measured, all of it or what there is of an interrupted run."""
    plan, args = bench.plan, bench.args
    if not runs:
        return []
    about = {
        "links_mbit_s": {f"{a} > {b}": rate / MBIT for (a, b), rate in plan.rates.items()},
        "limit_mbit_s": args.limit,
        "delay_ms": args.delay_ms,
        "payload_mb": args.mb,
        "rounds_in_a_run": args.rounds,
        "star": topologies.star(plan),
        "maximum_spanning_tree": topologies.widest(plan),
        "ring": topologies.ring_order(plan),
        "bounds_s": dict(bounds),
        "processors_worked": {name: list(parts) for name, parts in busy.items()},
    }
    case = {bench.case: max(bounds.values())}
    found = write(args.out, "all-reduce", about, runs, case)
    print(table(found, case))
    return found
