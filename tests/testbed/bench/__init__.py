"""The benchmarks of `scripts/bench`. Each kind is a module with HELP, add_options and run."""

from __future__ import annotations

from types import ModuleType

from tests.testbed.bench import allreduce, events, joins, loader, overlap, scaleout, trouble

KINDS: dict[str, ModuleType] = {
    "all-reduce": allreduce,
    "events": events,
    "joins": joins,
    "loader": loader,
    "overlap": overlap,
    "scale-out": scaleout,
    "trouble": trouble,
}
