"""Hosts on one virtual loop: each is a real `Shell` with a stand-in for its trainer.

A host does what `agent.py` does around a shell, and no more. Everything follows from the seed.
"""

from __future__ import annotations

import asyncio
import hashlib
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgeagent import handover
from edgeagent.dataplane.shards import state_digest
from edgeagent.event_file import EventWriter
from edgeagent.network import member_of
from edgeagent.observer import Observer
from edgeagent.shell import Options, Owner, Shell
from edgeagent.terminal.console import Console, JoinLine, TrainingLine
from edgeagent.transport.api import PeerInfo
from protocols.scheduler.join_cost import JoinWay
from tests.simulation.virtual.loop import VirtualLoop
from tests.simulation.virtual.network import Wires
from tests.simulation.virtual.trainer import StandIn, expected_state, meta

if TYPE_CHECKING:
    from protocols.cluster.view import Member

POLL_S = 0.003
REJOIN_SECONDS = 0.5


class Recorder(EventWriter):
    """Keeps the events, with the virtual time of each."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__("")
        self._now = clock
        self.events: list[dict[str, Any]] = []

    def write(self, event: str, **values: Any) -> None:
        self.events.append({"t": self._now(), "event": event, **values})


class Silence(Console):
    """Shows nothing."""

    def __init__(self) -> None: ...

    def say(self, text: str) -> None: ...

    def training(self, line: TrainingLine) -> None: ...

    def joining(self, line: JoinLine) -> None: ...


class Host:
    """One device."""

    def __init__(self, world: World, number: int) -> None:
        certificate = b"certificate of n%d" % number
        node = hashlib.sha256(certificate).digest()
        self.name = f"n{number}"
        self.me = PeerInfo(node, 1, self.name, (f"10.0.0.{number}:1",), certificate)
        self.world = world
        self.network = world.wires.connect(self.me)
        self.trainer = StandIn(world.wires.random, world.steps, apart=number % 2 == 0)
        self.trainer.streams = number % 3 == 0
        self.recorder = Recorder(world.loop.time)
        observer = Observer(self.name, "sim", self.recorder, Silence(), world.loop.time)
        self.gone: str | None = None
        self.joins_failed: list[str] = []
        self.founds_again = False  # it founds after a failed join, if its state is still its own
        self.sponsor: Host | None = None
        self.leaving = False
        self.tokens: list[bytes] = []  # new tokens, in the order in which it took them over
        owner = Owner(
            self.trainer.receive,
            self._departed,
            self._join_failed,
            lambda _reason: None,
            self.tokens.append,
            world.spawn,
        )
        hello, memory = self.trainer.hello(), self.trainer.memory
        me = member_of(self.me)
        options = Options(join_way=world.join_way, wait_for=world.wait_for)
        self.shell = Shell(me, hello, memory, self.network, observer, owner, options)
        self.network.listener = self.shell
        self.trainer.say = self.shell.trainer.received

    def found(self) -> None:
        """Found a cluster."""
        lineage = hashlib.sha256(self.me.node).digest()[:16]
        self.shell.found(lineage, self.me.incarnation)

    def join(self, sponsor: Host) -> None:
        """Join through `sponsor`, as if it had admitted this host."""
        self.sponsor = sponsor
        sponsor.network.trust(self.me.certificate)
        self.network.trust(sponsor.me.certificate)
        for member in sponsor.members:
            self.network.trust(member.certificate)
        self.shell.join(member_of(sponsor.me), self.me.incarnation)

    def leave(self) -> None:
        """Leave, as after Ctrl+C."""
        self.leaving = True
        if self.shell.node is None:
            self._departed("left", "")
            return
        self.trainer.receive(handover.LeaveAsked())
        self.shell.leave()

    def kill(self) -> None:
        """Kill agent and trainer, as `kill -9` does."""
        self.gone = "killed"
        self.trainer.die()
        self.network.die()
        self.shell.node = None
        self.world.spawn(self.shell.close())

    def fall_silent(self, other: Host) -> None:
        """Let nothing pass between this host and `other` any more."""
        self.network.links[other.me.node].silent = True
        other.network.links[self.me.node].silent = True

    def lose_trainer(self) -> None:
        """Let the trainer die, which the agent notices at once."""
        self.leaving = True
        self.trainer.die()
        self.shell.orphaned()

    def give_way(self, sponsor: Host) -> None:
        """Join another cluster, as soon as the trainer is idle."""
        self.sponsor = sponsor
        self.shell.give_way()

    @property
    def members(self) -> tuple[Member, ...]:
        """The members in its policy in force."""
        policy = self.shell.node.context.policy if self.shell.node else None
        return policy.view.members if policy is not None else ()

    @property
    def is_member(self) -> bool:
        """Whether it is a member itself."""
        node = self.shell.node
        return self.gone is None and node is not None and node.context.is_member

    @property
    def edges(self) -> int:
        """How many links its policy in force has."""
        policy = self.shell.node.context.policy if self.shell.node else None
        return len(policy.view.edges) if policy is not None else 0

    @property
    def share(self) -> int:
        """How many micro-batches it computes of each iteration."""
        policy = self.shell.node.context.policy if self.shell.node else None
        return len(policy.micro_batches(self.me.node)) if policy is not None else 0

    @property
    def leads(self) -> bool:
        """Whether it is the scheduler."""
        node = self.shell.node
        return self.is_member and node is not None and node.context.election.leads

    def all(self, event: str) -> list[dict[str, Any]]:
        """Return its events of one kind."""
        return [e for e in self.recorder.events if e["event"] == event]

    def _departed(self, why: str, message: str) -> None:
        if why == "yielded" and self.sponsor is not None:
            self.join(self.sponsor)
            return
        assert self.gone is None, f"{self.name} departs twice: {self.gone}, {why}"
        self.gone = message if why == "error" else why
        self.world.spawn(self._depart())

    def _join_failed(self, reason: str, _pause_s: float, _stands_by: bool) -> None:
        self.joins_failed.append(reason)
        if self.gone is None and self.leaving:
            self._departed("left", "")
        elif self.gone is None:
            self.world.spawn(self._join_again())

    async def _join_again(self) -> None:
        await self.shell.drop_links()
        await asyncio.sleep(REJOIN_SECONDS)
        if self.founds_again and not self.shell.spoilt:
            self.found()
            return
        members = [host for host in self.world.hosts if host.is_member]
        if members and self.gone is None:
            self.join(members[0])
        elif self.gone is None:
            self._departed("nobody left", "")

    async def _depart(self) -> None:
        await self.shell.close()
        self.network.gone = True


@dataclass
class Ended:
    """What is left when a story has ended."""

    hosts: list[Host]
    trace: list[dict[str, Any]]


class World:
    """All hosts of a story."""

    def __init__(self, seed: int, steps: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.wires = Wires(seed)
        self.random = self.wires.random
        self.steps = steps
        self.hosts: list[Host] = []
        self.broken: list[str] = []
        self.join_way = JoinWay.PAUSE  # of hosts that are added from now on
        self.wait_for = 1  # the same
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.loop.set_exception_handler(self._complain)

    def host(self) -> Host:
        """Add a device."""
        host = Host(self, len(self.hosts))
        self.hosts.append(host)
        return host

    async def cluster(self, count: int) -> list[Host]:
        """Add a cluster of `count`, all of them members."""
        first = self.host()
        first.found()
        hosts = [first]
        for _ in range(count - 1):
            joiner = self.host()
            joiner.join(first)
            hosts.append(joiner)
        await self.until(lambda: all(host.is_member for host in hosts))
        return hosts

    async def until(self, done: Callable[[], bool], most: float = 120.0) -> None:
        """Let time pass until `done()`; fail after `most` virtual seconds."""
        end = self.loop.time() + most
        while not done():
            assert not self.broken, self.broken[0]
            assert self.loop.time() < end, f"no progress: {self.describe()}"
            await asyncio.sleep(POLL_S)
        assert not self.broken, self.broken[0]

    async def passes(self, seconds: float) -> None:
        """Let so many virtual seconds pass."""
        end = self.loop.time() + seconds
        await self.until(lambda: self.loop.time() >= end)

    async def finish(self) -> None:
        """Run to the end; check the states of all hosts that finished, and all digests."""
        await self.until(lambda: all(host.gone is not None for host in self.hosts))
        await asyncio.gather(*self._tasks)
        assert not self.broken, self.broken[0]
        finished = [host for host in self.hosts if host.gone == "steps"]
        assert finished
        for host in finished:
            assert host.trainer.iteration == self.steps
            assert host.trainer.state == expected_state(self.steps)
        for host in self.hosts:
            for e in host.all("digest"):
                i = e["iteration"]
                assert e["state"] == state_digest(memoryview(expected_state(i)), meta(i))

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start a task; its failure fails the test."""
        task = self.loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._task_done)
        return task

    def describe(self) -> str:
        """Return where each host stands, for messages of failures."""
        lines = [f"at {self.loop.time():.3f}"]
        for host in self.hosts:
            if (node := host.shell.node) is not None:
                lines.append(
                    f"{host.name}: {node.cycle.state} i={node.context.iteration} gone={host.gone} "
                    f"join={node.joining.state if node.joining else '-'} "
                    f"policy={node.context.policy.key if node.context.policy else None} "
                    f"role={node.context.election.state} failed={host.joins_failed}"
                )
        return "\n".join(lines)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken.append("".join(traceback.format_exception(error)))

    def _complain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        text = "".join(traceback.format_exception(error)) if error else str(context)
        self.broken.append(text)


Story = Callable[[World], Coroutine[None, None, None]]


def play(story: Story, seed: int, *, steps: int = 90) -> Ended:
    """Run a story on a virtual loop until its last host has ended."""

    async def run() -> Ended:
        world = World(seed, steps)
        await story(world)
        await world.finish()
        trace = [e | {"host": host.name} for host in world.hosts for e in host.recorder.events]
        return Ended(world.hosts, trace)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())
