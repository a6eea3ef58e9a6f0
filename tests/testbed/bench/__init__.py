"""What `scripts/bench` measures: modules with HELP, add_options(parser) and run(args)."""

from __future__ import annotations

from types import ModuleType

from tests.testbed.bench import allreduce, events, loader, scaleout, trouble

KINDS: dict[str, ModuleType] = {
    "all-reduce": allreduce,
    "events": events,
    "loader": loader,
    "scale-out": scaleout,
    "trouble": trouble,
}
