"""What a `Trainer` goes by: the arguments of the script, under what `edgeagent run` was told.

Law: resolved once, before anything is joined: an option of `edgeagent run`, then its variable, then
the script's argument, then the default.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgeagent.config import TrainerConfig, saving_from_environment, trainer_config_from
from edgeagent.errors import UsageError
from edgeagent.places import check_save_path
from edgeagent.trainer.loader import default_micro_batch, is_number
from edgeagent.trainer.validation import check_batches, check_positive
from protocols import limits

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_GLOBAL_BATCH = 256
DEFAULT_KEEP = 3


@dataclass(frozen=True, slots=True)
class Options:
    """`save`: where the state is written at the end, "" for nowhere. `save_every`: after how many
    iterations it is written to a file of its own beside `beside`, 0 for never, and `keep`: how many
    of those files stay, 0 for all."""

    config: TrainerConfig
    global_batch: int
    micro_batch: int
    seed: int
    steps: int
    save: str
    beside: str
    save_every: int
    keep: int


def resolve_options(
    environment: Mapping[str, str],
    global_batch: Any,
    micro_batch: Any,
    steps: Any,
    seed: Any,
    save_every: Any,
    keep: Any,
) -> Options:
    """Return what holds; raise `UsageError` for what cannot be used."""
    told = trainer_config_from(environment)
    config = told or TrainerConfig()
    every, kept = config.save_every, config.keep
    if told is None:
        every, kept = saving_from_environment(environment)
    size = _first(config.global_batch, global_batch)
    cut = _first(config.micro_batch, micro_batch)
    if cut is None:
        check_positive("global_batch", size)
        cut = default_micro_batch(size)
    check_batches(size, cut)
    counts = {
        "steps": _first(config.steps, steps) or 0,
        "save_every": _first(every, save_every) or 0,
        "keep": _first(_first(kept, keep), DEFAULT_KEEP),
    }
    for name, value in counts.items():
        if not is_number(value, 0):
            raise UsageError(f"{name} is {value}; it must be a whole number and not negative")
    if counts["steps"] > limits.MAX_ITERATION:
        raise UsageError(f"steps is {counts['steps']}; use 0 to {limits.MAX_ITERATION}")
    beside = config.save if told is not None else _script_place()
    if counts["save_every"] and beside:
        check_save_path(beside)
    if config.save:
        check_save_path(config.save)
    return Options(
        config=config,
        global_batch=size,
        micro_batch=cut,
        seed=_first(config.seed, seed) or 0,
        save=config.save,
        beside=beside,
        **counts,
    )


def _script_place() -> str:
    """Return where a plain script would save: `edgeagent-SCRIPT.safetensors`, as under run."""
    name = os.path.splitext(os.path.basename(sys.argv[0]))[0]
    return f"edgeagent-{name or 'script'}.safetensors"


def _first(chosen: Any, default: Any) -> Any:
    return default if chosen is None else chosen
