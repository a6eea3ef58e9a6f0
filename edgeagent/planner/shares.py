"""How many micro-batches of the global batch each member computes.

The shares add up to the global batch. A member that is away gets none, unless all are away:
somebody has to compute the batch.

What a share takes is as many times longer as it has micro-batches, unless these are cells of a
round of subnets: the cost of a subnet grows with a power of its part of the model, from 1 (for
which AdapTrain has a linear rule) to 2 (for which it has a square-root rule). Both rules come out
as the shares with which all end together.

A job may ask for a least share: with a very small subnet a slow device would learn hardly anything.
The others then wait for it in each round, which is what the job has chosen.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from edgeagent.planner.measures import in_seconds, listed

# Shares in force are replaced if others shorten the computation by more than this. Two speeds
# that are measured 8 % too high and 8 % too low make right shares look up to
# 1 - 0.92 / 1.08 = 14.8 % too slow, so shares are never replaced because of such noise.
LEAST_GAIN = 0.15
# A member without a share gets one again if it would need less than this part of the time that
# the computation takes for one micro-batch. It loses its share only when it needs
# 1 / (1 - LEAST_GAIN) = 1.18 of that time, so that it does not alternate between the two.
IDLE_LIMIT = 0.8


@dataclass(frozen=True, slots=True)
class ShareRule:
    """What the job says about shares.

    A share of n micro-batches takes n to the power of `exponent` (from 1 to 2) times as long as one
    micro-batch. Each member that is not away gets at least `least` micro-batches, or as many as all
    of them can have if there are too many members for that.
    """

    exponent: float = 1.0
    least: int = 0


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
) -> SharePlan:
    """Return the shares with which the slowest node is done first.

    `speeds` are seconds per micro-batch, positive and finite. A node without one counts as the
    median and gets at least one micro-batch, so that it is measured. If there are fewer
    micro-batches than such nodes, the first ones get them.

    `present` are the shares in force in the order of `nodes`. They are kept if they are still valid
    and no others would be done sooner by more than `LEAST_GAIN`. Among equal nodes the first is
    served first. `names` are used in the reason.
    """
    exponent = rule.exponent
    working = [k for k, n in enumerate(nodes) if n not in away] or list(range(len(nodes)))
    known = {k: speeds[nodes[k]] for k in working if nodes[k] in speeds}
    typical = median(known.values()) if known else 1.0
    takes = {k: known.get(k, typical) for k in working}
    tried = [k for k in working if k not in known][:micro_batches]
    least = min(rule.least, micro_batches // len(working))
    lowest = dict.fromkeys(working, least) | dict.fromkeys(tried, max(1, least))
    best = _earliest(takes, micro_batches, lowest, exponent)
    best_s = _time(best, takes, exponent)
    together = sum(seconds ** (-1 / exponent) for seconds in takes.values())
    ideal_s = (micro_batches / together) ** exponent
    chosen = tuple(best.get(k, 0) for k in range(len(nodes)))
    kept = False
    if present is not None and _fits(present, chosen, takes, lowest, best_s):
        now_s = _time(dict(enumerate(present)), takes, exponent)
        if not best_s < now_s * (1 - LEAST_GAIN):
            kept, chosen, best_s = present != chosen, present, now_s
    over = f"{micro_batches} micro-batches over {sum(s > 0 for s in chosen)} devices"
    if not known:
        how = "as before" if kept else "evenly"
        return SharePlan(chosen, None, None, f"{over}, {how}: no speed is measured yet")
    lost = f"{1 - ideal_s / best_s:.0%} of it lost to granularity"
    if any(chosen[k] == least for k in working if least):
        lost += f" and to shares of at least {least}"
    if kept:
        lost += f" and to keeping them, as others would not save {LEAST_GAIN:.0%}"
    said = [f"{over} by speed: {in_seconds(best_s)}, {lost}"]
    called = {n: n.hex()[:8] for n in nodes} | dict(names or {})
    if idle := [k for k in working if not chosen[k]]:
        slow = listed(idle, lambda k: f"{called[nodes[k]]} ({in_seconds(takes[k])} for one)")
        said.append(f"none for {slow}")
    if guessed := [k for k in working if k not in known]:
        unknown = listed(guessed, lambda k: called[nodes[k]])
        said.append(f"{unknown} taken as typical ({in_seconds(typical)} for one)")
    return SharePlan(chosen, best_s, ideal_s, "; ".join(said))


def _earliest(
    takes: Mapping[int, float], micro_batches: int, lowest: Mapping[int, int], exponent: float
) -> dict[int, int]:
    """Give each node its `lowest` share, then each micro-batch to the node that completes it first.

    Beside the lowest shares this takes the earliest completions there are, so that no other shares
    end sooner (the greedy Algorithm 2 of Chaos with equal pieces).
    """
    shares = dict(lowest)
    ends = [((shares[k] + 1) ** exponent * seconds, k) for k, seconds in takes.items()]
    heapq.heapify(ends)
    for _ in range(micro_batches - sum(shares.values())):
        k = ends[0][1]
        shares[k] += 1
        heapq.heapreplace(ends, ((shares[k] + 1) ** exponent * takes[k], k))
    return shares


def _time(shares: Mapping[int, int], takes: Mapping[int, float], exponent: float) -> float:
    return max(float(shares[k] ** exponent) * seconds for k, seconds in takes.items())


def _fits(
    present: tuple[int, ...],
    best: tuple[int, ...],
    takes: Mapping[int, float],
    lowest: Mapping[int, int],
    best_s: float,
) -> bool:
    """Whether the shares in force are still possible, none is below the `lowest` that its node may
    have, and they leave no node idle that should compute."""
    if len(present) != len(best) or sum(present) != sum(best) or min(present) < 0:
        return False
    if any(share and k not in takes for k, share in enumerate(present)):
        return False
    if any(present[k] < least for k, least in lowest.items()):
        return False
    idle = [k for k in takes if best[k] and not present[k]]
    return not any(takes[k] < best_s * IDLE_LIMIT for k in idle)
