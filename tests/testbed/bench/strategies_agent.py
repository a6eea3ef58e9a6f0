"""The command `edgeagent` with another way to divide a pull among its sources, for measurements.

Usage: python -m tests.testbed.bench.strategies_agent run JOB ...    (arguments as for `edgeagent`)

BENCH_STRATEGY names the way; BENCH_TRUTH is a JSON file with each source's true rate (bytes/s) and
delay (s) by name; when the pull began and ended goes to the file BENCH_MOMENTS, unix seconds.

Nothing differs from the product except which source is asked for which shard. All strategies except
`greedy` divide the state once, at the first request, and keep that division.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from edgeagent.cli import main as edgeagent_main
from edgeagent.planner.shards import Source, equal_shards, even_runs
from edgeagent.planner.standard import SHARD_OVERHEAD_S, StandardPlanner
from protocols.member.pull import AskShards, Pull, PullDone

if TYPE_CHECKING:
    from protocols.scheduler.planning import Offer

STRATEGY = "BENCH_STRATEGY"
TRUTH = "BENCH_TRUTH"
MOMENTS = "BENCH_MOMENTS"

Truth = Mapping[str, tuple[float, float]]  # name -> (rate in bytes/s, delay in s)
Divide = Callable[[int, int, Sequence[str], Truth], list[str]]


def fastest(count: int, size: int, names: Sequence[str], truth: Truth) -> list[str]:
    """Return the source of each shard: always the fastest one (EDL+)."""
    best = max(names, key=lambda name: truth[name][0])
    return [best] * count


def even(count: int, size: int, names: Sequence[str], truth: Truth) -> list[str]:
    """Return the source of each shard: equally many from each, whatever its rate."""
    runs = even_runs(count, len(names))
    return [name for name, run in zip(names, runs, strict=True) for _ in run]


def optimum(count: int, size: int, names: Sequence[str], truth: Truth) -> list[str]:
    """Return the source of each shard in the best division by the true rates and delays."""
    sources = [Source(truth[name][1], 0.0, truth[name][0], name) for name in names]
    plan = equal_shards(count, size, sources, SHARD_OVERHEAD_S)
    owners = {k: name for u, name in enumerate(names) for k in plan.shards(u)}
    return [owners[k] for k in range(count)]


DIVISIONS: dict[str, Divide] = {"fastest": fastest, "even": even, "optimum": optimum}
GREEDY = "greedy"


class Fixed:
    """Divides all shards at the first call, and never anew."""

    def __init__(self, divide: Divide, truth: Truth) -> None:
        self._divide = divide
        self._truth = truth
        self._owners: dict[int, str] = {}

    def assign(
        self, shards: tuple[int, ...], shard_bytes: int, offers: tuple[Offer, ...]
    ) -> dict[bytes, tuple[int, ...]]:
        """Stand in for `Planner.assign`; a source that is not offered now is waited for."""
        if not self._owners:
            names = [offer.name for offer in offers]
            owners = self._divide(len(shards), shard_bytes, names, self._truth)
            self._owners = dict(zip(shards, owners, strict=True))
        return {o.node: tuple(k for k in shards if self._owners[k] == o.name) for o in offers}


class Moments:
    """Writes down when the first shard was asked for and when the last one was verified."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: dict[str, float] = {}

    def watched(self, method: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """Return a method that does the same as this method of `Pull`, and notes the moments."""

        def watch(*args: Any) -> list[Any]:
            effects = method(*args)
            if any(isinstance(effect, AskShards) for effect in effects):
                self._note("asked")
            if any(isinstance(effect, PullDone) for effect in effects):
                self._note("verified")
            return effects

        return watch

    def _note(self, what: str) -> None:
        if what not in self._seen:
            self._seen[what] = time.time()
            self._path.write_text(json.dumps(self._seen))


def main() -> int:
    """Run `edgeagent` with what the environment asks for; return its exit status."""
    name = os.environ.get(STRATEGY, GREEDY)
    moments = Moments(Path(os.environ[MOMENTS]))
    for method in ("began", "manifest", "shard"):
        patch.object(Pull, method, moments.watched(getattr(Pull, method))).start()
    if name != GREEDY:
        truth = json.loads(Path(os.environ[TRUTH]).read_text())
        fixed = Fixed(DIVISIONS[name], {n: (rate, delay) for n, (rate, delay) in truth.items()})
        patch.object(StandardPlanner, "assign", staticmethod(fixed.assign)).start()
    return edgeagent_main()


if __name__ == "__main__":
    sys.exit(main())
