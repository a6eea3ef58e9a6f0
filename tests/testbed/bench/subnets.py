"""AdapTrain's comparison: four devices of unequal speed, one of which is busier for a while.

Real agents on loopback train `tests/scenarios/scripts/subnets.py`, a net of three linear layers, or
with `--residual` four perceptrons with a residual path around each, on the digits, or with
`--clothes` on the pictures of Fashion-MNIST, whose steps sleep in proportion to
the weights of the subnet and to how slow the device is (1, 1.93, 3.5 and 2.85 times, the ratios of
V100, T4, A2 and P4 GPUs). In the middle third of the rounds the first device is 2.5 times as slow.
The first one waits in its first step until the others can join, so that nobody has a head start
but one round of one device.

- **ours**: subnets as large as devices are fast, as measured.
- **IST**: equal subnets.
- **ideal at first**: the sizes that are right for the speeds at the beginning.
- **data parallel**: the whole model, samples by speed, a sum in every step; 20 steps are a round.

Told are seconds for all rounds, the part of the time in which devices compute (non-idle), in calm
rounds apart, when the whole model first tells the given parts of the test pictures right, counted
from the moment at which the first device goes on, and which part it does after given seconds and at
the end. At last one device of *ours* is
killed in the middle of a round; told is by how many usual rounds of the three that are left the
rounds from then on were longer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgeagent.errors import EdgeAgentError
from tests.scenarios.cluster import SCRIPTS, Agent, Cluster
from tests.testbed.bench import share_policies
from tests.testbed.bench.ground import Busy, say, turns, why

if TYPE_CHECKING:
    from torch import nn

    from edgeagent.trainer.subnets import Division

HELP = "subnets: parts of a model as large as devices are fast, beside equal and fixed ones"
SCRIPT = str(SCRIPTS / "subnets.py")
SLOW = {"a": 1.0, "b": 1.93, "c": 3.5, "d": 2.85}
BURST = 2.5  # times as slow as usual is device a in the middle third
LOCAL_STEPS = 20
COLORS = ("#b03030", "#4878a8", "#488858", "#808080")
OURS, IST, IDEAL, PARALLEL = ALL = ("ours", "IST", "ideal at first", "data parallel")
SETTLE = 8  # rounds that do not count for times, in which devices are measured
AFTER_KILL = 12  # rounds after the kill: the first half may be longer, the others are usual again
WAIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Found:
    """What one run showed.

    `seen`: after how many seconds the whole model told which part of the test pictures right.
    `killed`: how many usual rounds a killed device cost the others; None if none was killed.
    """

    seconds: float
    non_idle: float
    calm: float
    seen: tuple[tuple[float, float], ...]
    killed: float | None = None

    @property
    def accuracy(self) -> float:
        """The part that is told right at the end: the median of the last five."""
        return statistics.median(value for _, value in self.seen[-5:])

    def after(self, seconds: float) -> float | None:
        """Return which part is told right after so long, the median of the last five until then;
        None if the run ended before."""
        values = [value for t, value in self.seen if t <= seconds]
        ended = not self.seen or self.seen[-1][0] < seconds
        return None if ended or not values else statistics.median(values[-5:])

    def reached(self, accuracy: float) -> float | None:
        """Return after how many seconds this part was told right; None if it never was."""
        return next((t for t, value in self.seen if value >= accuracy), None)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
    parser.add_argument("--rounds", type=int, default=60, help="that are measured (60)")
    parser.add_argument("--base-ms", type=float, default=200.0, help="of a step, fastest device")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each contender (3)")
    parser.add_argument("--first-seed", type=int, default=1, help="(1)")
    parser.add_argument(
        "--parallel-rounds", type=int, help="rounds of data parallel (as many as the others)"
    )
    parser.add_argument("--clothes", action="store_true", help="learn Fashion-MNIST, not digits")
    parser.add_argument("--residual", action="store_true", help="a net with residual blocks")
    parser.add_argument("--hidden", type=int, default=128, help="neurons of a hidden layer (128)")
    parser.add_argument("--width", type=int, default=32, help="of the residual path (32)")
    parser.add_argument("--rate", type=float, default=3e-3, help="AdamW's (0.003)")
    parser.add_argument(
        "--accuracy", type=float, nargs="+", default=[0.9], help="parts told right (0.9)"
    )
    parser.add_argument(
        "--at", type=float, nargs="+", default=[], metavar="SECONDS", help="tell how much is right"
    )
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
    rounds = args.parallel_rounds if name == PARALLEL and args.parallel_rounds else args.rounds
    shares = folder / "shares.json"
    shares.write_text(json.dumps(right_parts(*_net(args))))
    policy = {IST: ("--policy", "equal"), IDEAL: ("--policy", "fixed")}.get(name, ())
    options = ("--standby", "never", *policy)
    slowness, go = {n: folder / f"{n}.slow" for n in SLOW}, folder / "go"
    states = folder / "states"
    states.mkdir()
    for n, slow in SLOW.items():
        slowness[n].write_text(str(slow))

    def start(cluster: Cluster, n: str, *peers: Agent) -> Agent:
        environment = {
            "SLOW": str(slowness[n]),
            "BASE": str(args.base_ms / 1e3),
            "SEED": str(seed),
            "HIDDEN": str(args.hidden),
            "WIDTH": str(args.width),
            "RATE": str(args.rate),
            "CLOTHES": str(int(args.clothes)),
            "NET": "residual" if args.residual else "layers",
            "LOCAL_STEPS": str(LOCAL_STEPS if each == 1 else 0),
            "GO": str(go),
            share_policies.VARIABLE: str(shares),
        }
        if not peers:
            environment |= {"STATES": str(states), "EVERY": str(each)}
        end = [str(folder / "end")]
        return cluster.start(n, peers=peers, script=end, environment=environment)

    with Cluster(folder, job=SCRIPT, options=options) as cluster:
        first = start(cluster, "a")
        first.wait("joined")
        agents = [first, *(start(cluster, n, first) for n in SLOW if n != "a")]
        for agent in agents[1:]:
            agent.wait_ready()
        go.touch()
        released = time.time()
        for agent in agents:
            agent.wait_members(*SLOW)
        begin = first.iteration + SETTLE * each
        third = rounds * each // 3
        first.wait_until("the burst", lambda: first.iteration >= begin + third, WAIT_S)
        _say_slow(slowness["a"], BURST * SLOW["a"])
        first.wait_until("its end", lambda: first.iteration >= begin + 2 * third, WAIT_S)
        _say_slow(slowness["a"], SLOW["a"])
        last = begin + rounds * each
        first.wait_until("the end", lambda: first.iteration >= last, WAIT_S)
        found = _found(agents, begin, last, third)
        found = replace(found, killed=_killed(agents)) if name == OURS else found
        ends = {e["iteration"]: float(e["t"]) - released for e in first.all("step")}
    right = judged(
        args, {k: path for k in ends if k <= last and (path := states / f"{k}.pt").exists()}
    )
    return replace(found, seen=tuple((ends[k], part) for k, part in sorted(right.items())))


def judged(args: argparse.Namespace, states: Mapping[int, Path]) -> dict[int, float]:
    """Return iteration -> which part of the test pictures the model in its file tells right."""
    import torch

    from models.digits import Digits
    from models.fashion import FashionMnist

    net, _ = _net(args)
    test = FashionMnist(train=False) if args.clothes else Digits(train=False)
    pictures, labels = zip(*(test[k] for k in range(len(test))), strict=True)
    inputs, wanted = torch.stack(pictures), torch.tensor(labels)
    right = {}
    for iteration, path in states.items():
        net.load_state_dict(torch.load(path, weights_only=True))
        with torch.no_grad():
            right[iteration] = float((net(inputs).argmax(dim=1) == wanted).float().mean())
    return right


def _found(agents: list[Agent], begin: int, last: int, third: int) -> Found:
    ends = {e["iteration"]: float(e["t"]) for e in agents[0].all("step")}
    computes = [
        {e["iteration"]: float(e["compute_s"]) for e in agent.all("step")} for agent in agents
    ]

    def busy(which: range) -> float:
        whole = sum(ends[k] - ends[k - 1] for k in which) * len(agents)
        return sum(mine.get(k, 0.0) for mine in computes for k in which) / whole

    return Found(
        seconds=ends[last] - ends[begin],
        non_idle=busy(range(begin + 1, last + 1)),
        calm=busy(range(begin + 1, begin + third)),
        seen=(),
    )


def _killed(agents: list[Agent]) -> float:
    """Kill the last device in the middle of a round, and return what that cost the others, in
    usual rounds of the three that are left."""
    first, victim = agents[0], agents[-1]
    told = len(victim.said(" steps"))
    victim.wait_until("the middle of a round", lambda: victim.said(" steps")[told:])
    before = first.iteration
    victim.signal(signal.SIGKILL)
    first.wait_until("rounds", lambda: first.iteration >= before + AFTER_KILL, WAIT_S)
    ends = {e["iteration"]: float(e["t"]) for e in first.all("step")}
    rounds = [ends[k] - ends[k - 1] for k in range(before + 1, before + AFTER_KILL + 1)]
    usual = statistics.median(rounds[AFTER_KILL // 2 :])
    return sum(rounds[: AFTER_KILL // 2]) / usual - AFTER_KILL // 2


def _say_slow(file: Path, slow: float) -> None:
    """Replace the file in one piece, since a script may be reading it."""
    new = file.with_suffix(".new")
    new.write_text(str(slow))
    new.replace(file)


def _net(args: argparse.Namespace) -> tuple[nn.Module, Division]:
    # Imported here, because importing PyTorch takes a second, and `--help` needs none of it.
    from edgeagent.trainer.subnets import fully_connected
    from models.fully_connected import fully_connected_net
    from models.residual_perceptron import residual_perceptron

    inner, inputs = args.hidden, 28 * 28 if args.clothes else 64
    if args.residual:
        net = residual_perceptron(inputs, args.width, inner, blocks=4, classes=10)
    else:
        net = fully_connected_net(inputs, inner, classes=10)
    return net, fully_connected(net)


def right_parts(net: nn.Module, division: Division) -> dict[str, float]:
    """Return the parts of the net with which all devices of `SLOW` end a step together, whose time
    is in proportion to the weights of the subnet."""
    dims = dict.fromkeys((name for name, _ in net.named_parameters()), 0)
    for piece in (piece for layer in division.layers for piece in layer.pieces):
        if piece.tensor in dims:
            dims[piece.tensor] += 1
    sizes = [(tensor.numel(), dims[name]) for name, tensor in net.named_parameters()]

    def part(weights: float) -> float:
        """Return the part whose subnet has so many weights."""
        return bisected(lambda p: sum(n * p**power for n, power in sizes) - weights)

    whole = sum(n for n, _ in sizes)
    seconds = bisected(lambda t: sum(part(t * whole / slow) for slow in SLOW.values()) - 1.0)
    return {name: part(seconds * whole / slow) for name, slow in SLOW.items()}


def bisected(rising: Callable[[float], float]) -> float:
    """Return where `rising` is 0 between 0 and 1; 0 or 1 if it is not."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2


def table(
    found: Mapping[str, Sequence[Found]], accuracies: Sequence[float], at: Sequence[float] = ()
) -> str:
    """Return Markdown: a line for each contender, medians with the range of the runs behind."""
    head = ["", "runs", "all rounds, s", "non-idle", "calm", "at the end, %"]
    head += [f"to {accuracy:.0%}, s" for accuracy in accuracies]
    head += [f"after {seconds:g} s, %" for seconds in at]
    head += ["a killed device, rounds"]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, many in found.items():
        cells = [name, str(len(many)), _spread([one.seconds for one in many], 1)]
        cells += [_spread([one.non_idle for one in many], 3), _spread([o.calm for o in many], 3)]
        cells += [_spread([100 * one.accuracy for one in many], 1)]
        for accuracy in accuracies:
            times = [one.reached(accuracy) for one in many]
            there = [t for t in times if t is not None]
            missing = f", {len(many) - len(there)} never" if len(there) < len(many) else ""
            cells.append((_spread(there, 0) if there else "-") + missing)
        for seconds in at:
            parts = [p for one in many if (p := one.after(seconds)) is not None]
            cells.append(_spread([100 * part for part in parts], 1) if parts else "-")
        costs = [one.killed for one in many if one.killed is not None]
        cells.append(_spread(costs, 2) if costs else "")
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def _spread(values: Sequence[float], digits: int) -> str:
    middle, low, high = statistics.median(values), min(values), max(values)
    if len(values) == 1:
        return f"{middle:.{digits}f}"
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def draw(found: Mapping[str, Sequence[Found]], path: Path) -> None:
    """Draw accuracy over seconds, a line for each run; without matplotlib there is no picture."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(9.0, 4.5))
    for (name, many), color in zip(found.items(), COLORS, strict=False):
        for k, one in enumerate(many):
            times, values = zip(*one.seen, strict=True)
            label = name if k == 0 else None
            panel.plot(times, [100 * v for v in values], color=color, label=label, linewidth=1)
    panel.set_xlabel("seconds from the moment at which all devices are there")
    panel.set_ylabel("test pictures told right, %")
    best = max(one.accuracy for many in found.values() for one in many)
    panel.set_ylim(100 * best - 20, 100 * best + 2)
    panel.legend(loc="lower right")
    panel.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def run(args: argparse.Namespace) -> int:
    """Measure, write and print; return 0 if all runs ended."""
    found: dict[str, list[Found]] = {}
    busy, failed = Busy.now(), 0
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for name in turns(args.only, seed):
            with tempfile.TemporaryDirectory() as text, policies(Path(text)):
                try:
                    one = measured(args, name, seed, Path(text))
                except (AssertionError, EdgeAgentError) as error:
                    failed += 1
                    say(f"{name}, seed {seed}: failed: {why(error)}")
                    continue
            found.setdefault(name, []).append(one)
            say(
                f"{name}, seed {seed}: {one.seconds:.1f} s, non-idle {one.non_idle:.3f}, calm"
                f" {one.calm:.3f}, {100 * one.accuracy:.1f} % right, killed {one.killed}"
            )
            _write(args, found, Busy.now().since(busy))
    if found:
        print((args.out / "subnets.md").read_text())
    print(f"processors {100 * Busy.now().since(busy):.0f} % busy")
    return min(failed, 1)


def _write(args: argparse.Namespace, found: dict[str, list[Found]], busy: float) -> None:
    """Write figures, table and picture of what was measured so far."""
    settings = {k: v for k, v in vars(args).items() if isinstance(v, (int, float, str, list))}
    ordered = {name: found[name] for name in ALL if name in found}
    runs = {name: [asdict(one) for one in many] for name, many in ordered.items()}
    args.out.mkdir(parents=True, exist_ok=True)
    whole = {"settings": settings, "busy": busy, "runs": runs}
    (args.out / "subnets.json").write_text(json.dumps(whole, indent=1) + "\n")
    (args.out / "subnets.md").write_text(table(ordered, args.accuracy, args.at))
    draw(ordered, args.out / "subnets.png")
