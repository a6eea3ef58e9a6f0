"""The stage on which a case of `scripts/bench trouble` is played: a few real agents, on loopback or
in namespaces of their own, and what can be done to them.

Every wait is bounded. What has not happened in time is noted beside the figures, since this is what
the benchmark is about. All processes that were started are ended, by their pids. The agents may
come from another checkout than the stage.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from edgeagent.launch import module_command
from tests.scenarios import histories
from tests.scenarios.cluster import POLL_S, SCRIPTS, Agent, Cluster
from tests.scenarios.failure_times import usual_step
from tests.scenarios.processes import kill_session
from tests.testbed.bench import trouble_figures as figures
from tests.testbed.namespaces import TestbedError, ip
from tests.testbed.network import SWITCH, Network
from tests.testbed.shaping import DEVICE, UNSHAPED, Link

SCRIPT = str(SCRIPTS / "troubled.py")
GLOBAL_BATCH = 64  # of the script that the agents train with
QUIET_STEPS = 22  # steps before the trouble; their median is the usual step
SETTLED_STEPS = 25  # steps after the trouble, with two digests at least
FIRST_END_S = 25.0  # within which an agent must end after Ctrl+C
SECOND_END_S = 10.0  # within which it must end after the second Ctrl+C
MAX_LINES = 60
MOST_BYTES = 1200  # of a packet that passes on a path that swallows large ones
LOSS = 0.05  # part of the packets that a lossy link loses
REJECTS = {
    "rst": "-p tcp ! --tcp-flags RST RST -j REJECT --reject-with tcp-reset",
    "reject": "-p tcp -j REJECT --reject-with icmp-port-unreachable",
    "drop": "-p tcp -j DROP",
    "mtu": f"-p tcp -m length --length {MOST_BYTES + 1}:65535 -j DROP",
    "loss": f"-m statistic --mode random --probability {LOSS:g} -j DROP",
}
CONNECTION = re.compile(r"\S+ +\S+ +\S+:(\d+) +\S+:(\d+)")  # of a line of `ss`
BYTES = re.compile(r"bytes_(?:acked|received):(\d+)")
ONE_WAY = "one-way"  # what the first agent sends does not arrive, the other way is well
OFFLINE = "offline"  # the second one's cable is unplugged


class Room(Cluster):
    """A cluster whose agents run the code of `tree`, in the namespaces of `net` if there is one."""

    def __init__(self, folder: Path, tree: Path, net: Network | None, case: Case) -> None:
        options = (*case.options, "--cluster", "trouble")
        super().__init__(folder, job=SCRIPT, options=options)
        self.tree = tree
        self.net = net
        self.moves = case.moves

    def environment(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of what is started, which finds the package in `tree`."""
        return {**super().environment(settings), "PYTHONPATH": str(self.tree)}

    def start(self, name: str, *options: str, **settings: Any) -> Agent:
        """Start an agent whose trouble can be ordered."""
        words = [str(self.folder / f"{name}.trouble"), *settings.pop("script", ())]
        if self.net is not None:
            settings["listen"] = f"{'0.0.0.0' if self.moves else self.net.address(name)}:0"
        return super().start(name, *options, script=words, **settings)

    def launch(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path | None = None,
        *,
        fresh: bool = False,
    ) -> Agent:
        """Start `command` where `name` lives."""
        if self.net is not None:
            command = self.net.command(name, command)
        return super().launch(name, command, environment, folder, fresh=fresh)


def check_tree(tree: Path) -> None:
    """Raise `TestbedError` unless agents that are started for `tree` would run its code."""
    command = [
        *module_command("edgeagent")[:2],
        "-c",
        "import edgeagent; print(edgeagent.__file__)",
    ]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if not Path(ended.stdout.strip() or "/").is_relative_to(tree):
        raise TestbedError(f"{tree} is no checkout of edgeagent: {ended.stdout.strip()}")


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of trouble: which agents there are, which are observed, and what happens.

    `victim`: the agent that it happens to, "" for a link between two. `others`: the agents whose
    steps are timed. `newcomer`: who joins in mid-case. `rate`: bytes/s of each link between
    namespaces. `moves`: an agent's address changes, so all listen at every address they have.
    """

    name: str
    title: str
    do: Callable[[Stage], None]
    names: tuple[str, ...] = ("alice", "bob")
    others: tuple[str, ...] = ("alice",)
    victim: str = "bob"
    options: tuple[str, ...] = ()
    script: tuple[str, ...] = ()
    in_namespaces: bool = False
    newcomer: str = ""
    rate: float = UNSHAPED
    moves: bool = False

    @property
    def all_names(self) -> tuple[str, ...]:
        """All agents that train together at the end."""
        return (*self.names, self.newcomer) if self.newcomer else self.names


@dataclass(slots=True)
class Outcome:
    """What a case cost; all times are in seconds. `stood`: the longest time between two steps of
    the others. `stood_on`: their next step had not come when the case was over. `back`: from the
    end of the trouble until its victim trained with all others again."""

    case: str
    stood: float = 0.0
    stood_on: bool = False
    usual: float = 0.0
    back: float | None = None
    set_aside: int = 0
    digests: int = 0
    equal: int = 0
    files: list[str] = field(default_factory=list)
    statuses: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    said: dict[str, list[str]] = field(default_factory=dict)


class Stage:
    """Agents that train together until a case gets them into trouble."""

    def __init__(self, case: Case, room: Room) -> None:
        self.case = case
        self.room = room
        self.outcome = Outcome(case.name)
        self.began = 0.0
        self._over = 0.0
        self._said: dict[str, int] = {}
        self.dead: list[str] = []  # agents that were killed on purpose

    @property
    def agents(self) -> dict[str, Agent]:
        """All that were started, by name."""
        return {agent.name: agent for agent in self.room.agents}

    # --- what a case does -----------------------------------------------------------------------

    def gather(self) -> None:
        """Start all, and have them train together for a while."""
        self.room.together(*self.case.names, script=self.case.script)
        for agent in self.agents.values():
            agent.wait_steps(QUIET_STEPS)
        self.outcome.usual = max(usual_step(self.agents[name]) for name in self.case.others)
        self._said = {name: len(agent.log) for name, agent in self.agents.items()}
        self.began = time.time()

    def join(self) -> None:
        """Start the newcomer, which shall train with the others from now on."""
        self.began = time.time()
        first = self.agents[self.case.names[0]]
        self.room.start(self.case.newcomer, peers=[first], script=self.case.script)

    def order(self, name: str, words: str) -> None:
        """Have a training script get into trouble; return when it does."""
        path = self.room.folder / f"{name}.trouble"
        path.with_suffix(".new").write_text(words)
        path.with_suffix(".new").rename(path)
        self.began = time.time()
        self.watch(f"trouble of {name}", lambda: not path.exists(), 10.0)

    def over(self) -> None:
        """Note that the trouble has ended, so that all can train together again."""
        self._over = time.time()

    def watch(self, what: str, done: Callable[[], Any], seconds: float) -> bool:
        """Wait for `done()`; return whether it came in time, and note it if it did not."""
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                self.note(f"no {what} within {seconds:g} s")
                return False
            time.sleep(POLL_S)
        return True

    def note(self, text: str) -> None:
        """Add a remark to the figures."""
        self.outcome.notes.append(text)

    def together_again(self, seconds: float, count: int = SETTLED_STEPS) -> None:
        """Wait until all train together again, and for some steps more."""
        if self.watch("training together", self._all_back, seconds):
            self.steps(*self.case.all_names, seconds=30.0, count=count)

    def _all_back(self) -> bool:
        return all(self._back(name) is not None for name in self.case.all_names)

    def _back(self, name: str) -> float | None:
        events, size = self.agents[name].update(), len(self.case.all_names)
        return figures.back(name, events, self.began, self._over, size) if self._over else None

    def steps(self, *names: str, seconds: float, count: int = SETTLED_STEPS) -> None:
        """Wait for so many steps more of each of these."""
        for name in names:
            agent = self.agents[name]
            last = agent.iteration + count

            def done(agent: Agent = agent, last: int = last) -> bool:
                return agent.iteration >= last or not agent.running

            self.watch(f"{count} steps of {name}", done, seconds)

    def command(self, *words: str) -> None:
        """Run another edgeagent command; note its status and how long it took."""
        started = time.monotonic()
        try:
            status = str(self.room.command(*words).returncode)
        except subprocess.TimeoutExpired:
            status = "none"
        took = time.monotonic() - started
        self.note(f"`edgeagent {' '.join(words)}`: status {status} after {took:.1f} s")

    def ends(self, name: str, seconds: float) -> None:
        """Wait for the end of an agent; note how long it took."""
        started = time.monotonic()
        if self.watch(f"end of {name}", lambda: not self.agents[name].running, seconds):
            self.note(f"{name} ended after {time.monotonic() - started:.1f} s")

    @contextlib.contextmanager
    def spoilt(self, kind: str) -> Iterator[None]:
        """While the block runs, have packets between the first two agents reset, rejected, dropped
        or swallowed if large, or have the cables of both (or that of the second one) unplugged, as
        `kind` says."""
        names = self.case.all_names[:2]
        with contextlib.ExitStack() as stack:
            for name in names[1:] if kind in (ONE_WAY, OFFLINE) else names:
                stack.callback(partial(self._filter, name, kind, False))
                self._filter(name, kind, True)
            yield

    def _filter(self, name: str, kind: str, on: bool) -> None:
        net = self.room.net
        assert net is not None
        if kind in ("cable", OFFLINE):
            port = f"port{net.nodes.index(name)}"
            ip(net.owner.namespace(SWITCH), f"link set {port} {'down' if on else 'up'}")
            return
        rule = REJECTS["drop" if kind == ONE_WAY else kind]
        self._filter_by(name, rule, on)

    def _filter_by(self, name: str, rule: str, on: bool) -> None:
        assert self.room.net is not None
        words = ["iptables", "-I" if on else "-D", "INPUT", *rule.split()]
        subprocess.run(self.room.net.command(name, words), check=True, capture_output=True)

    def cut_busiest(self, name: str) -> None:
        """From now on drop what arrives at `name` on the TCP connection that has carried most."""
        assert self.room.net is not None
        listing = subprocess.run(
            self.room.net.command(name, ["ss", "-tinOH", "state", "established"]),
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        found = [CONNECTION.match(line) for line in listing.splitlines()]
        carried = {m: sum(map(int, BYTES.findall(m.string))) for m in found if m is not None}
        busiest = max(carried, key=lambda m: carried[m])
        ours, theirs = busiest.groups()
        self._filter_by(name, f"-p tcp --dport {ours} --sport {theirs} -j DROP", True)

    def move(self, name: str, host: str) -> None:
        """Give `name` another address, and take its old one away."""
        net = self.room.net
        assert net is not None
        old = net.address(name)
        new = old.rpartition(".")[0] + "." + host
        ip(
            net.namespace(name),
            f"address del {old}/24 dev {DEVICE}",  # first: the others of its network go with it
            f"address add {new}/24 brd + dev {DEVICE}",
        )

    # --- what came of it ------------------------------------------------------------------------

    def finish(self) -> Outcome:
        """Have all agents leave as a user does, the one in trouble first; return what it cost."""
        found, ended = self.outcome, time.time()
        for name in self.case.others:
            stood, on = figures.longest_stand(self.agents[name].update(), self.began, ended)
            if stood > found.stood:
                found.stood, found.stood_on = stood, on
        if self._over:
            times = [
                self._back(name)
                for name in ([self.case.victim] if self.case.victim else self.case.all_names)
            ]
            known = [t for t in times if t is not None]
            found.back = max(known) if len(known) == len(times) else None
        staying = [name for name, agent in self.agents.items() if agent.running]
        for name in sorted(staying, key=lambda name: name != self.case.victim):
            found.statuses[name] = self._see_off(self.agents[name])
        for name, agent in self.agents.items():
            if name not in found.statuses:
                status = agent.process.poll()
                found.statuses[name] = "killed on purpose" if name in self.dead else str(status)
            lines = agent.log[self._said.get(name, 0) :].splitlines()
            found.said[name] = [line for line in lines if line.startswith("edgeagent")][:MAX_LINES]
        self._judge(staying)
        return found

    def _see_off(self, agent: Agent) -> str:
        for text, seconds in (("", FIRST_END_S), (" after a second Ctrl+C", SECOND_END_S)):
            agent.signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return f"{agent.process.wait(seconds)}{text}"
        kill_session(agent.process.pid)
        agent.process.wait()
        return "had to be killed"

    def _judge(self, staying: Sequence[str]) -> None:
        lives = {name: agent.update() for name, agent in self.agents.items()}
        found = self.outcome
        found.set_aside = sum(figures.set_aside(events) for events in lives.values())
        found.digests, found.equal = figures.digests(lives)
        found.files = sorted(path.name for path in self.room.folder.glob("*.safetensors"))
        may_fork = "pause" not in self.case.options
        found.problems = histories.check(lives, staying, GLOBAL_BATCH, may_fork=may_fork)


def play(case: Case, tree: Path, folder: Path) -> Outcome:
    """Play a case with agents of `tree`; return what it cost.

    Raises `TestbedError` if it needs namespaces and there are none, AssertionError if the agents
    did not even come to train together.
    """
    with contextlib.ExitStack() as stack:
        net = (
            stack.enter_context(Network(case.all_names, default=Link(case.rate)))
            if case.in_namespaces
            else None
        )
        if net is not None:
            for (
                name
            ) in case.all_names:  # send single frames, as on a cable, so that lengths are true
                ip(net.namespace(name), f"link set dev {DEVICE} gso_max_segs 1")
        room = Room(folder, tree, net, case)
        stack.enter_context(room)
        stage = Stage(case, room)
        stage.gather()
        case.do(stage)
        return stage.finish()
