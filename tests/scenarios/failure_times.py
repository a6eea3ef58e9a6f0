"""How long the others take to go on when agents are killed or stopped; real agents, from outside.

Every wait is bounded. A time begins just before the signal, by this process's clock, and ends at
the `t` of an event in a survivor's file. Of several survivors the slowest one counts.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.scenarios import histories
from tests.scenarios.cluster import Agent, Cluster
from tests.scenarios.processes import living, session_lives

ENDLESS = ("--steps", "1000000")
GLOBAL_BATCH = 128  # of the job "digits"
BEFORE_KILL_S = (0.2, 1.2)  # an agent is killed after a random time between these
USUAL_STEPS = 20
RATE_STEPS = 100
ORPHAN_S = 15.0  # a trainer may run for so long after its agent has ended
POLL_S = 0.05
END_S = 300.0  # the rest of a run, which was made long enough for a pause, may take so long

Say = Callable[[str], None]


@dataclass(slots=True)
class Case:
    """The results of several trials of one kind; all times in seconds."""

    name: str
    noticed_s: list[float] = field(default_factory=list)
    decision_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    usual_step_s: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Return median and worst of each."""
        result: dict[str, Any] = {"case": self.name, "times": len(self.decision_s)}
        for key in ("noticed_s", "decision_s", "step_s", "usual_step_s"):
            values = getattr(self, key)
            if values:
                median, worst = statistics.median(values), max(values)
                result[key] = {"median": round(median, 6), "worst": round(worst, 6)}
        return result


class Crew:
    """A cluster that is filled up again after each loss. Each agent that is started has a new
    name."""

    def __init__(self, cluster: Cluster, size: int) -> None:
        """Start `size` agents and wait until all are members."""
        self.cluster = cluster
        self.size = size
        self.lives = size
        self.dead: list[Agent] = []
        self.agents = cluster.together(*(f"a{k}" for k in range(1, size + 1)))
        self.wait_full()

    @property
    def scheduler(self) -> Agent:
        """The agent that leads the newest term."""
        said = [e for agent in self.agents for e in agent.all("scheduler")]
        leader = max(said, key=lambda e: int(e["term"]))["node"]
        return next(agent for agent in self.agents if agent.name == leader)

    def bury(self, victim: Agent) -> None:
        """Wait until the trainer of an agent that was killed has ended as well."""
        deadline = time.monotonic() + ORPHAN_S
        while session_lives(victim.process.pid):
            assert time.monotonic() < deadline, f"the trainer of {victim.name} outlives its agent"
            time.sleep(POLL_S)
        victim.wait_exit()
        self.cluster.agents.remove(victim)  # its pid may be another process's from now on
        self.dead.append(victim)

    def fill_up(self) -> None:
        """Start as many agents as are missing and wait until all are members."""
        peers = list(self.agents)
        while len(self.agents) < self.size:
            self.lives += 1
            self.agents.append(self.cluster.start(f"a{self.lives}", peers=peers))
        self.wait_full()

    def wait_full(self) -> None:
        """Wait until all agents have done a step together."""
        for agent in self.agents:
            agent.wait_until("all members", partial(self._steps_with_all, agent))

    def _steps_with_all(self, agent: Agent) -> bool:
        steps = agent.all("step")
        return bool(steps) and steps[-1]["members"] == self.size

    def events(self) -> dict[str, list[dict[str, Any]]]:
        """Return the events of all agents, by name."""
        return {agent.name: agent.update() for agent in (*self.dead, *self.agents)}

    def finish(self) -> list[str]:
        """Have all agents leave, one after the other; return what was wrong in the whole
        history."""
        for agent in self.agents:
            status, _ = agent.interrupt()
            assert status == 0, f"{agent.name} ended with {status}:\n{agent.describe()}"
        names = [agent.name for agent in self.agents]
        return histories.check(self.events(), names, GLOBAL_BATCH)


def usual_step(agent: Agent) -> float:
    """Return the median of the agent's last steps' times."""
    ends = [e["t"] for e in agent.all("step")[-USUAL_STEPS - 1 :]]
    return float(statistics.median(b - a for a, b in pairwise(ends)))


def rate(agent: Agent) -> float:
    """Return how many steps per second the agent has done lately."""
    ends = [e["t"] for e in agent.all("step")[-RATE_STEPS:]]
    return float((len(ends) - 1) / (ends[-1] - ends[0]))


def _has_usual_step(agent: Agent) -> bool:
    return len(agent.all("step")) > USUAL_STEPS


def without(agent: Agent, since: float, gone: Sequence[str]) -> dict[str, Any] | None:
    """Return the agent's first event since then that says that it goes on without all of `gone`."""
    for event in agent.all("restarted"):
        if event["t"] >= since and not any(name in event["members"] for name in gone):
            return event
    return None


def step_after(agent: Agent, since: float) -> dict[str, Any] | None:
    """Return the first step that was complete after `since`."""
    return next((e for e in agent.all("step") if e["t"] > since), None)


def lose(
    case: Case, victims: Sequence[Agent], others: Sequence[Agent], strike: Callable[[], None]
) -> None:
    """Call `strike` with the victims; note how long the others take to go on without them."""
    usual = [usual_step(agent) for agent in others]
    names = [victim.name for victim in victims]
    began = time.time()
    strike()
    noticed, decided, stepped = [], [], []
    for agent in others:
        decision = agent.wait_until("decision", partial(without, agent, began, names))
        step = agent.wait_until("next step", partial(step_after, agent, decision["t"]))
        down = [e["t"] for e in agent.all("link_down") if e["node"] in names and e["t"] >= began]
        noticed += [t - began for t in down]
        decided.append(decision["t"] - began)
        stepped.append(step["t"] - began)
    case.noticed_s.append(max(noticed, default=0.0))
    case.decision_s.append(max(decided))
    case.step_s.append(max(stepped))
    case.usual_step_s.append(statistics.median(usual))


def kill_all(victims: Sequence[Agent]) -> None:
    """Kill the agents, but not their trainers, with `kill -9`."""
    for victim in victims:
        victim.signal(signal.SIGKILL)


def kill_one(crew: Crew, case: Case, chance: random.Random) -> None:
    """Run one trial: kill the agents that the case names at a random moment, then fill up again."""
    time.sleep(chance.uniform(*BEFORE_KILL_S))
    scheduler = crew.scheduler
    worker = chance.choice([a for a in crew.agents if a is not scheduler])
    victims = {"worker": [worker], "scheduler": [scheduler], "both": [scheduler, worker]}
    dead = victims[case.name.split()[0]]
    crew.agents = [a for a in crew.agents if a not in dead]
    lose(case, dead, crew.agents, partial(kill_all, dead))
    for victim in dead:
        crew.bury(victim)
    crew.fill_up()


def kills(
    folder: Path, size: int, kinds: Sequence[str], times: int, chance: random.Random, say: Say
) -> tuple[list[Case], list[str]]:
    """Kill each kind so many times in a cluster of `size`; return the times and what was wrong."""
    cases = [Case(f"{kind} of {size}") for kind in kinds]
    with Cluster(folder, options=ENDLESS) as cluster:
        crew = Crew(cluster, size)
        for k in range(times):
            for case in cases:
                kill_one(crew, case, chance)
                say(
                    f"kill {k + 1}/{times} {case.name}: decision {case.decision_s[-1]:.3f} s, "
                    f"step {case.step_s[-1]:.3f} s"
                )
        return cases, crew.finish()


def stop_session(agent: Agent, number: int) -> None:
    """Send a signal to the agent and to all processes that it started."""
    for process in living():
        if process.session == agent.process.pid:
            os.kill(process.pid, number)


@dataclass(slots=True)
class Sleep:
    """The result of a sleep; `problems` is empty if all went well. Times are in seconds."""

    case: Case
    pause_s: float
    rejoined_s: float | None
    steps: int
    samples: int
    problems: list[str]


def enough_steps(folder: Path, pause: float) -> int:
    """Return how many steps keep three agents busy for `pause` seconds and some time after that."""
    with Cluster(folder, options=ENDLESS) as cluster:
        crew = Crew(cluster, 3)
        crew.agents[0].wait_steps(RATE_STEPS)
        return round(rate(crew.agents[0]) * (1.5 * pause + 20.0))


def sleep(folder: Path, pause: float, say: Say) -> Sleep:
    """Stop one of three agents for `pause` seconds, wake it, let all finish; return the result."""
    steps = enough_steps(folder, pause)
    folder = folder / "run"
    folder.mkdir()
    case = Case("stopped, of 3")
    with Cluster(folder, options=("--steps", str(steps))) as cluster:
        agents = cluster.together("a1", "a2", "a3")
        sleeper, others = agents[2], agents[:2]
        for agent in agents:
            agent.wait_until("some steps", partial(_has_usual_step, agent))
        joins = len(sleeper.all("joined"))
        asleep = time.monotonic()
        lose(case, [sleeper], others, partial(stop_session, sleeper, signal.SIGSTOP))
        say(f"stopped: decision {case.decision_s[0]:.3f} s, step {case.step_s[0]:.3f} s")
        time.sleep(max(0.0, pause - (time.monotonic() - asleep)))
        woken = time.time()
        stop_session(sleeper, signal.SIGCONT)
        again = sleeper.wait_until("joined again", lambda: sleeper.all("joined")[joins:])
        rejoined = again[0]["t"] - woken
        say(f"joined again {rejoined:.3f} s after it was woken; {steps} steps to be done")
        problems = []
        for agent in agents:
            if status := agent.wait_exit(END_S):
                problems.append(f"{agent.name} ended with {status}")
        events = {agent.name: agent.update() for agent in agents}
        problems += histories.check(events, list(events), GLOBAL_BATCH)
        if len({agent.save_path.read_bytes() for agent in agents}) != 1:
            problems.append("the saved files differ")
        samples = sum(histories.counted_samples(events, list(events)).values())
        if samples != steps * GLOBAL_BATCH:
            problems.append(f"{samples} samples, not {steps} x {GLOBAL_BATCH}")
        return Sleep(case, pause, rejoined, steps, samples, problems)
