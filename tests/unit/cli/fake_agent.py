"""Stands in for `edgeagent run digits` in the tests of the demo: writes events, trains nothing.

Law: it waits only for what the other fakes write, with a bound on every wait. `wrong` names one
thing to do wrong.
"""

from __future__ import annotations

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


class FakeAgent:
    """One fake; its siblings' files lie beside its own."""

    def __init__(self, name: str, steps: int, folder: Path, wrong: str) -> None:
        self.name = name
        self.steps = steps
        self.folder = folder
        self.wrong = wrong
        self.asked = False

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
            time.sleep(0.005)

    def join(self) -> None:
        """Say that it is in; dave pulled from two."""
        self.write("started", node=self.name, address="127.0.0.1:1")
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
            if iteration == self.steps * 2 // 3 and self.wrong != "too fast":
                self.wait_for(text='"joined"', names=("dave",))
            if iteration == self.steps and self.wrong != "too fast":
                self.wait_for(text='"left"')
            if self.asked:
                break
            step = {"iteration": iteration, "loss": 1 / iteration, "samples": 64, "members": 3}
            self.write("step", **step, compute_s=0.0, sync_s=0.0, stall_s=0.0)
            if iteration % 10 == 0:
                bad = self.wrong == "digest" and self.name == "bob"
                self.write("digest", iteration=iteration, state=f"{iteration}{bad}")

    def finish(self) -> None:
        """Say and save what the demo looks at."""
        if self.asked:
            self.write("left", iteration=0, seconds=0.01)
            return
        for name in NAMES:
            if '"left"' in self.read(name) and '"iteration": 0' in self.read(name):
                self.write("member_left", node=name, reason="leave", stall_s=0.002)
        accuracy = 0.5 if self.wrong == "accuracy" else 0.97
        self.write("evaluated", iteration=self.steps, name="accuracy", value=accuracy)
        bad = self.wrong == "file" and self.name == "bob"
        (self.folder / f"{self.name}.safetensors").write_bytes(b"bad" if bad else b"model")
        self.write("left", iteration=self.steps, seconds=0.01)

    def wait_for_ends(self) -> None:
        """Wait until all siblings are about to end."""
        deadline = time.monotonic() + WAIT_S
        while len(list(self.folder.glob("*.ended"))) < len(NAMES) - 1:
            if time.monotonic() > deadline:
                sys.exit(f"edgeagent: fake {self.name} waited in vain for the end")
            time.sleep(0.005)

    def read(self, name: str) -> str:
        """Return what a sibling wrote."""
        path = self.folder / f"{name}.events"
        return path.read_text() if path.exists() else ""

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
