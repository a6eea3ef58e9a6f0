"""What the transport's tests share: loops with leak checks, a recording agent, certificates.

No test sleeps to synchronise; it waits, for a bounded time, until something is true.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Sized
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import uvloop

from edgeagent.transport.api import Candidate, Link, PeerInfo, Standing
from edgeagent.transport.identity import Identity, load_identity
from edgeagent.transport.tcp import TcpTransport
from protocols.errors import RemoteProtocolError
from protocols.wire.bulk import BulkHeader, BulkKind

if TYPE_CHECKING:
    from edgeagent.recipe import Recipe
    from protocols.network.link_end import LinkEnd

T = TypeVar("T")

TOKEN = bytes(range(16))
OTHER_TOKEN = bytes(range(1, 17))
JOB = (("optimizer", "SGD"), ("lr", "0.1"), ("global_batch", "256"))
WAIT_SECONDS = 20.0
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def run(
    main: Callable[[], Coroutine[Any, Any, T]],
    loop_name: str = "asyncio",
    seconds: float = 60.0,
) -> T:
    """Run `main` on a fresh loop; fail if it leaks descriptors or tasks, or if anything reached
    the loop's exception handler."""
    gc.collect()
    surprises: list[str] = []

    async def guarded() -> T:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: surprises.append(str(context)))
        before = sockets()
        async with asyncio.timeout(seconds):
            result = await main()
            this = asyncio.current_task()
            await until(lambda: asyncio.all_tasks() == {this}, "no task is left")
            gc.collect()
            await until(lambda: sockets() <= before, "no socket is left")
        return result

    with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
        runner.run(_nothing())
        result = runner.run(guarded())
    gc.collect()
    assert surprises == []
    return result


async def _nothing() -> None:
    await asyncio.sleep(0)


def sockets() -> set[str]:
    """Return the open sockets of this process."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return {name for name in found if name.startswith("socket:")}


async def until(true: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Wait until `true()`; fail with `what` after `seconds`."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not true():
        assert loop.time() < end, f"did not come true: {what}"
        await asyncio.sleep(0.002)


async def until_count(items: Sized, count: int, what: str) -> None:
    """Wait until `items` has at least `count` entries."""
    await until(lambda: len(items) >= count, what)


@dataclass
class Agent:
    """A recording `LinkListener` and `AdmissionPolicy` with a transport of its own."""

    name: str
    identity: Identity
    token: bytes = TOKEN
    cluster: str = "room"
    incarnation: int = 1
    job_fields: tuple[tuple[str, str], ...] | None = JOB
    script_digests: bytes = b""
    recipe_told: Recipe | None = None
    lines: list[str] = field(default_factory=list)
    ups: list[Link] = field(default_factory=list)
    downs: list[tuple[Link, str, LinkEnd]] = field(default_factory=list)
    frames: list[bytes] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    payloads: list[tuple[BulkHeader, bytes]] = field(default_factory=list)
    heard: tuple[str, ...] = ()
    barred: bytes = b""
    drop_bulk: bool = False
    refuse_frame: bytes = b"\xffbad"
    join_addresses: tuple[str, ...] = ()
    on_arriving: Callable[[BulkHeader], memoryview | None] | None = None
    on_bulk: Callable[[Link, BulkHeader], None] | None = None

    def __post_init__(self) -> None:
        self._target = memoryview(b"")
        self.transport = TcpTransport(
            self.identity,
            self.incarnation,
            self.token,
            self.cluster,
            self.name,
            self,
            self,
            self.lines.append,
        )

    async def start(self, listen: str = "127.0.0.1:0") -> None:
        """Start the transport."""
        self.join_addresses = await self.transport.start(listen)

    @property
    def me(self) -> PeerInfo:
        """This agent's info."""
        return self.transport.me

    # LinkListener

    def link_up(self, link: Link) -> None:
        self.ups.append(link)

    def link_down(self, link: Link, reason: str, why: LinkEnd) -> None:
        self.downs.append((link, reason, why))

    def control_received(self, link: Link, frame: bytes) -> None:
        if frame == self.refuse_frame:
            raise RemoteProtocolError("a frame nobody understands")
        self.frames.append(frame)

    def bulk_arriving(self, link: Link, header: BulkHeader) -> memoryview | None:
        if self.on_arriving is not None:
            return self.on_arriving(header)
        if self.drop_bulk:
            return None
        self._target = memoryview(bytearray(header.length))
        return self._target

    def bulk_received(self, link: Link, header: BulkHeader) -> None:
        if self.on_bulk is not None:
            self.on_bulk(link, header)
            return
        self.payloads.append((header, bytes(self._target)))

    # AdmissionPolicy

    def job(self) -> tuple[tuple[str, str], ...] | None:
        return self.job_fields

    @property
    def recipe(self) -> Recipe | None:
        return self.recipe_told

    def script(self) -> bytes:
        return self.script_digests

    def standing(self) -> Standing:
        return Standing(self.me, "member", 512, 1, bytes(16), self.identity.node, ())

    def heard_of(self, addresses: tuple[str, ...]) -> None:
        self.heard = addresses

    def bars(self, node: bytes) -> bool:
        return node == self.barred

    def admitted(self, candidate: Candidate) -> None:
        self.candidates.append(candidate)
        self.transport.trust(candidate.peer.certificate)

    def live(self) -> list[Link]:
        """Return the links that are up."""
        gone = [link for link, _, _ in self.downs]
        return [link for link in self.ups if link not in gone]


_identities: dict[str, Identity] = {}


def identity(name: str) -> Identity:
    """Return a key of its own for each name, made once."""
    if name not in _identities:
        folder = tempfile.mkdtemp(prefix="edgeagent-test-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _identities[name] = load_identity(folder)
    return _identities[name]


def agent(name: str, **options: Any) -> Agent:
    """Return an agent of that name."""
    return Agent(name, options.pop("identity", None) or identity(name), **options)


def pair_by_id(first: str = "anna", second: str = "ben") -> tuple[str, str]:
    """Return the two names, the one with the smaller node id first."""
    names = sorted((first, second), key=lambda name: identity(name).node)
    return names[0], names[1]


async def with_agents(
    body: Callable[..., Awaitable[T]], *agents: Agent, listen: str = "127.0.0.1:0"
) -> T:
    """Start the agents, trusting each other, run `body` on them, stop them."""
    for one in agents:
        await one.start(listen)
        for other in agents:
            if other is not one and other.identity.node != one.identity.node:
                one.transport.trust(other.identity.certificate)
    try:
        return await body(*agents)
    finally:
        await asyncio.gather(*(one.transport.stop() for one in agents))


def header(length: int, index: int = 0, kind: BulkKind = BulkKind.SHARD) -> BulkHeader:
    """Return a bulk header for a payload of `length` bytes."""
    return BulkHeader(kind, bytes(16), 1, 1, 0, 0, index, length)


def changed(info: PeerInfo, **values: Any) -> PeerInfo:
    """Return `info` with other values."""
    return replace(info, **values)
