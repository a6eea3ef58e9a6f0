"""What rounds of local steps gain on slow links, and what they cost in learning.

Real agents train `fashion-mnist` in namespaces, each with one thread, over links of one rate. In
turns they do so in the ordinary way, with a sum in every step, and in rounds of H local steps. Each
run lasts for the same time from the moment at which all are members. The first node writes its
state now and then; after the run these states are judged by the test pictures, so that judging
takes no time of the training. What is sent is counted by the kernel, heartbeats and TLS included.

Until all are members the first ones train with fewer, in long rounds much longer than in short
ones. So that no run has a head start, the time of a state is the samples behind it divided by the
rate (samples/s) of all devices together, as if all had been there from the beginning.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeagent.errors import EdgeAgentError
from tests.scenarios.processes import kill_session
from tests.testbed.agents import Launcher
from tests.testbed.bench.ground import Busy, calibrated, say, why
from tests.testbed.network import MBIT, Link, Network

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.scenarios.cluster import Agent

HELP = "local-steps: learning in rounds of local steps and with a sum in every step, by link rate"
JOB = "fashion-mnist"
GLOBAL_BATCH = 256
STEP_SAMPLES = 64  # of a local step, and of a micro-batch of the ordinary way
ENDLESS = 1_000_000  # iterations: runs end by time
SAVED_SAMPLES = 10_240  # about so many samples are between two states that are written
JUDGED = 12  # states of a run, at most
TOGETHER_S = 400.0  # until all are members: two rounds for each, the first with one device alone
OUTERS = ("average", "nesterov")
ORDINARY = 0


@dataclass(frozen=True, slots=True)
class Way:
    """Local steps of a round (0: the ordinary way) and the outer optimizer."""

    local_steps: int
    outer: str = ""

    @property
    def title(self) -> str:
        """A name for tables."""
        return f"H = {self.local_steps}, {self.outer}" if self.local_steps else "every step"

    @property
    def samples(self) -> int:
        """Samples of an iteration."""
        return GLOBAL_BATCH * max(1, self.local_steps)

    def options(self) -> list[str]:
        """Return the options of `edgeagent run`."""
        every = max(1, SAVED_SAMPLES // self.samples)
        found = ["--global-batch", GLOBAL_BATCH, "--micro-batch", STEP_SAMPLES]
        found += ["--steps", ENDLESS, "--seed", 1, "--save-every", every, "--keep", 0]
        if self.local_steps:
            found += ["--local-steps", self.local_steps, "--outer", self.outer]
        return [str(option) for option in found]


@dataclass(frozen=True, slots=True)
class Point:
    """A state of a run: after how many seconds and samples it was reached, and what it is worth by
    the test pictures (mean loss, accuracy from 0 to 1)."""

    seconds: float
    samples: int
    loss: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run; `bytes_per_sample` is what a device has sent, on average, for each sample that the
    cluster has trained. Without `points` it failed, for the reason `why`."""

    mbit: float
    way: Way
    samples_per_second: float = 0.0
    bytes_per_sample: float = 0.0
    busy: float = 0.0
    points: tuple[Point, ...] = ()
    why: str = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
    parser.add_argument("--data", required=True, help="folder of Fashion-MNIST's IDX files")
    parser.add_argument("--nodes", type=int, default=4, help="devices, 2 to 6 (4)")
    parser.add_argument("--mbit", type=float, nargs="+", default=[10.0, 100.0], help="(10 100)")
    parser.add_argument("--delay-ms", type=float, default=10.0, help="of each link, one way (10)")
    parser.add_argument("--seconds", type=float, default=120.0, help="of each run (120)")
    parser.add_argument(
        "--ways",
        nargs="+",
        default=["0", "10:nesterov", "50:nesterov", "200:nesterov", "50:average"],
        metavar="H:OUTER",
        help="which to compare; 0 is the ordinary way",
    )


def way_of(text: str) -> Way:
    """Return what an argument of `--ways` says."""
    steps, _, outer = text.partition(":")
    return Way(int(steps), outer or OUTERS[0]) if int(steps) else Way(ORDINARY)


def measured(args: argparse.Namespace, net: Network, mbit: float, way: Way) -> Outcome:
    """Train once; return what came of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        launcher = Launcher(net, folder, "lab", JOB)
        agents: list[Agent] = []
        options = [*way.options(), "--data", args.data, "--threads", "1"]
        try:
            for node in net.nodes:
                agents.append(launcher.start(node, options))
            first, all_of_them = agents[0], sorted(net.nodes)
            for agent in agents:
                agent.wait_until("all members", partial(_sees, agent, all_of_them), TOGETHER_S)
            begun = first.iteration
            began, busy = time.time(), Busy.now()
            before = sum(net.counters(*net.nodes).values())
            while time.time() < began + args.seconds:
                time.sleep(0.2)
                assert first.process.poll() is None, first.describe()
            steps = first.all("step")
            sent = sum(net.counters(*net.nodes).values()) - before
            worked = Busy.now().since(busy)
        finally:
            for agent in agents:
                kill_session(net.session(agent.process))
                agent.process.wait()
        ended = {e["iteration"]: float(e["t"]) - began for e in steps if e["iteration"] > begun}
        assert len(ended) > 1, "fewer than two iterations ended in this time"
        times = sorted(ended.values())
        rate = (len(times) - 1) * way.samples / (times[-1] - times[0])
        each = sent / len(net.nodes) / (len(times) * way.samples)
        points = judged(folder / net.nodes[0], way, rate, args.data)
        return Outcome(mbit, way, rate, each, worked, tuple(points))


def _sees(agent: Agent, names: list[str]) -> bool:
    return agent.members == names


def judged(home: Path, way: Way, rate: float, data: str) -> list[Point]:
    """Return what the states that a run of `rate` samples/s has left in `home` are worth."""
    import torch
    from safetensors.torch import load_file

    from edgeagent.trainer.jobs.fashion import make

    found = {
        int(match[1]): path
        for path in home.glob("model-step-*.safetensors")
        if (match := re.search(r"step-(\d+)", path.name))
    }
    numbers = sorted(found)
    thinned = max(1, -(-len(numbers) // JUDGED))
    job = make(torch.device("cpu"), data)
    pictures = torch.utils.data.DataLoader(job.data(False), 500)
    points = []
    job.model.eval()
    for number in numbers[thinned - 1 :: thinned]:
        state = load_file(found[number])
        kept = {k.removeprefix("model."): v for k, v in state.items() if k.startswith("model.")}
        job.model.load_state_dict(kept)
        total, right = 0.0, 0
        with torch.no_grad():
            for x, y in pictures:
                logits = job.model(x)
                total += float(torch.nn.functional.cross_entropy(logits, y, reduction="sum"))
                right += int((logits.argmax(dim=1) == y).sum())
        count = len(job.data(False))
        samples = number * way.samples
        points.append(Point(samples / rate, samples, total / count, right / count))
    return points


def at(points: Sequence[Point], *, seconds: float = 0.0, samples: int = 0) -> Point | None:
    """Return the last state that was there by then; None if there was none."""
    there = [p for p in points if p.seconds <= seconds or p.samples <= samples]
    return there[-1] if there else None


def table(outcomes: Sequence[Outcome], seconds: float) -> str:
    """Return the outcomes as Markdown, one table for each rate."""
    parts = []
    half = seconds / 2
    for mbit in dict.fromkeys(o.mbit for o in outcomes):
        mine = [o for o in outcomes if o.mbit == mbit]
        reached = [o.points[-1].samples for o in mine if o.points]
        common = min(reached, default=0)
        head = ["", "samples/s", "kB sent a device and 1,000 samples"]
        head += [f"loss after {common:,} samples", f"loss after {half:g} s"]
        head += [f"loss after {seconds:g} s", "accuracy then", "samples then"]
        rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        rows += [_row(o, common, seconds) for o in mine]
        parts.append(f"**{mbit:g} Mbit/s**\n\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


def _row(outcome: Outcome, common: int, seconds: float) -> str:
    points, title = outcome.points, outcome.way.title
    if not points:
        return f"| {title} | failed: {outcome.why} | | | | | | |"
    last = at(points, seconds=seconds) or points[-1]
    cells = [title, f"{outcome.samples_per_second:,.0f}", f"{outcome.bytes_per_sample:,.1f}"]
    for point in (at(points, samples=common), at(points, seconds=seconds / 2)):
        cells.append(f"{point.loss:.3f}" if point else "-")
    cells += [f"{last.loss:.3f}", f"{100 * last.accuracy:.1f} %", f"{last.samples:,}"]
    return "| " + " | ".join(cells) + " |"


def run(args: argparse.Namespace) -> int:
    """Measure, write and print; return 0 if all runs ended."""
    outcomes: list[Outcome] = []
    nodes = tuple("abcdef"[: args.nodes])
    for mbit in args.mbit:
        with Network(nodes, default=Link(mbit * MBIT, args.delay_ms / 1e3)) as net:
            calibrated(net)
            for way in map(way_of, args.ways):
                try:
                    outcome = measured(args, net, mbit, way)
                    last = outcome.points[-1]
                    told = f"loss {last.loss:.3f} after {last.samples:,} samples"
                except (AssertionError, EdgeAgentError, IndexError) as error:
                    outcome = Outcome(mbit, way, why=why(error))
                    told = f"failed: {outcome.why}"
                outcomes.append(outcome)
                say(f"{mbit:g} Mbit/s, {way.title}: {told}")
                _write(args, outcomes)
    print((args.out / "local-steps.md").read_text())
    return 0 if all(o.points for o in outcomes) else 1


def _write(args: argparse.Namespace, outcomes: Sequence[Outcome]) -> None:
    settings: dict[str, Any] = {k: v for k, v in vars(args).items() if k not in ("do", "out")}
    args.out.mkdir(parents=True, exist_ok=True)
    whole = {"settings": settings, "runs": [asdict(o) for o in outcomes]}
    (args.out / "local-steps.json").write_text(json.dumps(whole, indent=1) + "\n")
    (args.out / "local-steps.md").write_text(table(outcomes, args.seconds))
