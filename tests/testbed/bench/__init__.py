"""The benchmarks of `scripts/bench`. Each kind is a module with HELP, add_options and run."""

from __future__ import annotations

from types import ModuleType

from tests.testbed.bench import (
    allreduce,
    crowd,
    divided,
    encryption,
    events,
    exact,
    frozen,
    gathering,
    gpu,
    joins,
    limits,
    loader,
    local_steps,
    moves,
    overlap,
    parts,
    periods,
    scaleout,
    scales,
    small,
    standby,
    steps,
    subnets,
    trouble,
)

KINDS: dict[str, ModuleType] = {
    "all-reduce": allreduce,
    "crowd": crowd,
    "divided": divided,
    "encryption": encryption,
    "events": events,
    "exact": exact,
    "frozen": frozen,
    "gathering": gathering,
    "gpu": gpu,
    "joins": joins,
    "limits": limits,
    "loader": loader,
    "local-steps": local_steps,
    "moves": moves,
    "overlap": overlap,
    "parts": parts,
    "periods": periods,
    "scales": scales,
    "scale-out": scaleout,
    "small": small,
    "standby": standby,
    "steps": steps,
    "subnets": subnets,
    "trouble": trouble,
}
