"""What rounds of local steps gain on slow links, and what they cost in learning.

Real agents train `fashion-mnist` or `text` in namespaces, each with one thread, over links of one
rate. In turns they do so in the ordinary way, with a sum in every step, and in rounds of H local
steps, with several seeds, which choose the first weights and the order of the samples. Each run
lasts for the same time from the moment at which all are members. The first node writes its state
now and then; after the run these states are judged by samples that are not trained, so that judging
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
from statistics import median
from typing import TYPE_CHECKING, Any

from edgeagent.errors import EdgeAgentError
from tests.scenarios.processes import kill_session
from tests.testbed.agents import Launcher
from tests.testbed.bench.ground import Busy, calibrated, say, turns, why
from tests.testbed.namespaces import TestbedError
from tests.testbed.network import MBIT, Link, Network

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.scenarios.cluster import Agent

HELP = "local-steps: learning in rounds of local steps and with a sum in every step, by link rate"
ENDLESS = 1_000_000  # iterations: runs end by time
ALIKE = ("seconds", "nodes", "delay_ms")  # of all runs in one file
FILE = "local-steps.json"  # all figures, in the folder for results
JUDGED = 12  # states of a run, at most
JUDGED_BATCH = 500  # samples
TOGETHER_S = 400.0  # until all are members: two rounds for each, the first with one device alone
OUTERS = ("average", "nesterov")
ORDINARY = 0


@dataclass(frozen=True, slots=True)
class Subject:
    """A built-in job: samples of a global batch, of a local step (and of a micro-batch of the
    ordinary way), and about how many are between two states that are written."""

    job: str
    global_batch: int
    step_samples: int
    saved_samples: int
    score: str  # what is told beside the loss
    saved_ordinary: int = 0  # the same for the ordinary way, if that trains many fewer; 0: as many


SUBJECTS = {
    "fashion-mnist": Subject("fashion-mnist", 256, 64, 10_240, "accuracy"),
    # Small batches: two cores train 60 to 350 samples/s, and rounds of 200 steps are to end.
    "text": Subject("text", 32, 8, 1_920, "perplexity", saved_ordinary=160),
}


@dataclass(frozen=True, slots=True)
class Way:
    """Local steps of a round (0: the ordinary way) and the outer optimizer."""

    local_steps: int
    outer: str = ""

    @property
    def title(self) -> str:
        """A name for tables."""
        return f"H = {self.local_steps}, {self.outer}" if self.local_steps else "every step"

    def samples(self, subject: Subject) -> int:
        """Return the samples of an iteration."""
        return subject.global_batch * max(1, self.local_steps)

    def options(self, subject: Subject, seed: int) -> list[str]:
        """Return the options of `edgeagent run`."""
        saved = 0 if self.local_steps else subject.saved_ordinary
        every = max(1, (saved or subject.saved_samples) // self.samples(subject))
        found = ["--global-batch", subject.global_batch, "--micro-batch", subject.step_samples]
        found += ["--steps", ENDLESS, "--seed", seed, "--save-every", every, "--keep", 0]
        if self.local_steps:
            found += ["--local-steps", self.local_steps, "--outer", self.outer]
        return [str(option) for option in found]


@dataclass(frozen=True, slots=True)
class Point:
    """A state of a run: after how many seconds and samples it was reached, and what it is worth by
    samples that are not trained: the mean loss, and accuracy (from 0 to 1) or perplexity."""

    seconds: float
    samples: int
    loss: float
    score: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run; `bytes_per_sample` is what a device has sent, on average, for each sample that the
    cluster has trained. Without `points` it failed, for the reason `why`."""

    subject: Subject
    mbit: float
    way: Way
    seed: int
    samples_per_second: float = 0.0
    bytes_per_sample: float = 0.0
    busy: float = 0.0
    points: tuple[Point, ...] = ()
    why: str = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
    parser.add_argument("--jobs", nargs="+", choices=SUBJECTS, default=list(SUBJECTS), help="(all)")
    parser.add_argument("--data", default="", help="folder of Fashion-MNIST's IDX files")
    parser.add_argument("--nodes", type=int, default=4, help="devices, 2 to 6 (4)")
    parser.add_argument("--mbit", type=float, nargs="+", default=[10.0, 100.0], help="(10 100)")
    parser.add_argument("--delay-ms", type=float, default=10.0, help="of each link, one way (10)")
    parser.add_argument("--seconds", type=float, default=90.0, help="of each run (90)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each way (3)")
    parser.add_argument(
        "--more", action="store_true", help="make only runs that the files of an earlier call lack"
    )
    parser.add_argument(
        "--ways",
        nargs="+",
        default=["0", "1:average", "10:nesterov", "50:nesterov", "50:average", "200:average"],
        metavar="H:OUTER",
        help="which to compare; 0 is the ordinary way",
    )


def way_of(text: str) -> Way:
    """Return what an argument of `--ways` says."""
    steps, _, outer = text.partition(":")
    return Way(int(steps), outer or OUTERS[0]) if int(steps) else Way(ORDINARY)


def measured(
    args: argparse.Namespace, net: Network, mbit: float, subject: Subject, way: Way, seed: int
) -> Outcome:
    """Train once; return what came of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        launcher = Launcher(net, folder, "lab", subject.job)
        agents: list[Agent] = []
        options = [*way.options(subject, seed), "--threads", "1"]
        options += ["--wait-for", str(len(net.nodes))]  # else the first one trains alone for long
        options += ["--data", args.data] if args.data and subject.job == "fashion-mnist" else []
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
        times, samples = sorted(ended.values()), way.samples(subject)
        rate = (len(times) - 1) * samples / (times[-1] - times[0])
        each = sent / len(net.nodes) / (len(times) * samples)
        points = judged(folder / net.nodes[0], subject, samples, rate, args.data)
        return Outcome(subject, mbit, way, seed, rate, each, worked, tuple(points))


def _sees(agent: Agent, names: list[str]) -> bool:
    return agent.members == names


def judged(home: Path, subject: Subject, samples: int, rate: float, data: str) -> list[Point]:
    """Return what the states are worth that a run of `rate` samples/s has left in `home`, whose
    iterations have `samples` samples."""
    import torch
    from safetensors.torch import load_file

    from edgeagent.trainer.jobs.__main__ import JOBS

    found = {
        int(match[1]): path
        for path in home.glob("model-step-*.safetensors")
        if (match := re.search(r"step-(\d+)", path.name))
    }
    numbers = sorted(found)
    thinned = max(1, -(-len(numbers) // JUDGED))
    cpu = torch.device("cpu")
    job = JOBS[subject.job](cpu, data if subject.job == "fashion-mnist" else "")
    unseen = job.data(False)
    points = []
    job.model.eval()
    for number in numbers[thinned - 1 :: thinned]:
        state = load_file(found[number])
        kept = {k.removeprefix("model."): v for k, v in state.items() if k.startswith("model.")}
        # Tied weights, such as those of text's head, are saved once.
        assert not job.model.load_state_dict(kept, strict=False).unexpected_keys
        with torch.no_grad():
            scores = job.evaluate(job.model, unseen, cpu).scores
            loss = scores.get("validation loss")
            if loss is None:
                batches = torch.utils.data.DataLoader(unseen, JUDGED_BATCH)
                losses = [(float(job.loss(job.model, batch)), len(batch[0])) for batch in batches]
                loss = sum(one * count for one, count in losses) / len(unseen)
        done = number * samples
        points.append(Point(done / rate, done, loss, scores[subject.score]))
    return points


def at(points: Sequence[Point], *, seconds: float = 0.0, samples: int = 0) -> Point | None:
    """Return the last state that was there by then; None if there was none."""
    there = [p for p in points if p.seconds <= seconds or p.samples <= samples]
    return there[-1] if there else None


def table(outcomes: Sequence[Outcome], seconds: float) -> str:
    """Return the outcomes as Markdown, one table for each job and rate; each cell is the median of
    the seeds, with the range of losses behind it."""
    parts = []
    for subject, mbit in dict.fromkeys((o.subject, o.mbit) for o in outcomes):
        mine = [o for o in outcomes if (o.subject, o.mbit) == (subject, mbit)]
        common = min((o.points[-1].samples for o in mine if o.points), default=0)
        head = ["", "samples/s", "kB sent a device and 1,000 samples"]
        head += [f"loss after {common:,} samples", f"loss after {seconds / 2:g} s"]
        head += [f"loss after {seconds:g} s", f"{subject.score} then", "samples then", "runs"]
        rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        for way in dict.fromkeys(o.way for o in mine):
            rows.append(_row(way, [o for o in mine if o.way == way], common, seconds))
        parts.append(f"**{subject.job}, {mbit:g} Mbit/s**\n\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


def _row(way: Way, all_runs: Sequence[Outcome], common: int, seconds: float) -> str:
    runs = [o for o in all_runs if o.points]
    if not runs:
        return f"| {way.title} | failed: {all_runs[0].why} | | | | | | | 0 |"
    last = [at(o.points, seconds=seconds) or o.points[-1] for o in runs]
    cells = [
        way.title,
        f"{median(o.samples_per_second for o in runs):,.0f}",
        f"{median(o.bytes_per_sample for o in runs):,.1f}",
        _losses([at(o.points, samples=common) for o in runs]),
        _losses([at(o.points, seconds=seconds / 2) for o in runs]),
        _losses(last),
    ]
    score = median(p.score for p in last)
    cells.append(f"{100 * score:.1f} %" if runs[0].subject.score == "accuracy" else f"{score:.2f}")
    cells += [f"{median(p.samples for p in last):,.0f}", str(len(runs))]
    return "| " + " | ".join(cells) + " |"


def _losses(points: Sequence[Point | None]) -> str:
    """Return the median with the range; "-" where no state was judged by then."""
    losses = [p.loss for p in points if p is not None]
    if not losses:
        return "-"
    middle = f"{median(losses):.3f}"
    return middle if len(losses) == 1 else f"{middle} ({min(losses):.3f} to {max(losses):.3f})"


def draw(outcomes: Sequence[Outcome], job: str, mbit: float, path: Path) -> None:
    """Draw the loss over seconds and over samples, a line for each run and a color for each way;
    without matplotlib there is no picture."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    mine = [o for o in outcomes if o.points and (o.subject.job, o.mbit) == (job, mbit)]
    ways = list(dict.fromkeys(o.way for o in mine))
    figure, panels = pyplot.subplots(1, 2, figsize=(11.0, 4.5), sharey=True)
    for outcome in mine:
        color = f"C{ways.index(outcome.way)}"
        label = outcome.way.title if outcome.seed == 1 else None
        losses = [p.loss for p in outcome.points]
        for panel, along in zip(panels, ("seconds", "samples"), strict=True):
            places = [getattr(p, along) for p in outcome.points]
            panel.plot(places, losses, color=color, label=label, linewidth=1, marker=".")
    for panel, along in zip(panels, ("seconds", "samples"), strict=True):
        panel.set_xlabel(along)
        panel.grid(alpha=0.3)
    panels[1].set_xscale("log")
    panels[0].set_ylabel("loss of samples that are not trained")
    panels[0].legend()
    figure.suptitle(f"{job}, {mbit:g} Mbit/s")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def run(args: argparse.Namespace) -> int:
    """Measure, write and print; return 0 if all runs ended."""
    outcomes = earlier(args.out / FILE, _settings(args)) if args.more else []
    known = {(o.mbit, o.subject.job, o.way, o.seed) for o in outcomes}
    nodes = tuple("abcdef"[: args.nodes])
    for mbit in args.mbit:
        with Network(nodes, default=Link(mbit * MBIT, args.delay_ms / 1e3)) as net:
            calibrated(net)
            for seed in range(1, args.seeds + 1):
                for job in args.jobs:
                    for way in map(way_of, turns(args.ways, seed - 1)):
                        if (mbit, job, way, seed) not in known:
                            outcomes.append(_tried(args, net, mbit, SUBJECTS[job], way, seed))
                            write(args, outcomes)
    print((args.out / "local-steps.md").read_text())
    print(f"processors {100 * median(o.busy for o in outcomes):.0f} % busy in the median run")
    return 0 if all(o.points for o in outcomes) else 1


def earlier(path: Path, settings: Mapping[str, Any]) -> list[Outcome]:
    """Return the runs of an earlier call that ended as they should; none if there is no file.

    Raises `TestbedError` if `settings` other than those of an earlier call would be put beside
    them: seconds, nodes and delay.
    """
    if not path.exists():
        return []
    found, file = [], json.loads(path.read_text())
    for name in ALIKE:
        if file["settings"][name] != settings[name]:
            raise TestbedError(
                f"the runs in {path} had --{name.replace('_', '-')} {file['settings'][name]:g}, not"
                f" {settings[name]:g}: choose that, or another --out"
            )
    for run in file["runs"]:
        points = tuple(Point(**point) for point in run.pop("points"))
        subject, way = Subject(**run.pop("subject")), Way(**run.pop("way"))
        found.append(Outcome(subject=subject, way=way, points=points, **run))
    return [outcome for outcome in found if outcome.points]


def _tried(
    args: argparse.Namespace, net: Network, mbit: float, subject: Subject, way: Way, seed: int
) -> Outcome:
    """Return what came of one run, or why nothing did."""
    try:
        outcome = measured(args, net, mbit, subject, way, seed)
        last = outcome.points[-1]
        told = f"loss {last.loss:.3f} after {last.samples:,} samples"
    except (AssertionError, EdgeAgentError, IndexError) as error:
        outcome = Outcome(subject, mbit, way, seed, why=why(error))
        told = f"failed: {outcome.why}"
    say(f"{subject.job}, {mbit:g} Mbit/s, {way.title}, seed {seed}: {told}")
    return outcome


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    return {k: v for k, v in vars(args).items() if k not in ("do", "out")}


def write(args: argparse.Namespace, outcomes: Sequence[Outcome]) -> None:
    """Write figures, tables and pictures of what was measured so far."""
    settings = _settings(args)
    args.out.mkdir(parents=True, exist_ok=True)
    whole = {"settings": settings, "runs": [asdict(o) for o in outcomes]}
    (args.out / FILE).write_text(json.dumps(whole, indent=1) + "\n")
    ordered = sorted(outcomes, key=lambda o: (o.subject.job, o.mbit, o.way.local_steps, o.seed))
    (args.out / "local-steps.md").write_text(table(ordered, args.seconds))
    for job, mbit in dict.fromkeys((o.subject.job, o.mbit) for o in outcomes):
        draw(ordered, job, mbit, args.out / f"local-steps-{job}-{mbit:g}.png")
