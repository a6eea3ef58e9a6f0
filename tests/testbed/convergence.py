"""Whether a cluster that grows and shrinks learns as one that does not (Chaos, Figures 11 to 14).

Each task is a built-in job. It is trained four times, from the same weights and over the same
samples: by four agents, by five, by four that a fifth joins half-way, and by five of which one
leaves half-way. All agents run on loopback, one thread each. Because the global batch is fixed and
is cut into the same micro-batches however many devices share them, the four loss curves may differ
only by the order in which gradients are added, so their greatest difference is the result.
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from edgeagent.config import WIRES
from tests.scenarios.cluster import Agent, Cluster

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("ada", "bob", "cyd", "dan", "eve")
STEP_WAIT_S = 60.0  # no step of any task takes so long on a machine that does nothing else
EVALUATE_S = 600.0  # all devices then run the trained model over all test pictures, at once
SAY_EVERY_S = 10.0
LEAVING = "leaving"  # begins what a device says that is told to leave
LEAST_DRAWN = 1e-8  # differences are drawn on a logarithmic axis, and many are exactly zero


@dataclass(frozen=True, slots=True)
class Plan:
    """How many devices there are at the start, what happens half-way (+1, 0 or -1), and how
    gradients travel (`--wire`)."""

    devices: int
    change: int = 0
    wire: str = WIRES[0]

    @property
    def title(self) -> str:
        """A short name for tables and legends."""
        if not self.change:
            rounded = "" if self.wire == WIRES[0] else f", {self.wire}"
            return f"{self.devices} devices{rounded}"
        return f"{self.devices} to {self.devices + self.change} devices"


ROUNDED = Plan(4, wire="bf16")
PLANS = (Plan(4), Plan(5), Plan(4, 1), Plan(5, -1))


@dataclass(frozen=True, slots=True)
class Curve:
    """What one run has learned: `losses` and `seconds` (after the first step) by iteration, how
    many members each iteration had, at which one they changed (None: never), the scores of the
    trained model by name, and the digest of the training state at the end."""

    plan: Plan
    losses: tuple[float, ...]
    seconds: tuple[float, ...]
    members: tuple[int, ...]
    changed_at: int | None
    scores: dict[str, float]
    digest: str


def train(
    job: str,
    plan: Plan,
    steps: int,
    folder: Path,
    options: Sequence[str],
    say: Callable[[str], None],
) -> Curve:
    """Train `job` once as `plan` says; raise `AssertionError` if anything goes wrong on the way."""
    folder.mkdir(parents=True)
    every = ("--steps", str(steps), "--seed", "1", "--wire", plan.wire, *options)
    with Cluster(folder, job=job, options=every) as cluster:
        first, *others = cluster.together(*NAMES[: plan.devices])
        _reach(first, steps // 2, say)
        if plan.change > 0:
            with contextlib.ExitStack() as stack:  # else a short job ends before Python has started
                for agent in (first, *others):
                    stack.enter_context(agent.held())
                newcomer = cluster.start(NAMES[plan.devices], peers=[first])
                newcomer.wait_ready()
            newcomer.wait_members(*NAMES[: plan.devices + 1])
            others.append(newcomer)
        elif plan.change < 0:
            leaver = others.pop()
            with first.held():  # else a fast machine ends a short job before the leave is known
                leaver.signal(signal.SIGINT)
                leaver.wait_said(LEAVING)
            assert leaver.wait_exit() == 0, leaver.describe()
        _reach(first, steps, say)
        for agent in (first, *others):
            assert agent.wait_exit(EVALUATE_S) == 0, agent.describe()
        curve = curve_of(plan, first, steps)
        ends = {agent.name: agent.digests.get(steps) for agent in (first, *others)}
        assert set(ends.values()) == {curve.digest}, (
            f"the devices end with different states: {ends}"
        )
    return curve


def _reach(agent: Agent, iteration: int, say: Callable[[str], None]) -> None:
    """Wait for an iteration, however long all of them take, and tell how far it is."""
    told = time.monotonic()
    while agent.iteration < iteration:
        following = agent.iteration + 1
        done = partial(_has_done, agent, following)
        agent.wait_until(f"iteration {following}", done, STEP_WAIT_S)
        if time.monotonic() - told > SAY_EVERY_S:
            told = time.monotonic()
            say(f"  step {agent.iteration}")


def _has_done(agent: Agent, iteration: int) -> bool:
    return agent.iteration >= iteration


def curve_of(plan: Plan, agent: Agent, steps: int) -> Curve:
    """Return what the events of `agent`, which was there from the beginning, tell of a run."""
    done: dict[int, dict[str, Any]] = {e["iteration"]: e for e in agent.all("step")}
    assert sorted(done) == list(range(1, steps + 1)), "steps are missing in the events"
    ordered = [done[k] for k in range(1, steps + 1)]
    members = tuple(int(e["members"]) for e in ordered)
    changes = [k + 1 for k in range(1, steps) if members[k] != members[k - 1]]
    scores = {e["name"]: float(e["value"]) for e in agent.all("evaluated")}
    return Curve(
        plan,
        tuple(float(e["loss"]) for e in ordered),
        tuple(float(e["t"]) - float(ordered[0]["t"]) for e in ordered),
        members,
        changes[-1] if changes and plan.change else None,
        scores,
        agent.digests[steps],
    )


def greatest_difference(one: Curve, other: Curve) -> float:
    """Return how far two loss curves are apart at most, as a share of the loss there."""
    return max(differences(one, other))


def table(curves: Sequence[Curve]) -> list[str]:
    """Return the runs as a table in Markdown, compared with the first one."""
    names = list(dict.fromkeys(name for curve in curves for name in curve.scores))
    lines = [
        "| run | changed at step | last loss | greatest difference of loss | "
        + "".join(f"{name} | " for name in names)
        + "seconds |",
        "|---|" + "---|" * (4 + len(names)),
    ]
    for curve in curves:
        at = "-" if curve.changed_at is None else str(curve.changed_at)
        differs = greatest_difference(curves[0], curve)
        scores = [f"{curve.scores.get(name, math.nan):.4f}" for name in names]
        cells = [curve.plan.title, at, f"{curve.losses[-1]:.4f}", f"{differs:.1e}", *scores]
        lines.append("| " + " | ".join([*cells, f"{curve.seconds[-1]:.0f}"]) + " |")
    return lines


def differences(one: Curve, other: Curve) -> list[float]:
    """Return by iteration how far two loss curves are apart, as a share of the loss there."""
    pairs = zip(one.losses, other.losses, strict=True)
    return [abs(a - b) / max(abs(a), abs(b), 1e-12) for a, b in pairs]


def draw(curves: Sequence[Curve], heading: str, path: Path) -> None:
    """Write a picture of the losses by step and by second, and by step of how far each curve is
    from the first one: the curves lie on one another, so that only the last panel can tell them
    apart. Needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    by_step, by_second, apart = figure.subplots(1, 3)
    by_second.sharey(by_step)
    for k, curve in enumerate(curves):
        style: dict[str, Any] = {"color": f"C{k}", "linewidth": (6.0, 4.0, 2.4, 1.0)[min(k, 3)]}
        mark: dict[str, Any] = {"marker": "v", "color": f"C{k}", "markersize": 9, "zorder": 5}
        steps = range(1, len(curve.losses) + 1)
        by_step.plot(steps, curve.losses, label=curve.plan.title, **style)
        by_second.plot(curve.seconds, curve.losses, **style)
        differs = differences(curves[0], curve)
        if k:
            apart.plot(steps, [max(d, LEAST_DRAWN) for d in differs], color=f"C{k}", linewidth=1.4)
        if curve.changed_at is not None:
            at = curve.changed_at - 1
            by_step.plot([at + 1], [curve.losses[at]], **mark)
            by_second.plot([curve.seconds[at]], [curve.losses[at]], **mark)
            apart.plot([at + 1], [max(differs[at], LEAST_DRAWN)], **mark)
    by_step.set(xlabel="step", ylabel="training loss", title="by step")
    by_second.set(xlabel="seconds after the first step", title="by second, on a busy machine")
    apart.set(
        xlabel="step", ylabel="share of the loss", title=f"difference from {curves[0].plan.title}"
    )
    apart.set_yscale("log")
    by_step.legend(title="triangle: a device joins or leaves")
    figure.suptitle(heading)
    figure.savefig(path, dpi=100)
