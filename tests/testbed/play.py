"""Plays a scenario: starts real agents on the network's nodes, and plays the timeline.

The clock of the timeline starts when all agents that are there from the start have done a step
together. Every wait is bounded. The agents are told nothing about the network: they find each other
by multicast, and notice only by measuring that some links are slow.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeagent.demo.view import NodeLine, Scene, View, describe
from tests.scenarios.processes import kill_session, living
from tests.testbed.agents import Launcher
from tests.testbed.calibrate import Found, calibrate
from tests.testbed.network import Network, Pair

if TYPE_CHECKING:
    from tests.scenarios.cluster import Agent
    from tests.testbed.scenario import Event, Scenario

BEGIN_S = 180.0  # within this time all starters must have done a step together
LEAVE_S = 60.0  # within this time an agent must end after Ctrl+C
POLL_S = 0.02
RATE_STEPS = 20
CLUSTER = "testbed"


@dataclass(slots=True)
class Life:
    """One run of one node's agent."""

    node: str
    name: str  # that of the node, with a number if it is not the node's first agent
    agent: Agent
    end: str = ""  # "ctrl-c" or "kill" once it was made to end
    stopped: bool = False
    stayed: bool = False  # it still ran at the end, when all were asked to leave
    told: int = 0  # number of its events that have been shown

    @property
    def state(self) -> str:
        """One word for people."""
        status = self.agent.process.poll()
        if status is None:
            return "stopped" if self.stopped else "leaving" if self.end else "training"
        if self.end == "kill":
            return "killed"
        return "failed" if status else "left" if self.end else "done"


@dataclass(frozen=True, slots=True)
class Mark:
    """A line of the timeline that was done; `t` is the time of that in unix seconds."""

    t: float
    at_s: float
    text: str


@dataclass(slots=True)
class Played:
    """The result of a run; all times `t` are in unix seconds."""

    began_t: float = 0.0  # when all starters trained together
    ended_t: float = 0.0
    lives: list[Life] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    calibration: dict[Pair, Found] = field(default_factory=dict)
    sent: dict[Pair, int] = field(default_factory=dict)  # bytes by (sender, receiver)
    problems: list[str] = field(default_factory=list)


class Player:
    """One run of one scenario."""

    def __init__(self, scenario: Scenario, net: Network, folder: Path, view: View) -> None:
        """`folder`: where agents' files go; it has to exist."""
        self.scenario = scenario
        self.net = net
        self.folder = folder
        self.view = view
        self.played = Played()
        job = scenario.job
        self._launcher = Launcher(net, folder, CLUSTER, job.name, job.arguments)
        self._now: dict[str, Life] = {}  # the last life of each node

    # --- the run ------------------------------------------------------------------------------

    def play(self) -> Played:
        """Play the whole scenario; what went wrong is in the result's `problems`."""
        played = self.played
        try:
            for node in self.scenario.starters:
                self.start(node)
            if self._wait(self._all_train, BEGIN_S):
                self._timeline()
            else:
                played.problems.append(f"the starters did not train together in {BEGIN_S:g} s")
            played.ended_t = time.time()
            self._see_off()
            played.sent = self.net.counters()
        finally:
            for life in played.lives:
                kill_session(self.net.session(life.agent.process))
                life.agent.process.wait()
                life.agent.update()
            with contextlib.suppress(FileNotFoundError):
                self._launcher.token_file.unlink()
        return played

    def _timeline(self) -> None:
        played = self.played
        played.began_t = time.time()
        began = time.monotonic()
        self.view.happened("all train; the timeline begins")
        for event in self.scenario.timeline:
            self._wait(self._over, max(0.0, began + event.at_s - time.monotonic()))
            if self._over():
                played.problems.append(f"all had ended before {event.text!r} at {event.at_s:g} s")
                return
            self.do(event)
        if not self._wait(self._over, began + self.scenario.end_s - time.monotonic()):
            self.view.happened(f"{self.scenario.end_s:g} s are over")

    def _all_train(self) -> bool:
        count = len(self.scenario.starters)
        steps = [life.agent.all("step")[-1:] for life in self._now.values()]
        return all(step and step[0]["members"] >= count for step in steps)

    def _over(self) -> bool:
        return not any(life.agent.running for life in self.played.lives)

    def _wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Follow the agents until `done()` or the time is over; return whether it was done."""
        deadline = time.monotonic() + seconds
        while True:
            self._follow()
            if done():
                return True
            left = deadline - time.monotonic()
            if left <= 0 or (self._over() and not self.played.began_t):
                return False
            time.sleep(min(POLL_S, left))

    def _see_off(self) -> None:
        """Have all agents that still run leave, and note those that do not."""
        for life in self.played.lives:
            if life.agent.running and not life.end:
                life.end, life.stayed = "ctrl-c", True
                if life.stopped:
                    self._signal_all(life, signal.SIGCONT)
                life.agent.signal(signal.SIGINT)
        if not self._wait(self._over, LEAVE_S):
            late = [life.name for life in self.played.lives if life.agent.running]
            self.played.problems.append(f"{', '.join(late)} did not end within {LEAVE_S:g} s")

    # --- agents -------------------------------------------------------------------------------

    def start(self, node: str) -> Life:
        """Start a node's agent."""
        number = 1 + sum(life.node == node for life in self.played.lives)
        name = node if number == 1 else f"{node}-{number}"
        job = self.scenario.job
        agent = self._launcher.start(node, ("--steps", str(job.steps), *job.options), name=name)
        life = Life(node, name, agent)
        self.played.lives.append(life)
        self._now[node] = life
        return life

    def _signal_all(self, life: Life, number: signal.Signals) -> None:
        """Send a signal to the agent and to its trainer."""
        session = self.net.session(life.agent.process)
        for process in living():
            if process.session == session:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    # --- the timeline -------------------------------------------------------------------------

    def do(self, event: Event) -> None:
        """Do one line of the timeline, now."""
        self.played.marks.append(Mark(time.time(), event.at_s, event.text))
        self.view.happened(f"-- {event.text}")
        if event.do == "join":
            self.start(event.node)
        elif event.node:
            self._end_or_pause(event)
        elif event.do == "cut":
            for a, b in event.pairs:
                self.net.cut(a, b, one_way=True)
        elif event.do == "restore":
            for a, b in event.pairs:
                self.net.restore(a, b, one_way=True)
        elif event.do == "partition":
            self.net.partition(event.groups)
        elif event.do == "heal":
            self.net.heal()
        else:
            links = self.net.links
            self.net.set_links({p: replace(links[p], **c) for p, c in event.changes.items()})

    def _end_or_pause(self, event: Event) -> None:
        life = self._now[event.node]
        if not life.agent.running:
            self.played.problems.append(f"{life.name} had ended before {event.text!r}")
            return
        if event.do in ("ctrl-c", "kill"):
            life.end = event.do
            life.agent.signal(signal.SIGINT if event.do == "ctrl-c" else signal.SIGKILL)
        else:
            life.stopped = event.do == "stop"
            self._signal_all(life, signal.SIGSTOP if life.stopped else signal.SIGCONT)

    # --- what is shown ------------------------------------------------------------------------

    def _follow(self) -> None:
        """Read what the agents have written, and show it."""
        for life in self.played.lives:
            events = life.agent.update()
            for event in events[life.told :]:
                if line := describe(life.name, event):
                    self.view.happened(line)
            life.told = len(events)
        self.view.show(self._scene())

    def _scene(self) -> Scene:
        lines = []
        for life in self.played.lives:
            steps = [e for e in life.agent.events[-4 * RATE_STEPS :] if e["event"] == "step"]
            last: Mapping[str, Any] = steps[-1] if steps else {}
            lines.append(
                NodeLine(
                    name=life.name,
                    state=life.state,
                    iteration=last.get("iteration", 0),
                    loss=last.get("loss"),
                    samples_per_second=speed(steps[-RATE_STEPS:]) if life.agent.running else 0.0,
                )
            )
        ahead = max(lines, key=lambda line: line.iteration)
        return Scene(
            nodes=tuple(lines),
            iteration=ahead.iteration,
            steps=self.scenario.job.steps,
            members=sum(life.state == "training" for life in self.played.lives),
            loss=ahead.loss,
            samples_per_second=max(line.samples_per_second for line in lines),
        )


def speed(steps: list[dict[str, Any]]) -> float:
    """Return samples/s of the whole cluster over these steps."""
    if len(steps) < 2 or steps[-1]["t"] <= steps[0]["t"]:
        return 0.0
    samples = sum(int(step["samples"]) for step in steps[1:])
    return samples / float(steps[-1]["t"] - steps[0]["t"])


def network_of(scenario: Scenario, kind: Callable[..., Network] = Network) -> Network:
    """Return the network of a scenario, not made yet."""
    return kind(
        scenario.nodes,
        scenario.links,
        default=scenario.default,
        limits=scenario.limits,
        medium=scenario.medium,
        congestion=scenario.congestion,
        seed=scenario.seed,
    )


def play(
    scenario: Scenario, folder: Path, view: View, kind: Callable[..., Network] = Network
) -> Played:
    """Make the network, check it, play the scenario, remove the network."""
    with network_of(scenario, kind) as net:
        began = time.monotonic()
        found = calibrate(net)
        view.happened(f"{len(found)} links calibrated in {time.monotonic() - began:.1f} s")
        player = Player(scenario, net, folder, view)
        player.played.calibration = found
        return player.play()
