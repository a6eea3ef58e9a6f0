"""Replication by stopping all members, copying a checkpoint file, and starting all anew (Pollux).

All members are stopped by Ctrl+C at the same time, and each saves as it always does. The checkpoint
is copied by plain HTTP from the fastest neighbour's disk to the joiner's. Then all start from their
own disks: what is in the file is not sent again, and only the trained part, which is small here,
comes with the joins. The time is that from the first Ctrl+C to the first step of all, in which all
members are idle. Its part `start`, from the first process to the last one that is ready, is what
the few cores of this machine need to start so many processes at once.
"""

from __future__ import annotations

import signal
import sys
import time
from functools import partial
from pathlib import Path

from tests.scenarios.cluster import READY
from tests.testbed.bench.programs import Stage
from tests.testbed.bench.strategies import gather, job
from tests.testbed.bench.trial import JOINER, Failed, Outcome, Trial
from tests.testbed.lab import Lab

PORT = 8000
CHECKPOINT = "model.safetensors"
CARRY = Path(__file__).with_name("carry.py")
SERVING_S = 0.5
STOP_S = 60.0
RESUME_S = 180.0


def stop_resume(trial: Trial) -> Outcome:
    """Stop, save, carry, start anew; return what it took."""
    best = max(trial.neighbours, key=lambda name: trial.truth[name][0])
    parts: dict[str, float] = {}
    (trial.folder / "programs").mkdir()
    try:
        with Stage(trial.net, trial.folder / "programs") as stage:
            with Lab(trial.net, trial.folder, job(trial)) as lab:
                began = time.time()
                gather(lab, trial.members)
                first_start_s = time.time() - began
                serve = [sys.executable, "-m", "http.server", str(PORT), "-d"]
                stage.start(best, [*serve, str(trial.folder / best)])
                time.sleep(max(trial.settle_s, SERVING_S))
                began = time.time()
                _stop_all(lab)
                parts["stop"] = time.time() - began
            parts["pull"] = _carry(trial, stage, best)
            restarted = time.time()
            ready, together = _resume(trial)
    except AssertionError as error:
        raise Failed(str(error).splitlines()[0]) from error
    parts["start"] = ready - restarted
    parts["enter"] = together - ready
    parts["warm"] = parts["stop"] + parts["pull"] + parts["enter"]
    parts["total"] = parts["idle"] = together - began
    return Outcome(parts, {"source": best, "first_start_s": first_start_s})


def _stop_all(lab: Lab) -> None:
    """Stop all members by Ctrl+C. Raises AssertionError if one does not end well."""
    for agent in lab.agents.values():
        agent.signal(signal.SIGINT)
    for agent in lab.agents.values():
        status = agent.wait_exit(STOP_S)
        assert status == 0, f"{agent.name} ended with exit status {status} on Ctrl+C"


def _carry(trial: Trial, stage: Stage, source: str) -> float:
    """Copy the checkpoint to the joiner's disk; return the seconds that took."""
    home = trial.folder / JOINER
    home.mkdir()
    url = f"http://{trial.net.address(source)}:{PORT}/{CHECKPOINT}"
    done = stage.start(JOINER, [sys.executable, str(CARRY), url, str(home / CHECKPOINT)])()
    if done["bytes"] < trial.state_bytes:
        raise Failed(f"the checkpoint has only {done['bytes']} bytes")
    return float(done["seconds"])


def _resume(trial: Trial) -> tuple[float, float]:
    """Start all from their own disks; return when the last one was ready, and when they did their
    first step together."""
    nodes = (*trial.members, JOINER)
    with Lab(trial.net, trial.folder, (*job(trial), "--load", CHECKPOINT)) as lab:
        agents = [lab.start(node) for node in nodes]
        for agent in agents:
            agent.wait_until("trainer that is ready", partial(agent.said, READY), RESUME_S)
        ready = time.time()
        step = agents[0].wait("step", RESUME_S, members=len(nodes))
        return ready, float(step["t"])
