"""How many micro-batches of the global batch each member computes.

The shares add up to the global batch. A member that is away gets none, unless all are away:
somebody has to compute the batch.

What a share takes is as many times longer as it has micro-batches, unless these are cells of a
round of subnets (`work_cost.py`).

A job may ask for a least share: with a very small subnet a slow device would learn hardly anything.
The others then wait for it in each round, which is what the job has chosen.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from edgeagent.planner.measures import in_seconds, listed
from edgeagent.planner.work_cost import IN_PROPORTION, WorkCost

# Shares in force are replaced if others shorten the computation by more than this. Two speeds
# that are measured 8 % too high and 8 % too low make right shares look up to
# 1 - 0.92 / 1.08 = 14.8 % too slow, so shares are never replaced because of such noise.
LEAST_GAIN = 0.15
# The same for rounds of local steps that take so many seconds or more. Such a round is many steps,
# so it is measured more precisely than one step (within 3 %, 1 - 0.97 / 1.03 = 5.8 %), and new
# shares, which cost what a change of links costs (docs/benchmarks.md: 15 to 30 ms), cost little
# beside it. A speed that has changed is known in full only after some rounds: with the limit above,
# the shares after the first of them would be kept, although they are wrong by up to a seventh.
LEAST_GAIN_OF_ROUNDS = 0.06
LONG_ROUND_S = 1.0
# Other shares must also save this part of a whole step. Where devices compute for milliseconds and
# then sum for a second, speeds differ by their noise in each step, and it does not matter.
LEAST_OF_STEP = 0.05
# A member without a share gets one again if it would need less than this part of the time that
# the computation takes for one micro-batch. It loses its share only when it needs
# 1 / (1 - LEAST_GAIN) = 1.18 of that time (1.06 in rounds), so that it does not alternate between
# the two.
IDLE_LIMIT = 0.8
IDEAL_STEPS = 40  # halvings, after which the ideal time is right to 12 digits


@dataclass(frozen=True, slots=True)
class ShareRule:
    """What the job says about shares.

    `cost` is what computing a share costs. Each member that is not away gets at least `least`
    micro-batches, or as many as all of them can have if there are too many members for that. Shares
    in force are replaced if others shorten a computation of `LONG_ROUND_S` or more by more than
    `least_gain`, a part of it below 1, and a shorter one by more than `LEAST_GAIN`.
    """

    cost: WorkCost = IN_PROPORTION
    least: int = 0
    least_gain: float = LEAST_GAIN


STEPS_OF_ALL = ShareRule()  # of a sum in every step, and of local steps


@dataclass(frozen=True, slots=True)
class SharePlan:
    """`shares` in the order of the nodes asked about.

    `predicted_s` is when the slowest node is done, `ideal_s` when all would be if micro-batches
    could be divided at will. Both are None while no speed is known.
    """

    shares: tuple[int, ...]
    predicted_s: float | None
    ideal_s: float | None
    reason: str


def measured_shares(
    nodes: tuple[bytes, ...],
    micro_batches: int,
    away: tuple[bytes, ...],
    speeds: Mapping[bytes, float],
    present: tuple[int, ...] | None = None,
    *,
    names: Mapping[bytes, str] | None = None,
    rule: ShareRule = STEPS_OF_ALL,
    beside_s: float = 0.0,
) -> SharePlan:
    """Return the shares with which the slowest node is done first, among those in which nobody is
    idle that is worth waiting for (`_worth_waiting_for`).

    `speeds` are seconds per micro-batch as `WorkCost` counts them, positive and finite. A node
    without one counts as the median and gets at least one micro-batch, so that it is measured. If
    there are fewer micro-batches than such nodes, the first ones get them.

    `present` are the shares in force in the order of `nodes`. They are kept if they are still valid
    and no others would be done sooner by as much as `ShareRule` says, and by `LEAST_OF_STEP` of a
    step, of which `beside_s` seconds are not spent on computing. Among equal nodes the first is
    served first. `names` are used in the reason.
    """
    cost = rule.cost
    working = [k for k, n in enumerate(nodes) if n not in away] or list(range(len(nodes)))
    known = {k: speeds[nodes[k]] for k in working if nodes[k] in speeds}
    typical = median(known.values()) if known else 1.0
    takes = {k: known.get(k, typical) for k in working}
    tried = [k for k in working if k not in known][:micro_batches]
    least = min(rule.least, micro_batches // len(working))
    lowest = dict.fromkeys(working, least) | dict.fromkeys(tried, max(1, least))
    most = _most(known, present, max(1, least)) if cost != IN_PROPORTION else {}
    best = _earliest(takes, micro_batches, lowest, cost, most)
    if waited_for := _worth_waiting_for(best, takes, micro_batches, cost, present):
        lowest |= dict.fromkeys(waited_for, max(1, least))
        best = _earliest(takes, micro_batches, lowest, cost, most)
    best_s = _time(best, takes, micro_batches, cost)
    ideal_s = _ideal(takes, micro_batches, cost, best_s)
    chosen = tuple(best.get(k, 0) for k in range(len(nodes)))
    kept, limit = False, ""
    one = {k: seconds * cost.units(1, micro_batches) for k, seconds in takes.items()}
    matters = best_s >= LEAST_OF_STEP * (best_s + beside_s)
    if present is not None and _fits(present, chosen, one, lowest, best_s if matters else 0.0):
        now_s = _time(dict(enumerate(present)), takes, micro_batches, cost)
        least_gain = rule.least_gain if now_s >= LONG_ROUND_S else LEAST_GAIN
        limit = f"{least_gain:.0%}"
        worth_it = best_s < now_s * (1 - least_gain)
        if worth_it and now_s - best_s < LEAST_OF_STEP * (now_s + beside_s):
            worth_it, limit = False, f"{LEAST_OF_STEP:.0%} of a step"
        if not worth_it:
            kept, chosen, best_s = present != chosen, present, now_s
    over = f"{micro_batches} micro-batches over {sum(s > 0 for s in chosen)} devices"
    if not known:
        how = "as before" if kept else "evenly"
        return SharePlan(chosen, None, None, f"{over}, {how}: no speed is measured yet")
    lost = f"{1 - ideal_s / best_s:.0%} of it lost to granularity"
    if any(chosen[k] == least for k in working if least):
        lost += f" and to shares of at least {least}"
    if kept:
        lost += f" and to keeping them, as others would not save {limit}"
    said = [f"{over} by speed: {in_seconds(best_s)}, {lost}"]
    called = {n: n.hex()[:8] for n in nodes} | dict(names or {})
    if idle := [k for k in working if not chosen[k]]:
        slow = listed(idle, lambda k: f"{called[nodes[k]]} ({in_seconds(one[k])} for one)")
        said.append(f"none for {slow}")
    if guessed := [k for k in working if k not in known]:
        unknown = listed(guessed, lambda k: called[nodes[k]])
        said.append(f"{unknown} taken as typical ({in_seconds(one[guessed[0]])} for one)")
    return SharePlan(chosen, best_s, ideal_s, "; ".join(said))


def _earliest(
    takes: Mapping[int, float],
    micro_batches: int,
    lowest: Mapping[int, int],
    cost: WorkCost,
    most: Mapping[int, int],
) -> dict[int, int]:
    """Give each node its `lowest` share, then each micro-batch to the node that completes it first;
    those in `most` get no more than that, unless nobody else is there.

    Beside the lowest shares this takes the earliest completions there are, so that no other shares
    end sooner (the greedy Algorithm 2 of Chaos with equal pieces).
    """
    shares = dict(lowest)

    def next_end(k: int) -> tuple[bool, float, int]:
        more = shares[k] + 1
        return more > most.get(k, micro_batches), cost.units(more, micro_batches) * takes[k], k

    ends = [next_end(k) for k in takes]
    heapq.heapify(ends)
    for _ in range(micro_batches - sum(shares.values())):
        k = ends[0][2]
        shares[k] += 1
        heapq.heapreplace(ends, next_end(k))
    return shares


def _worth_waiting_for(
    shares: Mapping[int, int],
    takes: Mapping[int, float],
    micro_batches: int,
    cost: WorkCost,
    present: tuple[int, ...] | None,
) -> list[int]:
    """Return which nodes without a share get one micro-batch although the others are then done
    later.

    Where most of the cost is what is not divided, all would be done a little sooner without a node
    that is a little slower, but it would compute nothing. Together they compute more in the time if
    they wait for it. One that has no share now gets one only if that is clearly so, so that it does
    not alternate between the two.
    """
    if not cost.fixed:
        return []

    def value(some: Mapping[int, int]) -> float:
        """Return how much is computed in a second."""
        units = sum(cost.units(share, micro_batches) for share in some.values())
        return units / _time(some, takes, micro_batches, cost)

    found: list[int] = []
    known = dict(shares)
    for k in sorted((k for k in takes if not known.get(k)), key=lambda k: (takes[k], k)):
        largest = max(known, key=lambda j: (known[j], j))
        if known[largest] < 2:
            break
        larger = known | {largest: known[largest] - 1, k: 1}
        is_idle = present is not None and k < len(present) and not present[k]
        if value(larger) * (IDLE_LIMIT if is_idle else 1.0) > value(known):
            found.append(k)
            known = larger
    return found


def _most(known: Mapping[int, float], present: tuple[int, ...] | None, one: int) -> dict[int, int]:
    """Return the most that devices get which had no part until now: what is known of their speed is
    old, and with a wrong one all would wait for a large part."""
    if present is None:
        return {}
    return {k: one for k in known if k < len(present) and not present[k]}


def _time(
    shares: Mapping[int, int], takes: Mapping[int, float], micro_batches: int, cost: WorkCost
) -> float:
    return max(cost.units(shares[k], micro_batches) * seconds for k, seconds in takes.items())


def _ideal(takes: Mapping[int, float], micro_batches: int, cost: WorkCost, most_s: float) -> float:
    """Return when all would be done if micro-batches could be divided at will, which is at most
    `most_s`."""
    if cost == IN_PROPORTION:
        return micro_batches / sum(1 / seconds for seconds in takes.values())
    low, high = 0.0, most_s
    for _ in range(IDEAL_STEPS):
        middle = (low + high) / 2
        done = sum(cost.affordable(middle / s, micro_batches) for s in takes.values())
        low, high = (middle, high) if done < micro_batches else (low, middle)
    return low


def _fits(
    present: tuple[int, ...],
    best: tuple[int, ...],
    one: Mapping[int, float],
    lowest: Mapping[int, int],
    best_s: float,
) -> bool:
    """Whether the shares in force are still possible, none is below the `lowest` that its node may
    have, and they leave no node idle that should compute. `one`: what one micro-batch takes;
    `best_s`: how long the computation takes with the best shares, 0 if that does not matter."""
    if len(present) != len(best) or sum(present) != sum(best) or min(present) < 0:
        return False
    if any(share and k not in one for k, share in enumerate(present)):
        return False
    if any(present[k] < least for k, least in lowest.items()):
        return False
    idle = [k for k in one if best[k] and not present[k]]
    return not any(one[k] < best_s * IDLE_LIMIT for k in idle)
