"""Contenders that only move the state: programs that serve it on members, and one that pulls it.

There is no training meanwhile, so only the pull is measured. A program reports by one line of JSON
on its standard output. One that ends without it has failed, and its last line on standard error is
the reason. The end of the turn ends everything that was started.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeagent.launch import module_command
from protocols.member.shard_sizes import shard_size
from tests.scenarios.processes import kill_session
from tests.testbed.agents import NOTHING, environment
from tests.testbed.bench import relay
from tests.testbed.bench.trial import JOINER, Failed, Outcome, Trial

if TYPE_CHECKING:
    from tests.testbed.network import Network

SPEAK_S = 120.0
POLL_S = 0.02
HERE = Path(__file__).resolve().parent
# Otherwise its shared memory has names, which remain after a process was killed.
HIVEMIND_VARIABLES = {"HIVEMIND_MEMORY_SHARING_STRATEGY": "file_descriptor"}
_ABSENT = re.compile(r"ModuleNotFoundError: No module named '([^']*)'")


class Stage:
    """Runs programs on nodes; leaving it ends them."""

    def __init__(self, net: Network, folder: Path) -> None:
        self._net = net
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._running:
            kill_session(process.pid)
            process.wait()

    def start(
        self, node: str, command: Sequence[str], variables: Mapping[str, str] = NOTHING
    ) -> Callable[[], dict[str, Any]]:
        """Start a program, with more variables of its environment; return a function that waits for
        its line and returns it."""
        place = self._folder / f"{node}-{len(self._running)}"
        place.mkdir()
        said, log = place / "said", place / "log"
        with said.open("wb") as output, log.open("wb") as errors:
            process = self._net.popen(
                node,
                command,
                cwd=place,
                env={**environment(place), **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
            )
        self._running.append(process)
        return lambda: _line(process, said, log)


def _line(process: subprocess.Popen[bytes], said: Path, log: Path) -> dict[str, Any]:
    deadline = time.monotonic() + SPEAK_S
    while True:
        ended = process.poll() is not None
        for line in said.read_text(errors="replace").splitlines(keepends=True):
            if line.endswith("\n"):
                with contextlib.suppress(ValueError):
                    return dict(json.loads(line))
        if ended:
            raise Failed(reason(log.read_text(errors="replace")))
        if time.monotonic() > deadline:
            raise Failed(f"no answer within {SPEAK_S:g} s")
        time.sleep(POLL_S)


def reason(log: str) -> str:
    """Return why a program ended, from what it printed on standard error."""
    lines = [line for line in log.splitlines() if line.strip()]
    if not lines:
        return "it ended without a word"
    if absent := _ABSENT.fullmatch(lines[-1]):
        return f"{absent[1]} is not installed for the Python that was to run it"
    return lines[-1]


def outcome(trial: Trial, result: Mapping[str, Any], **notes: Any) -> Outcome:
    """Return the outcome that a program has reported in its line."""
    if result["bytes"] < 0.99 * trial.state_bytes:
        raise Failed(f"only {result['bytes']} of {trial.state_bytes} bytes arrived")
    return Outcome({"pull": result["seconds"]}, {"bytes": result["bytes"], **notes})


# --- even shards from all members, over neighbours --------------------------------------------


def routes(
    members: Iterable[str], neighbours: Sequence[str], rate: Callable[[str, str], float]
) -> dict[str, tuple[str, ...]]:
    """Return each member's route to the joiner: directly, or over a neighbour of the joiner.

    rate: bytes/s by sender and receiver. All parts are equal, and a neighbour's link is shared by
    the members that use it. Each far member takes the route over which its part arrives first.
    """
    parts = dict.fromkeys(neighbours, 1)

    def arrives(relay: str, far: str) -> float:
        return max((parts[relay] + 1) / rate(relay, JOINER), 1 / rate(far, relay))

    ways: dict[str, tuple[str, ...]] = {}
    for member in members:
        if member in parts:
            ways[member] = (member,)
        else:
            relay = min(neighbours, key=lambda n: arrives(n, member))
            parts[relay] += 1
            ways[member] = (relay, member)
    return ways


def multi_hop(trial: Trial) -> Outcome:
    """Even shards from all members, those out of reach through the best neighbour (Autoscaling)."""
    net, shard = trial.net, shard_size(trial.state_bytes, (None,) * len(trial.members))
    sizes = (str(trial.state_bytes), str(shard))
    program = module_command(relay.__name__)
    with Stage(trial.net, trial.folder) as opened:
        servers = {
            node: opened.start(node, [*program, "serve", net.address(node), *sizes])
            for node in trial.members
        }
        hosts = {n: f"{net.address(n)}:{said()['port']}" for n, said in servers.items()}
        ways = routes(trial.members, trial.neighbours, lambda a, b: net.links[a, b].rate)
        texts = [",".join(hosts[hop] for hop in way) for way in ways.values()]
        result = opened.start(JOINER, [*program, "pull", *sizes, *texts])()
    return outcome(trial, result, ways={member: list(way) for member, way in ways.items()})


# --- real peers -------------------------------------------------------------------------------


def torchft(trial: Trial) -> Outcome:
    """torchft: the checkpoint from one healthy replica, drawn here, since it knows no rates."""
    python, size = trial.pythons["torchft"], str(trial.state_bytes)
    program = [python, str(HERE / "torchft_recovery.py")]
    drawn = [trial.net.links[name, JOINER].rate for name in trial.neighbours]
    source = random.Random(repr(drawn)).choice(trial.neighbours)
    with Stage(trial.net, trial.folder) as opened:
        url = opened.start(source, [*program, "serve", trial.net.address(source), size])()["url"]
        result = opened.start(JOINER, [*program, "pull", url, size])()
    return outcome(trial, result, source=source)


def hivemind(trial: Trial) -> Outcome:
    """hivemind: `load_state_from_peers` with the neighbours as the peers that share."""
    python, size, net = trial.pythons["hivemind"], str(trial.state_bytes), trial.net
    program = [python, str(HERE / "hivemind_state.py")]
    first, *others = trial.neighbours
    with Stage(trial.net, trial.folder) as opened:
        start = partial(opened.start, variables=HIVEMIND_VARIABLES)
        peers = start(first, [*program, "serve", net.address(first), size])()["peers"]
        waits = [
            start(node, [*program, "serve", net.address(node), size, *peers]) for node in others
        ]
        for wait in waits:
            wait()
        before = {n: net.bytes(n, JOINER) for n in trial.neighbours}
        result = start(JOINER, [*program, "pull", net.address(JOINER), size, *peers])()
        sent = {n: net.bytes(n, JOINER) - before[n] for n in trial.neighbours}
    return outcome(trial, result, sent=sent)
