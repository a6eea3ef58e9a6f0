"""A storm with real agents: every few seconds a random one is killed and started again.

All agents that live must make progress; otherwise the storm ends and says which one does not. Every
wait is bounded. One agent, the anchor, is never killed. What the kernel says about its memory,
descriptors and threads is recorded all the time, so that anything that grows with time shows. The
anchor has the largest id, so it is the last to stand for election, and schedulers are killed as
often as others.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeagent.errors import EdgeAgentError
from edgeagent.local.api import fetch_status
from edgeagent.local.state_dir import running_agents
from tests.scenarios import histories
from tests.scenarios.cluster import Agent, Cluster
from tests.scenarios.failure_times import ENDLESS, GLOBAL_BATCH, ORPHAN_S
from tests.scenarios.processes import session_lives

if TYPE_CHECKING:
    from edgeagent.local.status_model import Status

LOOK_S = 0.5
SAMPLE_S = 5.0
HANG_S = 60.0  # an agent hangs if it writes nothing, or no agent makes a step, for so long
ENTER_S = 120.0  # an agent hangs if it is no member so long after its start
KEEP_MEMBERS = 2
SETTLE_STEPS = 30
GROWTH_BYTES = 16 << 20
GROWTH_COUNT = 16

Say = Callable[[str], None]


class StormOver(Exception):
    """Something hangs; the argument says what."""


@dataclass(slots=True)
class Life:
    """One process of one of the storm's agents; the next one may or may not have the same home."""

    agent: Agent
    home: Path
    began: float = field(default_factory=time.monotonic)
    heard: float = field(default_factory=time.monotonic)
    seen: int = 0  # events
    inside: bool = False

    def look(self) -> bool:
        """Read what it has written; return whether it has entered for the first time."""
        events = self.agent.update()
        if len(events) == self.seen:
            return False
        self.heard = time.monotonic()
        was, fresh = self.inside, events[self.seen :]
        self.inside = was or any(e["event"] == "joined" for e in fresh)
        self.seen = len(events)
        return self.inside and not was

    @property
    def iteration(self) -> int:
        """The last step it did."""
        steps = (e["iteration"] for e in reversed(self.agent.events) if e["event"] == "step")
        return next(steps, 0)


@dataclass(frozen=True, slots=True)
class Footprint:
    """The resources that an agent uses at one moment. `tasks`: asyncio tasks, 0 if it did not
    answer."""

    seconds: float
    rss_bytes: int
    descriptors: int
    threads: int
    tasks: int


@dataclass(slots=True)
class Outcome:
    """The result of a storm."""

    agents: int
    seconds: float = 0.0
    kills: int = 0
    scheduler_kills: int = 0
    kept_state: int = 0
    skipped: int = 0
    steps: int = 0
    enter_s: list[float] = field(default_factory=list)
    footprints: list[Footprint] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Return the figures."""
        first, last = thirds(self.footprints)
        return {
            "agents": self.agents,
            "seconds": round(self.seconds, 1),
            "kills": self.kills,
            "of_schedulers": self.scheduler_kills,
            "with_state_directory": self.kept_state,
            "beats_skipped": self.skipped,
            "steps": self.steps,
            "start_to_member_s": {
                "median": statistics.median(self.enter_s) if self.enter_s else None,
                "worst": max(self.enter_s, default=None),
            },
            "anchor_early": first,
            "anchor_late": last,
            "anchor": [astuple(f) for f in self.footprints],
            "problems": self.problems,
        }


def thirds(footprints: list[Footprint]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the medians over the second and over the last third of the samples."""
    third = len(footprints) // 3
    found = []
    for part in (footprints[third : 2 * third], footprints[2 * third :]):
        keys = ("rss_bytes", "descriptors", "threads", "tasks")
        found.append({k: statistics.median(getattr(f, k) for f in part) for k in keys if part})
    return found[0], found[1]


def growth_problems(footprints: list[Footprint]) -> list[str]:
    """Return what grew from the second third of the storm to the last one."""
    early, late = thirds(footprints)
    limits = {"rss_bytes": GROWTH_BYTES, "descriptors": GROWTH_COUNT, "threads": GROWTH_COUNT}
    limits["tasks"] = GROWTH_COUNT
    grown = [k for k, limit in limits.items() if early and late[k] > early[k] + limit]
    return [f"the anchor's {k} grew from {early[k]:.0f} to {late[k]:.0f}" for k in grown]


class Storm:
    """Plays one storm."""

    def __init__(
        self,
        folder: Path,
        agents: int,
        every: float,
        chance: random.Random,
        say: Say,
        copies: int | None = None,
    ) -> None:
        """`every`: seconds between two kills. `copies`: None, or the optimizer's state is divided,
        with so many copies of each part; then nobody is killed while that would lose a part."""
        divided = () if copies is None else ("--shard-optimizer", "--copies", str(copies))
        self._copies = copies
        self._cluster = Cluster(folder, options=(*ENDLESS, *divided))
        self._folder = folder
        self._every = every
        self._chance = chance
        self._say = say
        self._lives: list[Life] = []
        self._number = 0
        self._moved = time.monotonic()
        self._last = 0
        self._dying: list[tuple[Agent, float]] = []  # killed agents whose trainers may still run
        self._dead: list[Agent] = []
        self.outcome = Outcome(agents)

    def play(self, minutes: float) -> Outcome:
        """Play the storm; return the result. Nothing that was started is left behind."""
        with self._cluster:
            try:
                self._begin()
                began = time.monotonic()
                self._rage(began, began + 60 * minutes)
                self.outcome.seconds = time.monotonic() - began
                self._calm_down()
            except (StormOver, AssertionError, EdgeAgentError) as problem:
                self.outcome.problems.append(str(problem))
            names = [life.agent.name for life in self._lives if life.inside]
            events = {a.name: a.update() for a in (*self._dead, *self._cluster.agents)}
            self.outcome.problems += histories.check(events, names, GLOBAL_BATCH)
            self.outcome.problems += growth_problems(self.outcome.footprints)
            self.outcome.steps = self._last
        return self.outcome

    # --- acts -------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._start(self._folder / "home0")
        self._lives[0].agent.wait("joined")
        for k in range(1, self.outcome.agents):
            self._start(self._folder / f"home{k}")
        self._until_all_are_in()
        anchor = max(self._lives[1:], key=lambda life: status_of(life)["id"])
        self._lives.remove(anchor)
        self._lives.insert(0, anchor)
        self._say(f"{self.outcome.agents} agents train together; {anchor.agent.name} is spared")

    def _start(self, home: Path) -> None:
        self._number += 1
        peers = [life.agent for life in self._lives if life.agent.all("started")]
        agent = self._cluster.start(
            f"s{self._number}", peers=peers, environment={"EDGEAGENT_HOME": str(home)}
        )
        agent.home = home
        self._lives.append(Life(agent, home))

    def _rage(self, began: float, end: float) -> None:
        beat, sample = began + self._every, began
        while (now := time.monotonic()) < end:
            self._look()
            if now >= beat:
                beat = max(beat + self._every, now)
                self._strike()
            if now >= sample:
                sample = now + SAMPLE_S
                self._measure(now - began)
            time.sleep(LOOK_S)

    def _strike(self) -> None:
        victim = self._chance.choice(self._lives[1:])  # not the anchor
        members = [life for life in self._lives if life.inside and life is not victim]
        if len(members) < KEEP_MEMBERS or not self._survives():
            self.outcome.skipped += 1
            return
        leads = self._scheduler() == victim.agent.name
        victim.agent.signal(signal.SIGKILL)
        self._lives.remove(victim)
        self._dying.append((victim.agent, time.monotonic() + ORPHAN_S))
        kept = self._chance.random() < 0.5
        if not kept:
            shutil.rmtree(victim.home)
        self._start(victim.home)
        self.outcome.kills += 1
        self.outcome.scheduler_kills += leads
        self.outcome.kept_state += kept
        role = ", the scheduler," if leads else ""
        how = "its" if kept else "no"
        self._say(
            f"{victim.agent.name}{role} killed, back as {self._lives[-1].agent.name} with {how} "
            f"state; step {self._last}, {len(members)} members left"
        )

    def _survives(self) -> bool:
        """Whether a member can be lost now without a part of a divided optimizer state."""
        if self._copies is None:
            return True
        divided = status_of(self._lives[0])["divided"]
        return divided is not None and divided["survives"] > 0

    def _calm_down(self) -> None:
        """Let all agents enter, train together for a while, and leave one by one."""
        self._until_all_are_in()
        goal = self._last + SETTLE_STEPS
        while min(life.iteration for life in self._lives) < goal:
            self._look()
            time.sleep(LOOK_S)
        self._say(f"all {len(self._lives)} are in at step {self._last}; they leave one by one")
        for life in reversed(self._lives):
            status, _ = life.agent.interrupt()
            if status:
                raise StormOver(f"{life.agent.name} left with {status}:\n{life.agent.describe()}")

    def _until_all_are_in(self) -> None:
        count = len(self._lives)
        while not all(self._steps_with(life, count) for life in self._lives):
            self._look()
            time.sleep(LOOK_S)

    def _steps_with(self, life: Life, count: int) -> bool:
        steps = (e["members"] for e in reversed(life.agent.events) if e["event"] == "step")
        return next(steps, 0) == count

    # --- watching ---------------------------------------------------------------------------------

    def _scheduler(self) -> str:
        said = [e for life in self._lives for e in life.agent.all("scheduler")]
        return str(max(said, key=lambda e: int(e["term"]))["node"])

    def _look(self) -> None:
        """Read all event files; raise `StormOver` if somebody has ended or hangs."""
        now = time.monotonic()
        for life in self._lives:
            name = life.agent.name
            if life.look():
                self.outcome.enter_s.append(life.heard - life.began)
            if not life.agent.running:
                raise StormOver(f"{name} has ended:\n{life.agent.describe()}")
            if not life.inside and now - life.began > ENTER_S:
                raise StormOver(f"{name} does not get in:\n{life.agent.describe()}")
            if life.inside and now - life.heard > HANG_S:
                raise StormOver(f"{name} hangs:\n{life.agent.describe()}")
            if life.iteration > self._last:
                self._last, self._moved = life.iteration, now
        if now - self._moved > HANG_S:
            raise StormOver(f"nobody steps beyond {self._last}:\n{self._all_described()}")
        for agent, until in list(self._dying):
            if not session_lives(agent.process.pid):
                agent.wait_exit()
                self._cluster.agents.remove(agent)  # its pid may be another process's from now on
                self._dying.remove((agent, until))
                self._dead.append(agent)
            elif now > until:
                raise StormOver(f"the trainer of {agent.name} outlives its agent")

    def _all_described(self) -> str:
        return "\n".join(f"{x.agent.name}:\n{x.agent.describe()}" for x in self._lives)

    def _measure(self, seconds: float) -> None:
        self.outcome.footprints.append(footprint(self._lives[0], seconds))


def status_of(life: Life) -> Status:
    """Return what the agent says about itself."""
    (found,) = running_agents(str(life.home))
    return fetch_status(found.socket_path)


def footprint(life: Life, seconds: float) -> Footprint:
    """Return the resources that an agent uses now."""
    pid, tasks = life.agent.process.pid, status_of(life)["tasks"]
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        fields = dict(line.split(":", 1) for line in file)
    rss = int(fields["VmRSS"].split()[0]) * 1024
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    return Footprint(seconds, rss, descriptors, int(fields["Threads"]), tasks)
