"""The options of a `Trainer`, from the script's arguments and from what `edgeagent run` was told.

For each option the first of these that says anything holds: the option of `edgeagent run`, its
environment variable, the argument of the script, the default. Whoever starts a script can thus
overrule it. The options are resolved once, before a cluster is joined, so that a mistake stops
nobody else.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgeagent.config import (
    MODES,
    MOST_COPIES,
    RUN_VARIABLE,
    WIRES,
    TrainerConfig,
    saving_from_environment,
    trainer_config_from,
)
from edgeagent.errors import UsageError
from edgeagent.places import check_save_path
from edgeagent.trainer.loader import default_micro_batch, is_number, local_batch
from edgeagent.trainer.outer import check_outer
from edgeagent.trainer.subnets.options import SubnetOptions, subnet_options
from edgeagent.trainer.validation import check_batches, check_positive
from edgeagent.transport.job import JOB_NAME
from protocols import limits
from protocols.cluster.stripes import OnLost

if TYPE_CHECKING:
    from collections.abc import Mapping

# How many samples an iteration has if nobody says so.
DEFAULT_GLOBAL_BATCH = 256
# Into how many cells the work of a round of subnets is cut at most: a device's part of the model is
# a multiple of this part.
MOST_CELLS = 64
# How many devices keep each part of a divided optimizer state beside its owner if nobody says so.
DEFAULT_COPIES = 1
# How many letters of the name of a script others are told.
_MOST_LETTERS = 64
# How many of the files of `save_every` stay if nobody says so.
DEFAULT_KEEP = 3


@dataclass(frozen=True, slots=True)
class Options:
    """The options that hold.

    `global_batch` and `micro_batch` are numbers of samples, and `steps` is the iteration at which
    training ends, 0 for never. `save` is the file into which the state is written at the end, ""
    for none. After every `save_every` iterations, 0 for never, it is written to a file of its own
    whose name is made from `beside`, and `keep` of those files stay, 0 for all. `wire` says how
    gradients travel, one of `WIRES`, and `overlap` whether they may leave during `backward()`.
    `local_steps` is 0, or how many times `global_batch` samples a round of local steps has; then
    `micro_batch` is the number of samples of one local step, and `outer` is what `outer_optimizer`
    takes. With `subnets` a device takes `local_steps` steps of `global_batch` samples in a round,
    and `micro_batch` is `global_batch * local_steps` divided by the number of cells.
    """

    config: TrainerConfig
    global_batch: int
    micro_batch: int
    seed: int
    steps: int
    save: str
    beside: str
    save_every: int
    keep: int
    wire: str
    overlap: bool
    local_steps: int
    outer: Any
    subnets: SubnetOptions | None
    shard_optimizer: bool
    copies: int
    on_lost: OnLost

    @property
    def without_effect(self) -> str:
        """A line for the user about an option that does nothing, "" if there is none."""
        if self.config.keep is None or self.save_every:
            return ""
        return "warning: --keep does nothing, since no file is written without --save-every N"

    @property
    def job_field(self) -> tuple[str, str]:
        """The field of the fingerprint that has the job's name. It is not compared, since the name
        of a script changes nothing, but it explains best why other fields differ."""
        plain = RUN_VARIABLE not in os.environ
        return JOB_NAME, (_script_name() if plain else self.config.job)[:_MOST_LETTERS]

    @property
    def replicates(self) -> bool:
        """Whether the optimizer's memory is part of the training state. With local steps each
        device has its own; with subnets the optimizer is made anew, from one that steps alone."""
        return not self.local_steps or bool(self.subnets)

    @property
    def round_batch(self) -> int:
        """The samples of an iteration, which is a round if there are local steps."""
        return self.global_batch * max(1, self.local_steps)

    @property
    def sample_batches(self) -> tuple[int, int]:
        """The samples of an iteration and of a micro-batch for the order in which they are drawn.
        With subnets each cell has the samples of all steps of a device, which takes those of the
        first cell that it is dealt."""
        if self.subnets is None:
            return self.round_batch, self.micro_batch
        cells = self.round_batch // self.micro_batch
        return cells * self.round_batch, self.global_batch

    @property
    def batch_fields(self) -> dict[str, int]:
        """The fields of the job's fingerprint that a newcomer may take from a cluster, in samples
        and as a user gives them. With subnets the micro-batch follows from the global batch."""
        fields = {"global batch": self.global_batch}
        return fields if self.subnets is not None else {**fields, "micro batch": self.micro_batch}

    @property
    def exact_count(self) -> int:
        """The micro-batches of an iteration if their sum must not depend on the order, else 0."""
        return self.round_batch // self.micro_batch if self.wire == "exact" else 0


def resolve_options(
    environment: Mapping[str, str],
    global_batch: Any,
    micro_batch: Any,
    steps: Any,
    seed: Any,
    save_every: Any,
    keep: Any,
    wire: Any = None,
    overlap: Any = None,
    local_steps: Any = None,
    outer: Any = None,
    subnets: Any = None,
    shard_optimizer: Any = None,
    copies: Any = None,
    on_lost: Any = None,
    parts: Mapping[str, Any] | None = None,
) -> Options:
    """Return the options that hold; raise `UsageError` for one that cannot be used. `parts`:
    arguments about subnets, by their names."""
    told = trainer_config_from(environment)
    config = told or TrainerConfig()
    every, kept = config.save_every, config.keep
    if told is None:
        every, kept = saving_from_environment(environment)
    size = _first(config.global_batch, global_batch)
    cut = _first(config.micro_batch, micro_batch)
    local = _first(config.local_steps, local_steps)
    if local is not None:
        check_positive("local_steps", local)
    outer = _first(config.outer, outer)
    check_outer(outer)
    if outer is not None and local is None:
        raise UsageError("outer says what ends a round of local steps: give local_steps, too")
    subnets = _divided(config, subnets, parts or {})
    if subnets is None:
        cut = _micro_batch(size, cut, local)
    else:
        cut = _cell(size, cut, local, outer)
    counts = _counts(
        steps=_first(config.steps, steps) or 0,
        save_every=_first(every, save_every) or 0,
        keep=_first(_first(kept, keep), DEFAULT_KEEP),
    )
    wire = _wire(_first(config.wire, wire), local)
    divided = bool(_first(config.shard_optimizer, shard_optimizer))
    held = _copies(divided, _first(config.copies, copies), wire, local)
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
        wire=wire,
        overlap=bool(_first(config.overlap, overlap)),
        local_steps=local or 0,
        outer=outer,
        subnets=subnets,
        shard_optimizer=divided,
        copies=held,
        on_lost=_on_lost(divided, _first(config.on_lost, on_lost)),
        **counts,
    )


def _wire(wire: Any, local: int | None) -> str:
    """Return how gradients travel; raise `UsageError` if they cannot travel so."""
    wire = wire or WIRES[0]
    if wire not in WIRES:
        raise UsageError(f"wire is {wire!r}; it must be one of {', '.join(WIRES)}")
    if wire == "exact" and local is not None:
        raise UsageError(
            "wire exact does not go with local_steps, whose result depends on which device takes"
            " each step: leave one of them away"
        )
    return str(wire)


def _copies(divided: bool, copies: Any, wire: str, local: int | None) -> int:
    """Return how many copies of the divided optimizer state are kept; raise `UsageError` if these
    options cannot be used together."""
    if not divided:
        if copies is not None:
            raise UsageError("copies are for a divided optimizer state: give shard_optimizer, too")
        return 0
    if local is not None:
        raise UsageError(
            "shard_optimizer is for steps of the whole cluster: leave local_steps away"
        )
    if wire != WIRES[0]:
        raise UsageError(
            f"with shard_optimizer weights travel, as they are: leave wire {wire} away"
        )
    copies = DEFAULT_COPIES if copies is None else copies
    if not is_number(copies, 0) or copies > MOST_COPIES:
        raise UsageError(f"copies is {copies}; it must be 0 to {MOST_COPIES}")
    return int(copies)


def _on_lost(divided: bool, on_lost: Any) -> OnLost:
    """Return what to do if parts of the divided optimizer state are lost; raise `UsageError` if
    that cannot be."""
    if on_lost is None:
        return OnLost.WAIT
    if not divided:
        raise UsageError("on_lost is for a divided optimizer state: give shard_optimizer, too")
    if on_lost not in tuple(OnLost):
        raise UsageError(f"on_lost is {on_lost!r}; it must be one of {', '.join(OnLost)}")
    return OnLost(on_lost)


def _counts(**counts: Any) -> dict[str, int]:
    """Return the numbers; raise `UsageError` naming one that cannot be."""
    for name, value in counts.items():
        if not is_number(value, 0):
            raise UsageError(f"{name} is {value}; it must be a whole number and not negative")
    if counts["steps"] > limits.MAX_ITERATION:
        raise UsageError(f"steps is {counts['steps']}; use 0 to {limits.MAX_ITERATION}")
    return counts


def _divided(config: TrainerConfig, subnets: Any, parts: Mapping[str, Any]) -> SubnetOptions | None:
    """Return what is divided and how, None for nothing: what the script says, in `subnets` and
    `parts`, unless `config` says otherwise. Raises `UsageError` if subnets are asked for where the
    script has none, and for options of subnets without subnets."""
    told = {
        "subnet_scale": config.subnet_scale,
        "subnet_minimum": config.subnet_minimum,
        "subnet_period": config.subnet_period,
        "subnet_ewma": config.subnet_ewma,
    }
    if subnets is None and config.mode == MODES[1]:
        raise UsageError("--mode subnets is for scripts that give Trainer(subnets=...)")
    if subnets is None or config.mode == MODES[0]:
        # A script that is run with `--mode whole` keeps its options of subnets for other times.
        given = told if subnets is not None else {**parts, **_chosen(told)}
        for name in _chosen(given):
            raise UsageError(
                f"{name} says how subnets are divided: give Trainer(subnets=...), or for a built-in"
                " job --mode subnets"
            )
        return None
    return subnet_options(subnets, {**parts, **_chosen(told)})


def _micro_batch(size: Any, cut: Any, local: int | None) -> int:
    """Return the samples of a micro-batch, `cut` unless that is None; raise `UsageError` if it
    does not fit the global batch `size`."""
    if cut is None:
        check_positive("global_batch", size)
        cut = default_micro_batch(size) if local is None else local_batch(size)
    check_batches(size, cut, local or 1)
    return int(cut)


def _cell(size: Any, cut: Any, local: int | None, outer: Any) -> int:
    """Return how many samples stand for a cell of a round of subnets; raise `UsageError` if these
    options cannot be used together."""
    if local is None:
        raise UsageError("subnets are trained in rounds: give local_steps, the steps of a round")
    if cut is not None:
        raise UsageError(
            "with subnets each device takes steps of global_batch samples: leave micro_batch away"
        )
    if outer is not None:
        raise UsageError("with subnets there is no outer optimizer: leave outer away")
    check_positive("global_batch", size)
    samples = size * local
    cells = next(n for n in range(MOST_CELLS, 0, -1) if samples % n == 0)
    return int(samples // cells)


def _script_place() -> str:
    """Return `edgeagent-SCRIPT.safetensors`, the default file under `edgeagent run`, for a plain
    script."""
    return f"edgeagent-{_script_name()}.safetensors"


def _script_name() -> str:
    """Return the name of this process's script without its ending."""
    return os.path.splitext(os.path.basename(sys.argv[0]))[0] or "script"


def _chosen(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those settings that say anything."""
    return {name: value for name, value in settings.items() if value is not None}


def _first(chosen: Any, default: Any) -> Any:
    return default if chosen is None else chosen
