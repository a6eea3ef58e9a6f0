"""Checks by the event files of many agents that there was one history, with each sample in it once.

The functions are pure and return what is wrong, in words. An agent that was killed may have done
one step more than the others ever saw: its last one, if no other had the whole result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

Event = dict[str, Any]


def memberships(events: Sequence[Event]) -> list[list[Event]]:
    """Return the events of one agent, a list for each membership, without those before the first.
    A membership begins a little before the event "joined", because a joiner does its first steps
    with the others just before it has joined."""
    starts = []
    for k, event in enumerate(events):
        if event["event"] == "joined":
            starts.append(_begin(events, k))
    return [list(events[a:b]) for a, b in pairwise([*starts, len(events)])]


def _begin(events: Sequence[Event], joined: int) -> int:
    """Return the index at which the membership begins whose event "joined" is at the index
    `joined`. Steps before a gap in the iterations belong to a cluster that the agent gave up."""
    first, next_step = joined, 0
    for k in range(joined - 1, -1, -1):
        event = events[k]
        if event["event"] not in ("step", "digest"):
            break
        if event["event"] == "step":
            if next_step and event["iteration"] != next_step - 1:
                break
            first, next_step = k, event["iteration"]
    return first


def check(
    lives: Mapping[str, Sequence[Event]],
    survivors: Sequence[str],
    global_batch: int,
    *,
    done_before: int = 0,
    may_fork: bool = False,
) -> list[str]:
    """Return what is wrong with the histories of all agents.

    survivors: those that were not killed. done_before: the iterations of the checkpoint with which
    they began. may_fork: parts of the cluster may have gone on apart for a while, so an iteration
    may have more than one commit.
    """
    problems = []
    for name, events in lives.items():
        for member in memberships(events):
            problems += _check_membership(name, member, global_batch)
    problems += _check_digests(lives, survivors, may_fork)
    return problems + _check_samples(lives, survivors, global_batch, done_before)


def counted_samples(lives: Mapping[str, Sequence[Event]], names: Sequence[str]) -> dict[int, int]:
    """Return the samples of each iteration that any of these agents was a member in."""
    steps = [e for name in names for e in lives[name] if e["event"] == "step"]
    return {step["iteration"]: step["samples"] for step in steps}


def _check_membership(name: str, events: Sequence[Event], global_batch: int) -> list[str]:
    steps = [e for e in events if e["event"] == "step"]
    problems = []
    for before, after in pairwise(steps):
        if after["iteration"] != before["iteration"] + 1:
            problems.append(f"{name}: step {after['iteration']} follows {before['iteration']}")
    wrong = [e["iteration"] for e in steps if e["samples"] != global_batch]
    if wrong:
        problems.append(f"{name}: not {global_batch} samples in steps {wrong[:5]}")
    return problems


def _check_digests(
    lives: Mapping[str, Sequence[Event]], survivors: Sequence[str], may_fork: bool
) -> list[str]:
    states: dict[str, tuple[str, str]] = {}  # commit -> state, who said it first
    commits: dict[int, tuple[str, str]] = {}  # iteration -> commit, who said it first
    problems = []
    for name, events in lives.items():
        parts = memberships(events)
        for part in parts:
            last = max((e["iteration"] for e in part if e["event"] == "step"), default=0)
            lost = name not in survivors or part is not parts[-1]
            for event in (e for e in part if e["event"] == "digest"):
                state, commit, iteration = event["state"], event["commit"], event["iteration"]
                known = states.setdefault(commit, (state, name))
                if known[0] != state:
                    problems.append(f"{name} and {known[1]} differ at step {iteration}")
                if may_fork or (lost and iteration >= last):
                    continue
                before = commits.setdefault(iteration, (commit, name))
                if before[0] != commit:
                    problems.append(f"{name} and {before[1]}: two histories at step {iteration}")
    return problems


def _check_samples(
    lives: Mapping[str, Sequence[Event]],
    survivors: Sequence[str],
    global_batch: int,
    done_before: int,
) -> list[str]:
    """Check that each step up to the survivors' last one was done, with a whole batch."""
    last = max((max(counted_samples(lives, [n]), default=0) for n in survivors), default=0)
    counted = counted_samples(lives, list(lives))
    done = [samples for iteration, samples in counted.items() if done_before < iteration <= last]
    steps = max(0, last - done_before)
    if sum(done) != steps * global_batch:
        return [f"{sum(done)} samples in {steps} steps of {global_batch}"]
    return [] if last else ["no step was done"]
