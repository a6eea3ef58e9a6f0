"""Stands in for `edgeagent run digits` in the tests of the demo: writes events, trains nothing.

It waits only for what the other fakes write and for their death, and every wait is bounded. `wrong`
names one thing that it does wrong. In the story alice is the scheduler, carol leaves, and alice is
killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

NAMES = ("alice", "bob", "carol", "dave")
WAIT_S = 60.0
POLL_S = 0.005


class FakeAgent:
    """One fake agent; the files of the others are beside its own."""

    def __init__(self, name: str, steps: int, folder: Path, wrong: str) -> None:
        self.name = name
        self.steps = steps
        self.folder = folder
        self.wrong = wrong
        self.asked = False
        self.alive = open(folder / f"{name}.alive", "w")  # noqa: SIM115 - locked until its end
        fcntl.flock(self.alive, fcntl.LOCK_EX)

    def write(self, event: str, **values: Any) -> None:
        """Append one event."""
        with open(self.folder / f"{self.name}.events", "a", encoding="utf-8") as file:
            file.write(json.dumps({"t": time.time(), "event": event, **values}) + "\n")

    def wait_for(self, *, text: str, names: tuple[str, ...] = NAMES) -> None:
        """Wait until one of the siblings has written `text` (or this one was asked to leave)."""
        deadline = time.monotonic() + WAIT_S
        while not self.asked:
            for name in names:
                path = self.folder / f"{name}.events"
                if path.exists() and text in path.read_text():
                    return
            if time.monotonic() > deadline:
                sys.exit(f"edgeagent: fake {self.name} waited in vain for {text}")
            time.sleep(POLL_S)

    def wait_for_death(self, name: str) -> None:
        """Wait until a sibling that does not end by itself is gone."""
        deadline = time.monotonic() + WAIT_S
        with open(self.folder / f"{name}.alive", encoding="utf-8") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    return
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        sys.exit(f"edgeagent: fake {self.name} waited in vain for {name}'s death")
                    time.sleep(POLL_S)

    def join(self) -> None:
        """Write the events of its join; dave has pulled from two sources."""
        self.write("started", node=self.name, address="127.0.0.1:1")
        if self.name == "alice":
            self.write("scheduler", node="alice", term=1, why="founded")
        if self.name != "dave":
            self.write("joined", cluster="default", term=1, members=3, sources=[])
            return
        sources = [{"node": n, "bytes": 500, "seconds": 0.1} for n in ("alice", "bob")]
        if self.wrong == "one source":
            sources[1]["bytes"] = 0
        self.write("joined", bytes=1000, seconds=0.1, lower_bound_s=None, sources=sources)

    def train(self) -> None:
        """Step through the iterations, holding where the story needs the others."""
        start = self.steps // 3 + 1 if self.name == "dave" else 1
        for iteration in range(start, self.steps + 1):
            if self.wrong != "too fast":
                self.hold(iteration)
            if self.asked:
                break
            step = {"iteration": iteration, "loss": 1 / iteration, "samples": 64, "members": 3}
            self.write("step", **step, compute_s=0.0, sync_s=0.0, stall_s=0.0)
            if iteration % 10 == 0:
                bad = self.wrong == "digest" and self.name == "bob"
                self.write("digest", iteration=iteration, state=f"{iteration}{bad}")

    def hold(self, iteration: int) -> None:
        """Wait for what the story says happens before `iteration`, and write its events."""
        if iteration == self.steps // 2:
            self.wait_for(text='"joined"', names=("dave",))
        elif iteration == self.steps * 7 // 10:
            self.wait_for(text='"left"', names=("carol",))
            if not self.asked:
                self.write("member_left", node="carol", reason="leave", stall_s=0.002)
                if self.wrong != "no copies":
                    self.write("copies", survives=1)
        elif iteration == self.steps * 5 // 6:
            if self.name == "alice":
                self.wait_for(text="nobody writes this")
            self.wait_for_death("alice")
            self.outlive()

    def outlive(self) -> None:
        """Go on without alice."""
        clueless = self.wrong == "unseen" and self.name == "bob"
        if not clueless:
            self.write("link_down", node="alice")
        if self.wrong != "no heir":
            self.write("scheduler", node="bob", term=2, why="failed over")
        if not clueless:
            self.write("member_left", node="alice", reason="failure", stall_s=0.05)

    def finish(self) -> None:
        """Write the events and files that the demo checks at the end."""
        if self.asked:
            self.write("left", iteration=0, seconds=0.01)
            return
        accuracy = 0.5 if self.wrong == "accuracy" else 0.97
        self.write("evaluated", iteration=self.steps, name="accuracy", value=accuracy)
        bad = self.wrong == "file" and self.name == "bob"
        (self.folder / f"{self.name}.safetensors").write_bytes(b"bad" if bad else b"model")
        self.write("left", iteration=self.steps, seconds=0.01)

    def wait_for_ends(self) -> None:
        """Wait until all siblings but alice, who is killed, are about to end."""
        deadline = time.monotonic() + WAIT_S
        while len(list(self.folder.glob("*.ended"))) < len(NAMES) - 2:
            if time.monotonic() > deadline:
                sys.exit(f"edgeagent: fake {self.name} waited in vain for the end")
            time.sleep(POLL_S)

    def leave(self, number: int, frame: object) -> None:
        """Leave at the next step."""
        self.asked = True


def hang(folder: Path) -> NoReturn:
    """Ignore SIGTERM, start a child that does so too, say so, wait for SIGKILL."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], process_group=0)
    (folder / f"hangs-{os.getpid()}").touch()
    while True:
        signal.pause()


def main() -> None:
    """Play one agent: NAME STEPS FOLDER WRONG."""
    name, steps, folder, wrong = sys.argv[1:]
    if wrong == "hang":
        hang(Path(folder))
    agent = FakeAgent(name, int(steps), Path(folder), wrong)
    signal.signal(signal.SIGINT, agent.leave)
    if wrong == "crash" and name == "bob":
        print("edgeagent: bob has no luck", file=sys.stderr)
        sys.exit(1)
    agent.join()
    agent.train()
    agent.finish()
    if wrong == "late crash" and name == "dave":  # when all the others have ended
        agent.wait_for_ends()
        print("edgeagent: dave has no luck", file=sys.stderr)
        sys.exit(1)
    (agent.folder / f"{name}.ended").touch()


if __name__ == "__main__":
    main()
