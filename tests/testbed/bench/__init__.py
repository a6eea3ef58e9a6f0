"""What `scripts/bench` measures: modules with HELP, add_options(parser) and run(args)."""

from __future__ import annotations

from types import ModuleType

KINDS: dict[str, ModuleType] = {}
