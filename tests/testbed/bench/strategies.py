"""Joins of real agents of which the pull is divided among its sources by different strategies.

Members run the product as it is; only the joiner divides shards by another strategy. A join has
four parts, in seconds: `start` (from the process to the trainer being ready), `admit` (to the first
request for a shard), `pull` (to the last shard verified) and `enter` (to the first step of all);
`warm` is all except the first. The usual time of a member's step is that before the joiner's
process was started.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tests.scenarios.cluster import READY
from tests.testbed.bench import strategies_agent
from tests.testbed.bench.trial import JOINER, Failed, Outcome, Trial, idle_s
from tests.testbed.lab import Lab

if TYPE_CHECKING:
    from tests.scenarios.cluster import Agent

MODULE = strategies_agent.__name__
GATHER_S = 300.0  # a cluster forms by joins, each with a pull, which is slow on a busy machine
JOIN_S = 180.0
AFTERWARDS_S = 0.5  # of training with the new member, after which each held up step is over
MOST_APART_S = 0.1  # by which our time of the pull and the agent's may differ, besides 2 %


def join(trial: Trial, strategy: str) -> Outcome:
    """Have the members train and one more join by `strategy`; return what it took."""
    with Lab(trial.net, trial.folder, job(trial)) as lab:
        try:
            gather(lab, trial.members)
            time.sleep(trial.settle_s)
            return _join(trial, lab, strategy)
        except AssertionError as error:
            raise Failed(str(error).splitlines()[0]) from error


def gather(lab: Lab, nodes: Sequence[str]) -> None:
    """Start these and wait until they train together; each pulls the state, too."""
    agents = [lab.start(node) for node in nodes]
    for agent in agents:
        agent.wait("step", GATHER_S, members=len(nodes))


def job(trial: Trial) -> tuple[str, ...]:
    """Return the arguments of the synthetic job."""
    numbers = {"state": trial.state_mb, "gradient": trial.gradient_mb}
    sizes = [word for name, mb in numbers.items() for word in (f"--{name}-mb", f"{mb:g}")]
    return (*sizes, "--compute-ms", f"{trial.compute_ms:g}")


def _join(trial: Trial, lab: Lab, strategy: str) -> Outcome:
    truth, moments = trial.folder / "truth.json", trial.folder / "moments.json"
    truth.write_text(json.dumps(trial.truth))
    variables = {
        strategies_agent.STRATEGY: strategy,
        strategies_agent.TRUTH: str(truth),
        strategies_agent.MOMENTS: str(moments),
    }
    wanted = ("--neighbours", ",".join(trial.neighbours), "--no-mdns")
    first = lab.agents[trial.neighbours[0]].address
    began = time.time()
    agent = lab.start(JOINER, *wanted, "--peer", first, module=MODULE, variables=variables)
    agent.wait_until("trainer that is ready", lambda: agent.said(READY), JOIN_S)
    ready = time.time()
    joined = agent.wait("joined", JOIN_S)
    together = agent.wait("step", JOIN_S, members=len(trial.members) + 1)["t"]
    time.sleep(AFTERWARDS_S)
    seen = json.loads(moments.read_text())
    parts = {
        "start": ready - began,
        "admit": seen["asked"] - ready,
        "pull": seen["verified"] - seen["asked"],
        "enter": together - seen["verified"],
        "warm": together - ready,
        "total": together - began,
    }
    check(trial, strategy, joined, parts["pull"])
    held_up = [_held_up(lab.agents[name], began, ready, together) for name in trial.members]
    parts["idle"] = statistics.mean(held_up)
    sent = {s["node"]: s["bytes"] for s in joined["sources"]}
    return Outcome(parts, {"sent": sent, "idle_of_members": held_up})


def _held_up(member: Agent, started: float, began: float, ended: float) -> float:
    """Return how long the join held a member up, by its steps before the joiner was started."""
    ends = [e["t"] for e in member.all("step")]
    return idle_s(ends, began, ended, usual_step_s([t for t in ends if t < started]))


def usual_step_s(ends: list[float]) -> float:
    """Return the median step of the last few in seconds; raises `Failed` for fewer than three."""
    if len(ends) < 3:
        raise Failed("the members had hardly begun to train")
    return statistics.median(b - a for a, b in pairwise(ends[-100:]))


def check(trial: Trial, strategy: str, joined: dict[str, Any], pull_s: float) -> None:
    """Raise `Failed` if a pull was not divided as its strategy says, or if the agent measured
    another time."""
    sent = {s["node"]: s["bytes"] for s in joined["sources"]}
    if strangers := sorted(set(sent) - set(trial.neighbours)):
        raise Failed(f"{', '.join(strangers)} sent shards but are no neighbours")
    if sum(sent.values()) < trial.state_bytes:
        raise Failed(f"only {sum(sent.values())} of {trial.state_bytes} bytes were pulled")
    best = max(trial.neighbours, key=lambda name: trial.truth[name][0])
    if strategy == "fastest" and set(sent) != {best}:
        raise Failed(f"{', '.join(sorted(sent))} sent shards, not {best} alone")
    if strategy == "even" and max(sent.values()) > 1.2 * min(sent.values()):
        raise Failed(f"the sources did not send equally much: {sent}")
    if abs(joined["seconds"] - pull_s) > MOST_APART_S + 0.02 * pull_s:
        raise Failed(f"the agent says {joined['seconds']:.3f} s for a pull of {pull_s:.3f} s")
