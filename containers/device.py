"""One device of a scenario, inside its container: slows its links, runs its agent, plays its part.

What it has to do is JSON in the environment variable TESTBED_PLAN, made by `scripts/testbed
compose`. All devices write their events into a folder that they share. The timeline begins when all
starters have done a step together, and each device sees that for itself in these files, so no
process has to direct them.

This module uses the standard library alone, because it is copied into the image by itself. Every
wait has a limit, so that a container always ends. The exit status is the agent's, except that it is
0 if the timeline killed the agent, and 2 if nothing could be started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

PLAN_VARIABLE = "TESTBED_PLAN"
# How many seconds may pass until all starters have done a step together: containers start slowly.
BEGIN_S = 180.0
# How many seconds the agent may take to end after Ctrl+C, before it is killed.
LEAVE_S = 60.0
# How many seconds pass between two looks at a condition that is waited for.
POLL_S = 0.02
# How many seconds a command such as `tc` may take.
COMMAND_S = 30.0

# Input for the commands that shape links: "ip" (lines), "tc" (lines for kernels with netem under
# "netem" and for others under "plain") and "gate" (rules of iptables); each may be missing.
Shaping = dict[str, Any]


class Refusal(Exception):
    """The device cannot start; the message is for the user."""


class Asked(Exception):
    """The device was told to end, by SIGINT or SIGTERM."""


def say(text: str) -> None:
    """Print one line for the user."""
    print(f"device: {text}", flush=True)


def run(*command: str, text: str = "") -> str:
    """Run a command with `text` as its input, and return its output.

    Raises `Refusal`, with what the command said, if it fails.
    """
    try:
        ended = subprocess.run(
            command, input=text, capture_output=True, text=True, check=False, timeout=COMMAND_S
        )
    except OSError as error:
        raise Refusal(f"{command[0]}: {error.strerror}") from None
    if ended.returncode != 0:
        raise Refusal(f"{' '.join(command)}: {' '.join(ended.stderr.split())}")
    return ended.stdout


def has_netem() -> bool:
    """Return whether this kernel can delay packets, by trying it on the loopback device."""
    try:
        run("tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
    except Refusal:
        return False
    run("tc", "qdisc", "del", "dev", "lo", "root")
    return True


def trained(events: Path, members: int) -> bool:
    """Return whether at least `members` did the last step in a file of events."""
    try:
        lines = events.read_bytes().split(b"\n")[:-1]  # the last line may still be written to
    except FileNotFoundError:
        return False
    for line in reversed(lines):
        event = json.loads(line)
        if event["event"] == "step":
            return bool(event["members"] >= members)
    return False


class Device:
    """One device, from its start to its end.

    `kind` says which of the settings for `tc` this kernel can use, `lives` counts how often the
    agent was started, and `killed` says that the timeline has killed it.
    """

    def __init__(self, plan: dict[str, Any], folder: Path) -> None:
        """Take the `plan` of this device and the `folder` that all devices share."""
        self.plan = plan
        self.node = str(plan["node"])
        self.folder = folder
        self.agent: subprocess.Popen[bytes] | None = None
        self.lives = 0
        self.killed = False
        self.kind = "plain"

    def play(self) -> int:
        """Play the device's part from beginning to end; return the exit status."""
        if (self.folder / f"{self.node}.events.jsonl").exists():
            raise Refusal(f"a former run has left its files in {self.folder}: remove them first")
        self.prepare()
        try:
            if self.node in self.plan["starters"]:
                self.start()
            if not self.wait(self.all_train, BEGIN_S):
                say(f"the starters did not train together in {BEGIN_S:g} s")
                self.leave()
                return 2
            self.timeline(time.monotonic())
        except Asked:
            say("asked to end")
        return self.leave()

    def prepare(self) -> None:
        """Give the links their rates, delays and losses; raise `Refusal` if that is impossible."""
        if has_netem():
            self.kind = "netem"
        elif self.plan["delays"] and not self.plan["rate_only"]:
            raise Refusal(
                "the scenario asks for delay or loss, and this kernel has no netem: load it "
                "(modprobe sch_netem), or make the file with --rate-only"
            )
        elif self.plan["delays"]:
            say("this kernel has no netem: links have their rates, but no delay and no loss")
        device = str(self.plan["device"])
        if "noqueue" not in run("tc", "qdisc", "show", "dev", device, "root"):
            run("tc", "qdisc", "del", "dev", device, "root")
        if self.kind == "netem":  # or one delayed or lost packet would be a whole burst of TCP's
            run("ip", "link", "set", "dev", device, "gso_max_segs", "1")
        if not run("ip", "route", "show", "default"):  # multicast (mDNS) needs a default route
            run("ip", "route", "add", "default", "dev", device)
        self.shape(self.plan["shaping"])

    def shape(self, shaping: Shaping) -> None:
        """Change the links as `shaping` says."""
        if lines := shaping.get("ip"):
            run("ip", "-batch", "-", text="\n".join(lines) + "\n")
        if lines := shaping.get("tc", {}).get(self.kind):
            run("tc", "-batch", "-", text="\n".join(lines) + "\n")
        if gate := shaping.get("gate"):
            run("iptables-restore", "--noflush", text=gate)

    # --- the agent ----------------------------------------------------------------------------

    def start(self) -> None:
        """Start the agent; each life of it has a name and a file of events of its own."""
        self.lives += 1
        self.killed = False
        name = self.node if self.lives == 1 else f"{self.node}-{self.lives}"
        home = self.folder / self.node
        home.mkdir(exist_ok=True)
        files = ["--events", str(self.folder / f"{name}.events.jsonl")]
        files += ["--save", str(home / "model.safetensors")]
        words = [str(word) for word in self.plan["command"]]
        split = words.index("--") if "--" in words else len(words)
        command = [sys.executable, "-P", "-m", "edgeagent", *words[:split], *files, *words[split:]]
        environment = {k: v for k, v in os.environ.items() if k != PLAN_VARIABLE}
        environment["EDGEAGENT_HOME"] = str(home)
        self.agent = subprocess.Popen(
            command,
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def running(self) -> bool:
        """Return whether the agent's process is there."""
        return self.agent is not None and self.agent.poll() is None

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to the agent and all that it has started: its whole session."""
        assert self.agent is not None
        for name in filter(str.isdecimal, os.listdir("/proc")):
            try:
                # The name of the program is in parentheses and may have spaces in it. Behind it the
                # fourth field is the session, whose number is that of the agent's process.
                fields = Path(f"/proc/{name}/stat").read_text(errors="replace")
                if int(fields.rpartition(")")[2].split()[3]) == self.agent.pid:
                    os.kill(int(name), number)
            except OSError:
                continue  # it has ended meanwhile

    def leave(self) -> int:
        """Have the agent leave if it still runs, and return the exit status.

        Whatever it leaves behind is killed.
        """
        if self.agent is None:
            return 0
        try:
            if self.running:
                self.signal_all(signal.SIGCONT)  # the timeline may have stopped it
                self.agent.send_signal(signal.SIGINT)
                self.agent.wait(LEAVE_S)
        except (subprocess.TimeoutExpired, Asked):
            say("the agent does not end; it is killed")
        finally:
            self.signal_all(signal.SIGKILL)
            status = self.agent.wait()
        return 0 if self.killed else abs(status)

    # --- the timeline -------------------------------------------------------------------------

    def all_train(self) -> bool:
        """Return whether all starters have done a step together."""
        starters = self.plan["starters"]
        files = [self.folder / f"{starter}.events.jsonl" for starter in starters]
        return all(trained(path, len(starters)) for path in files)

    def wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Wait until `done()`, at most this many seconds; return whether it was."""
        deadline = time.monotonic() + seconds
        while not done():
            if (left := deadline - time.monotonic()) <= 0:
                return False
            time.sleep(min(POLL_S, left))
        return True

    def timeline(self, began: float) -> None:
        """Play this device's part of the timeline, which began at `began` of the monotonic clock.

        This returns when the scenario is over, or earlier if the agent has ended and no later line
        of the timeline starts it again.
        """
        say("all train; the timeline begins")
        steps = list(self.plan["timeline"])
        while steps:
            starts = any(step["do"] == "join" for step in steps)

            def over(starts: bool = starts) -> bool:
                return not starts and not self.running

            if self.wait(over, began + steps[0]["at_s"] - time.monotonic()):
                return
            self.do(steps.pop(0))
        self.wait(lambda: not self.running, began + self.plan["end_s"] - time.monotonic())

    def do(self, step: dict[str, Any]) -> None:
        """Do now what one line of the timeline says."""
        do = step["do"]
        say(f"-- {step['text']}")
        if do == "join":
            self.start()
        elif do == "shape":
            self.shape(step)
        elif not self.running:
            say(f"the agent had ended before {step['text']!r}")
        elif do in ("stop", "cont"):
            self.signal_all(signal.SIGSTOP if do == "stop" else signal.SIGCONT)
        else:
            assert self.agent is not None
            self.killed = do == "kill"
            self.agent.send_signal(signal.SIGKILL if self.killed else signal.SIGINT)


def main() -> int:
    """Play the plan; return the exit status."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Asked

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    try:
        return Device(json.loads(os.environ[PLAN_VARIABLE]), Path.cwd()).play()
    except Refusal as refusal:
        say(str(refusal))
        return 2
    except Asked:
        return 130


if __name__ == "__main__":
    sys.exit(main())
