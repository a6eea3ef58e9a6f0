"""What `scripts/bench` measures: modules with HELP, add_options(parser) and run(args)."""

from __future__ import annotations

from types import ModuleType

from tests.testbed.bench import allreduce, events, scaleout

KINDS: dict[str, ModuleType] = {
    "all-reduce": allreduce,
    "events": events,
    "scale-out": scaleout,
}
