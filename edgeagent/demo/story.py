"""The story of `edgeagent demo`: three start, a fourth joins, one leaves, the scheduler is killed.

The agents are real, in processes of their own, and are seen only through their event files and exit
statuses. Every wait is bounded. No process is left behind, and no file either, except the logs of a
demo that has failed.
"""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from edgeagent.demo.agents import AgentFiles, DemoAgent, Team, agent_environment, run_command
from edgeagent.demo.report import MIN_SOURCES, Event, Report, report_from, report_lines
from edgeagent.demo.view import NodeLine, Scene, View, describe, view_for
from edgeagent.errors import EdgeAgentError
from edgeagent.launch import how_it_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

DEFAULT_STEPS = 800
FOUNDERS = ("alice", "bob", "carol")
JOINER = "dave"
LEAVERS = ("carol", "bob")  # the first of these that is not the scheduler leaves
# When something happens, as a part of all steps.
JOIN_AT = 1 / 4
LEAVE_AT = 5 / 8
KILL_AT = 3 / 4
POLL_S = 0.05  # between two looks at the event files
SILENCE_S = 60.0  # if no agent writes an event for this long, something hangs
RATE_WINDOW_S = 2.0  # of the last steps, from which samples/s are computed


class DemoFailed(EdgeAgentError):
    """The demo could not show what it is meant to show."""


def run_demo(
    *,
    steps: int = DEFAULT_STEPS,
    as_json: bool = False,
    divided: bool = False,
    command: Callable[[AgentFiles, Sequence[str]], Sequence[str]] | None = None,
) -> int:
    """Run the demo, print the report and return 0; raise `DemoFailed`, which names what went wrong.

    `divided`: the optimizer's state is divided among the devices. `command` builds one agent's
    command line (default: `edgeagent run digits ...`).
    """
    folder = tempfile.mkdtemp(prefix="edgeagent-")
    keep = False
    try:
        with _signals_as_interrupts():
            command = command or run_command(steps, divided=divided)
            report = _play(folder, steps, as_json, command, divided=divided)
        keep = bool(report["problems"])
    finally:
        shutil.rmtree(os.path.join(folder, "home") if keep else folder, ignore_errors=True)
    if as_json:
        print(json.dumps(report))
    else:
        print("\n" + "\n".join(report_lines(report)))
    if report["problems"]:
        reasons = "; ".join(report["problems"])
        raise DemoFailed(f"the demo failed: {reasons} (events and logs are in {folder})")
    return 0


def _play(
    folder: str,
    steps: int,
    as_json: bool,
    command: Callable[[AgentFiles, Sequence[str]], Sequence[str]],
    *,
    divided: bool,
) -> Report:
    from edgeagent.transport.token import new_token

    home = os.path.join(folder, "home")
    os.mkdir(home, 0o700)
    environment = agent_environment(home, new_token(), os.environ)
    team = Team(folder, (*FOUNDERS, JOINER), command, environment)
    view = view_for(sys.stderr if as_json else sys.stdout)
    story = Story(team, steps, view, divided=divided)
    try:
        story.tell()
    except DemoFailed as failure:
        return judge(team, steps, told=str(failure), divided=divided)
    finally:
        view.close()
        with _uninterrupted():
            team.stop()
    return judge(team, steps, divided=divided)


class Story:
    """Plays the acts of the story, watching what its agents write."""

    def __init__(
        self,
        team: Team,
        steps: int,
        view: View,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        *,
        divided: bool = False,
    ) -> None:
        self._team = team
        self._steps = steps
        self._view = view
        self._clock = clock
        self._sleep = sleep
        self._divided = divided
        self._heard = clock()

    def tell(self) -> None:
        """Play all acts; raise `DemoFailed` as soon as one of them cannot be played."""
        for name in FOUNDERS:
            self._team.start(name)
        self._view.happened(f"{', '.join(FOUNDERS)} start")
        self._until(lambda: all(self._joined(name) for name in FOUNDERS))
        self._until(lambda: self._iteration() >= JOIN_AT * self._steps)
        self._team.start(JOINER)
        self._view.happened(f"{JOINER} starts and wants to join")
        self._until(lambda: self._joined(JOINER))
        self._until(lambda: self._iteration() >= LEAVE_AT * self._steps)
        leaver = next(name for name in LEAVERS if name != self._scheduler())
        self._view.happened(f"{leaver} gets Ctrl+C")
        self._team.ask_to_leave(leaver)
        self._until(lambda: self._all_saw_leave(leaver))
        self._until(lambda: self._iteration() >= KILL_AT * self._steps)
        self._until(self._survives_a_loss)
        scheduler = self._scheduler()
        self._view.happened(f"{scheduler}, the scheduler, is killed (kill -9)")
        self._team.kill(scheduler)
        self._until(lambda: not any(agent.running for agent in self._agents()), ending=True)

    def _agents(self) -> list[DemoAgent]:
        return list(self._team.agents.values())

    def _joined(self, name: str) -> bool:
        return self._team.agents[name].last("joined") is not None

    def _iteration(self) -> int:
        return max(agent.iteration for agent in self._agents())

    def _all_saw_leave(self, node: str) -> bool:
        """Whether all the others have reported that `node` has left."""
        return all(
            any(e["event"] == "member_left" and e["node"] == node for e in agent.events)
            for agent in self._team.finishers
        )

    def _survives_a_loss(self) -> bool:
        """Whether no part of a divided optimizer state is on one device only."""
        told = [agent.last("copies") for agent in self._team.finishers]
        return not self._divided or all(event and event["survives"] for event in told)

    def _scheduler(self) -> str:
        said = [event for agent in self._agents() if (event := agent.last("scheduler"))]
        newest = max(said, key=lambda event: int(event["term"]), default=None)
        return str(newest["node"]) if newest else ""

    def _until(self, done: Callable[[], bool], *, ending: bool = False) -> None:
        """Watch until `done()`; raise `DemoFailed` if an agent ends before, or none writes
        events."""
        while True:
            self._watch()
            if done():
                return
            self._check(ending)
            self._sleep(POLL_S)

    def _watch(self) -> None:
        for agent in self._agents():
            fresh = agent.new_events()
            if fresh:
                self._heard = self._clock()
            for event in fresh:
                if (line := describe(agent.files.name, event)) is not None:
                    self._view.happened(line)
        self._view.show(scene_of(self._agents(), self._steps))

    def _check(self, ending: bool) -> None:
        for agent in self._agents():
            if status := agent.failure_status:
                raise DemoFailed(f"{agent.files.name} {_ending(agent, status)}")
            started = agent.process is not None
            ended = started and not (agent.running or agent.asked_to_leave or agent.killed)
            if ended and not ending:
                raise DemoFailed(
                    f"the run was over too early for the story: give it more than "
                    f"{self._steps} --steps"
                )
        if self._clock() - self._heard > SILENCE_S:
            raise DemoFailed(f"no agent has reported anything for {SILENCE_S:.0f} s")


def scene_of(agents: Sequence[DemoAgent], steps: int) -> Scene:
    """Return the present scene, according to the agents' events."""
    nodes = tuple(node_line(agent) for agent in agents if agent.process is not None)
    newest: Event | None = None
    for agent in agents:
        step = agent.last("step")
        if step is not None and (newest is None or step["iteration"] > newest["iteration"]):
            newest = step
    training = [node for node in nodes if node.state == "training"]
    return Scene(
        nodes=nodes,
        iteration=newest["iteration"] if newest else 0,
        steps=steps,
        members=newest["members"] if newest else 0,
        loss=newest["loss"] if newest else None,
        samples_per_second=max((node.samples_per_second for node in training), default=0.0),
    )


def node_line(agent: DemoAgent) -> NodeLine:
    """Return an agent's line in the table; the rate is the cluster's, as this agent saw it."""
    step = agent.last("step")
    if agent.failure_status:
        state = "failed"
    elif agent.killed:
        state = "killed"
    elif agent.last("left") is not None:
        state = "left" if agent.asked_to_leave else "done"
    elif agent.asked_to_leave:
        state = "leaving"
    elif step is not None:
        state = "training"
    else:
        state = "joining" if agent.last("started") else "starting"
    return NodeLine(
        name=agent.files.name,
        state=state,
        iteration=step["iteration"] if step else 0,
        loss=step["loss"] if step else None,
        samples_per_second=_rate(agent.events) if state == "training" else 0.0,
    )


def _rate(events: Sequence[Event]) -> float:
    """Return the samples per second over the last steps."""
    samples, start, end = 0, 0.0, 0.0
    for event in reversed(events):
        if event["event"] != "step":
            continue
        end = end or event["t"]
        start = event["t"]
        if end - start > RATE_WINDOW_S:
            break
        samples += event["samples"]
    return samples / (end - start) if end > start else 0.0


def judge(team: Team, steps: int, told: str = "", *, divided: bool = False) -> Report:
    """Return the report on a story; `told` says why it was broken off, "" if it was not. If the
    optimizer's state is `divided`, the state that is pulled is so small that one source does."""
    events = {name: agent.events for name, agent in team.agents.items()}
    killed = [name for name, agent in team.agents.items() if agent.killed]
    sources = 1 if divided else MIN_SOURCES
    report = report_from(events, joiners=(JOINER,), killed=killed, sources=sources)
    if told:  # everything that the report lacks is a consequence of that
        report["problems"] = [told]
        return report
    problems = report["problems"]
    if report["steps"] != steps:
        problems.append(f"the run ended at step {report['steps']} of {steps}")
    if problem := compare_files([agent.files.save for agent in team.finishers]):
        report["digests_equal"] = False
        problems.append(problem)
    for name, agent in team.agents.items():
        if status := agent.failure_status:
            problems.append(f"{name} {_ending(agent, status)}")
        if agent.asked_to_leave and name not in [leave["node"] for leave in report["leaves"]]:
            problems.append(f"nobody saw {name} leave")
    return report


def compare_files(paths: Sequence[str]) -> str:
    """Return what is wrong with the saved models, "" if all are there and equal."""
    missing = [os.path.basename(path) for path in paths if not os.path.isfile(path)]
    if missing:
        return f"not saved: {', '.join(missing)}"
    if any(not filecmp.cmp(paths[0], path, shallow=False) for path in paths[1:]):
        return "the saved models of the nodes that finished differ"
    return ""


def _ending(agent: DemoAgent, status: int) -> str:
    return f"ended with {how_it_ended(status)}: {agent.complaint()}"


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore signals that would interrupt the cleaning up, which is bounded in time."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """Let `kill` and a terminal that is closed end the demo as Ctrl+C does, with cleaning up."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {n: signal.signal(n, interrupt) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
