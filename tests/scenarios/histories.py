"""What the event files of many agents say together: is it one history, each sample in it once?

Law: pure; returns what is wrong, in words. A life that ended by `kill -9` may have one step more
than the others ever saw: its last one, which nobody else had the whole result of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

Event = dict[str, Any]


def memberships(events: Sequence[Event]) -> list[list[Event]]:
    """Return the events of one agent, cut where it joined a cluster; without those before. A joiner
    does its first steps with the others, and says so, just before it says that it has joined."""
    starts = []
    for k, event in enumerate(events):
        if event["event"] == "joined":
            starts.append(_begin(events, k))
    return [list(events[a:b]) for a, b in pairwise([*starts, len(events)])]


def _begin(events: Sequence[Event], joined: int) -> int:
    """Return where the membership begins of which `joined` is the place of that event. Steps before
    a gap are those of a cluster that was given up."""
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
    """Return what is wrong with the histories of all lives, those that lived to the end named.

    done_before: iterations of the checkpoint that they began with. may_fork: parts of the cluster
    may have gone on apart for a while, so an iteration may have more than one commit.
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
    """All steps up to the survivors' last one were done by somebody, each with a whole batch."""
    last = max((max(counted_samples(lives, [n]), default=0) for n in survivors), default=0)
    counted = counted_samples(lives, list(lives))
    done = [samples for iteration, samples in counted.items() if done_before < iteration <= last]
    steps = max(0, last - done_before)
    if sum(done) != steps * global_batch:
        return [f"{sum(done)} samples in {steps} steps of {global_batch}"]
    return [] if last else ["no step was done"]
