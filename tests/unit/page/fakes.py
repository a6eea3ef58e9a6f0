"""A page without an agent: its server answers from a canned status, and remembers what was asked.

    python -m tests.unit.page.fakes

serves it until it is interrupted, with names that try to do harm, and prints its address.
"""

from __future__ import annotations

import asyncio
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from edgeagent.local.changes import ChangeStatus
from edgeagent.observer import Observer
from edgeagent.page.server import PageServer
from tests.simulation.virtual.world import Recorder, Silence
from tests.unit.cli.samples import link, member, pair, sample_status, waiting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgeagent.errors import EdgeAgentError
    from edgeagent.local.changes import TokenShown
    from edgeagent.local.status_model import PullStatus, Status

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
TURNED = "mal\u202elory\nroot"  # would turn the direction of writing, and break the line
TOKEN = "ea1-new-token"


class FakeHandler:
    """What an agent offers its page."""

    def __init__(self, status: Status) -> None:
        self.shown = status
        self.asked: list[tuple[object, ...]] = []
        self.refusal: EdgeAgentError | None = None

    def status(self) -> Status:
        """Return the canned status."""
        return self.shown

    def trace(self) -> Iterator[str]:
        """Return two lines."""
        return iter(('{"trace": 1}\n', "{}\n"))

    async def leave(self) -> None:
        """Remember that it was asked."""
        self.asked.append(("leave",))
        self.shown = {**self.shown, "phase": "leaving"}

    def change_link(self, asked: str, wanted: bool) -> ChangeStatus:
        """Begin, unless it is to be refused."""
        return self._begin(("link", asked, wanted))

    def expel(self, asked: str) -> ChangeStatus:
        """Begin, unless it is to be refused."""
        return self._begin(("expel", asked))

    def rotate_token(self) -> ChangeStatus:
        """The page has no button for it."""
        raise AssertionError

    def show_token(self) -> TokenShown:
        """The page never asks for it."""
        raise AssertionError

    def change(self, number: int) -> ChangeStatus | None:
        """All is done when it is asked about."""
        token = TOKEN if self.asked and self.asked[-1][0] == "expel" else ""
        return _change("done", token) if number == 7 else None

    def _begin(self, asked: tuple[object, ...]) -> ChangeStatus:
        if self.refusal is not None:
            raise self.refusal
        self.asked.append(asked)
        return _change("pending")


def _change(state: Any, token: str = "") -> ChangeStatus:
    return ChangeStatus(number=7, state=state, node="bob", text="", step=9, token=token)


def hostile_status() -> Status:
    """Return a status whose names and reasons try to do harm, while a device joins."""
    names = (HOSTILE, TURNED)
    pull: PullStatus = {
        "sources": [
            {"node": "alice", "bytes": 3_000_000, "seconds": 1.0, "mbit_s": 24.0},
            {"node": HOSTILE, "bytes": 1_000_000, "seconds": 1.0, "mbit_s": None},
        ],
        "bytes": 4_000_000,
        "total_bytes": 9_000_000,
        "seconds": 1.0,
        "seconds_left": 1.25,
    }
    times = ((7.0, 42.0, 8.0), (6.5, 32.5, 12.0), (None, None, None))
    members = [
        member(name, 5, me=name == "alice", scheduler=name == "alice", times=each)
        for name, each in zip(("alice", *names), times, strict=True)
    ]
    for number, one in enumerate(members):
        one["id"] = f"{number:02x}" * 32
    return sample_status(
        members=members,
        scheduler="alice",
        links=[link(HOSTILE, 0.42, 93.3, 47.1)],
        mesh=[pair("alice", HOSTILE, 0.42, 47.1, 93.3, in_tree=True), pair(HOSTILE, TURNED)],
        tree={"root": "alice", "parents": {HOSTILE: "alice", TURNED: HOSTILE}},
        reason=f"rooted at alice; {HOSTILE} is slow",
        waiting=waiting(node=HOSTILE, text=f"waiting for {HOSTILE}"),
        pending=[{"kind": "scale-out", "node": "dave", "phase": "pulling", "pull": pull}],
    )


class Served:
    """A page that is being served: `async with Served() as served`."""

    def __init__(self, status: Status | None = None, *, remote: bool = False) -> None:
        self.handler = FakeHandler(status or sample_status())
        self.remote = remote
        self.host = "127.0.0.1"  # where others reach this device

    async def __aenter__(self) -> Served:
        clock = asyncio.get_running_loop().time
        self.observer = Observer("alice", "default", Recorder(clock), Silence(), clock)
        self.folder = TemporaryDirectory(prefix="ea-")
        self.server = PageServer(self.handler, self.observer, self.folder.name, lambda: self.host)
        found = await self.server.open(remote=self.remote)
        self.url, self.fingerprint = found.url, found.fingerprint
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.server.close()
        self.folder.cleanup()

    @property
    def address(self) -> str:
        """The address of the page without its code, and without "/" at its end."""
        return self.url.partition("/#")[0]

    def step(self, iteration: int, loss: float | None = 1.0) -> None:
        """Tell the page of a step."""
        values = {"iteration": iteration, "loss": loss, "samples": 32, "members": 3}
        times = {"compute_s": 0.01, "sync_s": 0.01, "stall_s": 0.0}
        self.observer._write("step", **values, **times)


async def _serve() -> None:
    async with Served(hostile_status()) as served:
        print(served.url, flush=True)
        served.observer.say(f"{HOSTILE} has joined")
        for iteration in range(1, 1_000_000):
            served.step(iteration, 2.0 / iteration**0.3)
            await asyncio.sleep(0.02)


if __name__ == "__main__":
    asyncio.run(_serve())
