"""All-reduce of the same bytes over the same links: ours, classic topologies, other programs.

Ours and the trees are real agents that train with synthetic gradients and hardly any computation;
the trees are imposed by a custom policy, so that only the tree differs. The ring is a small program
of our own (`ring.py`); gloo and hivemind run as their manuals say. All pairs of nodes are
connected, each direction with a rate that was drawn at random.

Rates and payload are both scaled down, so that the links are the limit for all contenders and not
this machine; the ideal times stay the same. So does the number of chunks in which agents send their
gradients, so that a chunk takes as long on its link as it does unscaled.

A chunk costs a processor nearly the same at every scale. Where that is still too much for a machine
that plays all devices, `--dilate N` plays processors N times as fast (`dilation.py`).

Contenders take turns, each with fresh processes on one network that was calibrated first. A round
lasts from the moment when the last member is ready until the last one has the sum. For agents that
is the time between two steps less the computation of the slowest, so it includes the update. The
figure of a run is the median of its rounds. Whatever goes wrong in a turn is a failed line of the
table.
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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.scenarios.processes import kill_session
from tests.testbed.bench import dilation, imposed_tree, topologies
from tests.testbed.bench.ground import Busy, calibrated, say, turns, why
from tests.testbed.bench.programs import HIVEMIND_VARIABLES
from tests.testbed.bench.report import Line, Run, table, write
from tests.testbed.congestion import allow_congestion
from tests.testbed.lab import Lab
from tests.testbed.namespaces import TestbedError, set_kernel
from tests.testbed.network import MBIT, Network
from tests.testbed.shaping import DEVICE

HELP = "all-reduce: ours, star, k-ary tree, spanning tree, ring, gloo, hivemind"
HERE = Path(__file__).resolve().parent
OURS, STAR, WIDEST = "edgeagent", "star", "maximum spanning tree"
SHAPES = ("one", "mst", "fapt", "fapt-aux", "ring")  # of `--trees`, as "ways, NAME"
ROUNDED = "edgeagent, bf16"
RING, GLOO, HIVEMIND = "ring", "gloo (torch.distributed)", "hivemind"
SEARCH = "hivemind, group search included"
USUAL_TCP = Path("/proc/sys/net/ipv4/tcp_congestion_control")
PORT = 29500
SETTLE_S = 8.0  # until links are measured and the policy has followed
ROUNDS_S = 240.0  # all rounds of one run may take so long
WARM_ROUNDS = 2  # first rounds that do not count, as connections still find their rates
MB = 1_000_000
Event = dict[str, Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
    parser.add_argument(
        "--nodes",
        type=int,
        nargs="+",
        default=[9],
        help="devices, 2 to 12; several numbers: one network after the other (9)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the network's rates (1)")
    parser.add_argument("--mb", type=float, default=8.0, help="payload of each node, MB (8)")
    parser.add_argument(
        "--mbit", type=float, nargs=2, default=(20.0, 155.0), help="rates from, to, Mbit/s (20 155)"
    )
    parser.add_argument(
        "--limit", type=float, default=0.0, help="of all a node sends or receives, Mbit/s (0: none)"
    )
    parser.add_argument(
        "--scale", type=float, default=0.25, help="payload, rates, limit times so much (0.25)"
    )
    parser.add_argument("--delay-ms", type=float, default=30.0, help="of each link, one way (30)")
    dilation.add_option(parser)
    parser.add_argument("--arity", type=int, default=2, help="of the balanced tree (2)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each contender (3)")
    parser.add_argument("--rounds", type=int, default=10, help="rounds that count in a run (10)")
    parser.add_argument(
        "--together-s", type=float, default=120.0, help="agents may take so long to join (120)"
    )
    parser.add_argument(
        "--settle-s",
        type=float,
        default=SETTLE_S,
        help=f"from the last join to the rounds that count ({SETTLE_S:g})",
    )
    parser.add_argument(
        "--congestion",
        default="",
        metavar="NAMES",
        help="edgeagent once with each of these algorithms of TCP, by comma, such as cubic,bbr",
    )
    parser.add_argument(
        "--compute-ms",
        default="0",
        metavar="NUMBERS",
        help="that a step of edgeagent computes; if several, by comma, once with each (0)",
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="NAMES",
        help="contenders whose names begin so, by comma; =NAME: the one that is called so",
    )
    parser.add_argument(
        "--hivemind-python", default=sys.executable, metavar="PATH", help="a Python with hivemind"
    )


class Bench:
    """All contenders on one network."""

    def __init__(
        self,
        args: argparse.Namespace,
        plan: topologies.Plan,
        net: Network,
        bounds: Mapping[str, float],
    ) -> None:
        """`plan`: not dilated. `net`: dilated. `bounds`: the least time of a round in seconds, not
        dilated, by what it follows from."""
        self.args = args
        self.bounds = bounds
        self.plan = plan
        self.net = net
        self.usual_tcp = USUAL_TCP.read_text().strip()
        self.payload_mb = args.mb * args.scale
        self.case = f"{len(plan.nodes)} nodes, {self.payload_mb:g} MB"
        self.worked: dict[str, list[float]] = {}  # contender -> parts of the processors' time used
        self.trees: list[dict[str, str]] = []  # trees that edgeagent chose

    # --- agents -------------------------------------------------------------------------------

    def agents(
        self,
        name: str,
        tree: topologies.Tree | None,
        folder: Path,
        shape: str = "packed",
        wire: str = "full",
        tcp: str = "",
        compute_ms: float = 0.0,
    ) -> list[Run]:
        """Return the run of real agents, along `tree` if there is one, else with `--trees`, whose
        gradients travel as `wire` says, with this algorithm of `tcp` ("": the machine's)."""
        self._use(tcp)
        order = [[n] for n in self.plan.nodes[:1]] + [list(self.plan.nodes[1:])]
        sizes = ("--gradient-mb", str(self.payload_mb), "--chunks-of-mb", str(self.args.mb))
        dilate = self.args.dilate
        job = (*sizes, "--state-mb", "0.1", "--compute-ms", str(compute_ms * dilate))
        options = ["--global-batch", str(len(self.plan.nodes)), "--micro-batch", "1"]
        options += ["--trees", shape, "--wire", wire]
        with contextlib.ExitStack() as stack:
            if tree is not None:
                order = topologies.levels(tree)
                options += ["--policy", imposed_tree.NAME]
                stack.enter_context(imposed(tree, folder))
            lab = stack.enter_context(Lab(self.net, folder, job))
            for level in order:
                for node in level:
                    parent = (tree or {}).get(node, "")
                    more = ["--neighbours", parent] if parent else []
                    if tree is None and level is order[0]:
                        more = ["--wait-for", str(len(self.plan.nodes))]
                    lab.start(node, *options, *more, **dilation.started(dilate))
                for node in level:
                    lab.agents[node].wait("joined", self.args.together_s * dilate)
            lab.wait_together(*self.plan.nodes, seconds=self.args.together_s * dilate)
            if tree is not None:
                parents = {node: parent for node, parent in tree.items() if parent}
                lab.wait(name, lambda: self._parents(lab) == parents)
            time.sleep(dilate * (self.args.settle_s if tree is None else SETTLE_S / 4))
            before = Busy.now()
            seconds = [took / dilate for took in agent_rounds(lab, self.args.rounds, dilate)]
            self._was_busy(name, before)
            if tree is None:
                self.trees.append(self._parents(lab))
            else:
                assert self._parents(lab) == parents, "the tree changed on the way"
        return [Run(self.case, name, statistics.median(seconds))]

    def _use(self, tcp: str = "") -> None:
        """Have new connections of all nodes use this algorithm of TCP ("": the machine's)."""
        for node in self.plan.nodes:
            used = {"ipv4/tcp_congestion_control": tcp or self.usual_tcp}
            set_kernel(self.net.namespace(node), used)

    def _parents(self, lab: Lab) -> dict[str, str]:
        return lab.status(self.plan.nodes[0])["tree"]["parents"]

    def _was_busy(self, name: str, before: Busy) -> None:
        self.worked.setdefault(name, []).append(round(Busy.now().since(before), 2))

    # --- other programs -----------------------------------------------------------------------

    def ring(self, folder: Path) -> list[Run]:
        """Return the run of our ring."""
        order = topologies.ring_order(self.plan)
        rounds = self.workers(RING, HERE / "ring.py", sys.executable, order, folder)
        return [Run(self.case, RING, self._median(exact(rounds)))]

    def gloo(self, folder: Path) -> list[Run]:
        """Return the run of gloo."""
        rounds = self.workers(GLOO, HERE / "gloo.py", sys.executable, self.plan.nodes, folder)
        return [Run(self.case, GLOO, self._median(exact(rounds)))]

    def hivemind(self, folder: Path) -> list[Run]:
        """Return the run of hivemind's averager, without and with its search for the group."""
        script, python = HERE / "hivemind_averager.py", self.args.hivemind_python
        sums = {
            a: sum(self.plan.rates[a, b] for b in self.plan.nodes if b != a)
            for a in self.plan.nodes
        }
        more = {
            node: ["--mbit", str(min(self.plan.limit, total) / MBIT / self.args.dilate)]
            for node, total in sums.items()
        }
        rounds = self.workers(HIVEMIND, script, python, self.plan.nodes, folder, more)
        right = [several for several in rounds if all(event["right"] for event in several)]
        assert right, f"none of {len(rounds)} rounds gave all members the mean of all"
        lacking = len(rounds) - len(right)
        note = f"{lacking} of {len(rounds)} rounds failed" if lacking else ""
        return [
            Run(self.case, HIVEMIND, self._median(right), note),
            Run(self.case, SEARCH, self._median(right, "asked"), note),
        ]

    def _median(self, rounds: list[list[Event]], start: str = "began") -> float:
        return median_round(rounds, start) / float(self.args.dilate)

    def workers(
        self,
        name: str,
        script: Path,
        python: str,
        order: Sequence[str],
        folder: Path,
        more: Mapping[str, Sequence[str]] | None = None,
    ) -> list[list[Event]]:
        """Run `script` on all nodes to its end; return the events of each round, one per member.

        order: nodes by rank. more: further options by node. Raises AssertionError with the reason
        if that fails.
        """
        self._use()
        addresses = ",".join(self.net.address(node) for node in order)
        count = self.args.rounds + WARM_ROUNDS
        started: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for rank, node in enumerate(order):
                command = [python, "-P", str(script), "--rank", str(rank), "--port", str(PORT)]
                command += ["--addresses", addresses, "--mb", str(self.payload_mb)]
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
            before = wait_all(started, folder, ROUNDS_S * self.args.dilate)
            self._was_busy(name, before)
        finally:
            for process in started.values():
                kill_session(process.pid)
                process.wait()
        lines = [(folder / f"{node}.rounds").read_text().splitlines() for node in order]
        rounds = [[json.loads(line) for line in several] for several in zip(*lines, strict=True)]
        assert len(rounds) == count, f"{len(rounds)} of {count} rounds"
        return rounds[WARM_ROUNDS:]


def exact(rounds: list[list[Event]]) -> list[list[Event]]:
    """Return the rounds. Raises AssertionError if a member got a wrong sum in one of them."""
    assert all(event["right"] for several in rounds for event in several), "the sum is wrong"
    return rounds


def worker_environment() -> dict[str, str]:
    """Return the environment for a member of another program."""
    settings = {"GLOO_SOCKET_IFNAME": DEVICE, "OMP_NUM_THREADS": "1"}
    return {**os.environ, **settings, **HIVEMIND_VARIABLES}


def wait_all(
    started: Mapping[str, subprocess.Popen[bytes]], folder: Path, seconds: float = ROUNDS_S
) -> Busy:
    """Wait until all processes have ended well; return how busy the machine had been by the start
    of the rounds that count. Raises AssertionError with the reason if one fails, or after so many
    `seconds`."""
    deadline = time.monotonic() + seconds
    left = dict(started)
    warm: Busy | None = None
    while left:
        if warm is None and all(_rounds_done(folder, node) >= WARM_ROUNDS for node in started):
            warm = Busy.now()
        for node, process in list(left.items()):
            status = process.poll()
            if status is not None:
                del left[node]
                assert status == 0, last_line(folder / f"{node}.log", f"exit status {status}")
        assert time.monotonic() < deadline, f"not done within {seconds:g} s"
        time.sleep(0.05)
    return warm or Busy.now()


def _rounds_done(folder: Path, node: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        return (folder / f"{node}.rounds").read_bytes().count(b"\n")
    return 0


def last_line(log: Path, otherwise: str) -> str:
    """Return the last line that a program printed, `otherwise` if it printed nothing."""
    lines = log.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), otherwise)


def median_round(rounds: Sequence[Sequence[Event]], start: str) -> float:
    """Return the median time from the last member's `start` to the last one's end, in seconds."""
    times = [
        max(float(e["ended"]) for e in several) - max(float(e[start]) for e in several)
        for several in rounds
    ]
    return statistics.median(times)


def agent_rounds(lab: Lab, count: int, dilate: float = 1.0) -> list[float]:
    """Return the next `count` rounds of all agents, in seconds as they pass here."""
    names = list(lab.agents)
    first = max(agent.iteration for agent in lab.agents.values()) + WARM_ROUNDS
    for agent in lab.agents.values():
        agent.wait_until("its rounds", partial(_done, agent, first + count), ROUNDS_S * dilate)
    steps = {n: {e["iteration"]: e for e in lab.agents[n].all("step")} for n in names}
    return rounds_of(steps, range(first + 1, first + count + 1))


def _done(agent: Any, iteration: int) -> bool:
    return bool(agent.iteration >= iteration)


def rounds_of(steps: Mapping[str, Mapping[int, Event]], which: Sequence[int]) -> list[float]:
    """Return how many seconds these iterations took, less computation, from `step` events by member
    and iteration."""
    ends = {k: max(mine[k]["t"] for mine in steps.values()) for k in (which[0] - 1, *which)}
    slowest = {k: max(mine[k]["compute_s"] for mine in steps.values()) for k in which}
    return [ends[k] - ends[k - 1] - slowest[k] for k in which]


@contextlib.contextmanager
def imposed(tree: topologies.Tree, folder: Path) -> Iterator[None]:
    """Let agents that are started while the block runs find the policy that imposes `tree`.

    For that, a folder of the module path gets a small package: a copy of the module, and metadata
    that registers the policy.
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


def contenders(bench: Bench) -> dict[str, Any]:
    """Return contender -> the function that runs it."""
    plan, arity = bench.plan, bench.args.arity
    trees: dict[str, topologies.Tree | None] = {
        OURS: None,
        STAR: topologies.star(plan),
        f"balanced {arity}-ary tree": topologies.balanced(plan.nodes, arity),
        WIDEST: topologies.widest(plan),
    }
    runs: dict[str, Any] = {name: partial(bench.agents, name, t) for name, t in trees.items()}
    for shape in SHAPES:
        name = f"ways, {shape}"
        runs[name] = partial(bench.agents, name, None, shape=shape)
    for name, tcp, compute_ms in variants(bench.args):
        runs[name] = partial(bench.agents, name, None, tcp=tcp, compute_ms=compute_ms)
    runs[ROUNDED] = partial(bench.agents, ROUNDED, None, wire="bf16")
    return {**runs, RING: bench.ring, GLOO: bench.gloo, HIVEMIND: bench.hivemind}


def variants(args: argparse.Namespace) -> list[tuple[str, str, float]]:
    """Return the names of edgeagent's variants, with TCP's algorithm and the milliseconds that a
    step computes in each. Raises TestbedError if these are no numbers."""
    algorithms = [name for name in args.congestion.split(",") if name] or [""]
    try:
        computed = [float(number) for number in args.compute_ms.split(",")]
    except ValueError:
        raise TestbedError(f"not milliseconds, by comma: {args.compute_ms}") from None
    if algorithms == [""] and computed == [0.0]:
        return []
    return [
        (", ".join((OURS, *([tcp] if tcp else []), f"{ms:g} ms of computing")), tcp, ms)
        for tcp in algorithms
        for ms in computed
    ]


def chosen(names: Sequence[str], only: str) -> list[str]:
    """Return those of `names` that `only` wants. Raises TestbedError if there are none."""
    wanted = [part for part in only.split(",") if part]
    begins = tuple(part for part in wanted if not part.startswith("="))
    found = [n for n in names if not wanted or f"={n}" in wanted or n.startswith(begins)]
    if not found:
        raise TestbedError(f"no contender is called like that: {', '.join(names)}")
    return found


def measure(bench: Bench, runs: list[Run]) -> None:
    """Let the contenders take turns; add to `runs`."""
    all_of_them = contenders(bench)
    names = chosen(list(all_of_them), bench.args.only)
    for repeat in range(bench.args.repeats):
        for name in turns(names, repeat):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    found = all_of_them[name](Path(folder))
                except Exception as error:
                    found = [Run(bench.case, name, None, why(error))]
            runs += found
            for run in found:
                took = f"{run.seconds:.3f} s" if run.seconds is not None else f"failed: {run.why}"
                say(f"{repeat + 1} of {bench.args.repeats}: {run.contender}: {took}")


def drawn(args: argparse.Namespace, nodes: int) -> topologies.Plan:
    """Return the network of so many nodes that the command line asks for."""
    mbit = (args.mbit[0] * args.scale, args.mbit[1] * args.scale)
    return topologies.draw(nodes, args.seed, mbit, args.limit * args.scale, args.delay_ms / 1e3)


def run(args: argparse.Namespace) -> int:
    """Measure, write and print; return 0 if our own contender ran. After Ctrl+C, what was measured
    before is written, too."""
    plans = [drawn(args, nodes) for nodes in args.nodes]
    runs: list[Run] = []
    benches: list[Bench] = []
    found: list[Line] = []
    for tcp in {tcp for _, tcp, _ in variants(args) if tcp}:
        allow_congestion(tcp)
    try:
        for plan in plans:
            with plan.stretched(args.dilate).network() as net:
                found_rates = calibrated(net).items()
                rates = {pair: found.rate * args.dilate for pair, found in found_rates}
                say(f"{len(rates)} links are as described")
                true = replace(plan, rates=rates)
                bounds = topologies.lower_bounds(true, args.mb * args.scale * MB)
                benches.append(Bench(args, plan, net, bounds))
                measure(benches[-1], runs)
    finally:
        found = results(args, benches, runs)
    return 0 if all(line.runs for line in found if line.contender == OURS) else 1


def results(args: argparse.Namespace, benches: Sequence[Bench], runs: Sequence[Run]) -> list[Line]:
    """Write and print what was measured, also of an interrupted run; return the lines."""
    if not runs:
        return []
    bounds = {bench.case: max(bench.bounds.values()) for bench in benches}
    about = {"networks": {bench.case: about_network(bench) for bench in benches}}
    found = write(args.out, "all-reduce", about, runs, bounds)
    print(table(found, bounds))
    print("\nProcessors' time that was worked during the rounds:")
    for bench in benches:
        worked = {name: statistics.median(parts) for name, parts in bench.worked.items() if parts}
        print(f"{bench.case}: " + ", ".join(f"{name} {part:.0%}" for name, part in worked.items()))
    return found


def about_network(bench: Bench) -> dict[str, Any]:
    """Return what was measured and how on one network, for the JSON."""
    plan, args = bench.plan, bench.args
    return {
        "links_mbit_s": {f"{a} > {b}": rate / MBIT for (a, b), rate in plan.rates.items()},
        "limit_mbit_s": args.limit * args.scale or None,
        "delay_ms": args.delay_ms,
        "dilate": args.dilate,
        "payload_mb": bench.payload_mb,
        "scale": args.scale,
        "rounds_in_a_run": args.rounds,
        "settled_s": args.settle_s,
        "star": topologies.star(plan),
        "maximum_spanning_tree": topologies.widest(plan),
        "ring": topologies.ring_order(plan),
        "trees_of_edgeagent": bench.trees,
        "bounds_s": dict(bench.bounds),
        "processors_worked": bench.worked,
    }
