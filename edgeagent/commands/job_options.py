"""The options of `edgeagent run` that say how the job trains, and what this device gives to it."""

from __future__ import annotations

import argparse
from typing import Any

from edgeagent.commands.options import copies, part, positive, seed, threads, weight
from edgeagent.config import MODES, ON_LOST, OUTERS, SUBNET_SCALES, WIRES
from edgeagent.errors import UsageError

_OF_SUBNETS = ("subnet_scale", "subnet_minimum", "subnet_period", "subnet_ewma")
# The names of the job's options among the arguments, and of the fields of `TrainerConfig`.
_SETTINGS = (
    "steps",
    "global_batch",
    "micro_batch",
    "seed",
    "wire",
    "local_steps",
    "outer",
    "mode",
    *_OF_SUBNETS,
    "shard_optimizer",
    "copies",
    "on_lost",
)


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that belong to the job: they must be the same on all devices."""
    group = parser.add_argument_group("training (part of the job: the same on every device)")
    group.add_argument(
        "--steps", metavar="N", type=positive, help="stop after N steps (the founder's N holds)"
    )
    group.add_argument(
        "--global-batch",
        metavar="N",
        type=positive,
        help="samples a step (default: the cluster's, or the job's own)",
    )
    group.add_argument(
        "--micro-batch",
        metavar="N",
        type=positive,
        help="samples of a micro-batch, the unit of "
        "work that devices share (default: the global batch in 64 parts, of at least 8)",
    )
    group.add_argument(
        "--seed", metavar="N", type=seed, help="random seed (default the script's own, else 0)"
    )
    wires = group.add_mutually_exclusive_group()
    wires.add_argument(
        "--wire",
        choices=WIRES,
        help="how gradients travel: full, as they are (default, or what the script says), bf16, "
        "rounded to bfloat16, which halves the bytes, or exact",
    )
    wires.add_argument(
        "--exact",
        dest="wire",
        action="store_const",
        const="exact",
        help="add gradients up as integers, so that the result has the same bits on any number of "
        "devices of one kind, whatever joins and fails meanwhile (the same as --wire exact)",
    )
    group.add_argument(
        "--local-steps",
        metavar="H",
        type=positive,
        help="train in rounds of the samples of H global batches: each micro-batch (default: a "
        "quarter of the global batch) is a step that one device takes by itself, then all devices "
        "average; --steps counts rounds (default: no rounds, or what the script says)",
    )
    group.add_argument(
        "--outer",
        choices=OUTERS,
        help="what becomes of the average of a round: the new weights (average, default), or the "
        "gradient of a step with Nesterov's momentum (nesterov, as in DiLoCo)",
    )
    group.add_argument(
        "--mode",
        choices=MODES,
        help="whole: each device trains all of the model (default, or what the script says); "
        "subnets, with --local-steps: each a part of it, another one in each round and as large as "
        "the device is fast, by H steps of the global batch's samples",
    )
    _add_subnets(parser)
    _add_divided(parser)


def job_settings(args: argparse.Namespace, *, built_in: bool) -> dict[str, Any]:
    """Return what `args` say of the job, by the names of the fields of `TrainerConfig`.

    Raises `UsageError` for options of subnets if there are none; only of a job that is `built_in`
    is that known before it runs.
    """
    if args.mode == MODES[0] or (built_in and args.mode is None):
        for option in _OF_SUBNETS:
            if getattr(args, option) is not None:
                name = option.replace("_", "-")
                raise UsageError(f"--{name} says how subnets are divided: give --mode subnets, too")
    if built_in:  # a script's own arguments are known to the trainer alone
        _check_together(args)
    return {name: getattr(args, name) for name in _SETTINGS}


def _check_together(args: argparse.Namespace) -> None:
    """Raise `UsageError` for options that contradict each other, or that need another one."""
    rounds, divided = args.local_steps is not None, bool(args.shard_optimizer)
    if args.outer is not None and not rounds:
        raise UsageError("--outer says what ends a round of local steps: give --local-steps H, too")
    if args.mode == MODES[1]:
        if not rounds:
            raise UsageError("--mode subnets trains in rounds: give --local-steps H, too")
        for name, value in (("--micro-batch", args.micro_batch), ("--outer", args.outer)):
            if value is not None:
                raise UsageError(f"{name} does not go with --mode subnets: leave one of them away")
    for name, value in (("--copies", args.copies), ("--on-lost", args.on_lost)):
        if value is not None and not divided:
            raise UsageError(f"{name} is for a divided optimizer: give --shard-optimizer, too")
    if rounds and args.wire == "exact":
        raise UsageError(
            "--exact does not go with --local-steps, whose result depends on which device takes "
            "each step: leave one of them away"
        )
    if divided and rounds:
        raise UsageError("--shard-optimizer does not go with --local-steps: leave one of them away")
    if divided and args.wire in ("bf16", "exact"):
        raise UsageError(
            f"--shard-optimizer does not go with --wire {args.wire}: leave one of them away"
        )


def _add_subnets(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how the model is divided with `--mode subnets`."""
    group = parser.add_argument_group("subnets (part of the job: the same on every device)")
    group.add_argument(
        "--subnet-scale",
        choices=SUBNET_SCALES,
        help="with --mode subnets: multiply what a divided layer gives to the next one by the "
        "inverse of the part that is there (default, or what the script says), by the root of "
        "that, or not at all",
    )
    group.add_argument(
        "--subnet-minimum",
        metavar="PART",
        type=part,
        help="with --mode subnets: the smallest part of the model that a device gets, from 0 to 1, "
        "for example 0.05 (default 0, or what the script says)",
    )
    group.add_argument(
        "--subnet-period",
        metavar="ROUNDS",
        type=positive,
        help="with --mode subnets: draw the parts of the model anew after so many rounds (default "
        "1, or what the script says)",
    )
    group.add_argument(
        "--subnet-ewma",
        metavar="WEIGHT",
        type=weight,
        help="with --mode subnets: how much the last round counts in a device's speed, above 0 and "
        "up to 1; the rest is its speed before (default 0.8, or what the script says)",
    )


def _add_divided(parser: argparse.ArgumentParser) -> None:
    """Add the options of a divided optimizer state."""
    group = parser.add_argument_group("divided optimizer (--on-lost may differ between devices)")
    group.add_argument(
        "--shard-optimizer",
        action=argparse.BooleanOptionalAction,
        help="divide the optimizer's state among the devices, so that each needs less memory "
        "(default: what the script says, else no)",
    )
    group.add_argument(
        "--copies",
        metavar="K",
        type=copies,
        help="with --shard-optimizer: keep each part on K devices beside its owner, so that it "
        "survives if K devices are lost at once (default 1)",
    )
    group.add_argument(
        "--on-lost",
        choices=ON_LOST,
        help="with --shard-optimizer: if more devices are lost at once, so that parts of the "
        "optimizer's state are lost with them, wait for these devices (default), stop and save, or "
        "go on with these parts fresh, as at the beginning",
    )


def add_device_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what computes on this device, and when it does not."""
    group = parser.add_argument_group("this device")
    group.add_argument(
        "--device",
        metavar="DEVICE",
        help="cpu, cuda, cuda:N or mps: the model is moved there, and a script finds it as "
        "trainer.device (default cpu, or where the script puts its model)",
    )
    group.add_argument(
        "--overlap",
        action=argparse.BooleanOptionalAction,
        help="let gradients leave while backward() still computes others, on the CPU: for scripts "
        "that do not change them after backward() (default: what the script says, else no; "
        "built-in jobs: yes)",
    )
    group.add_argument(
        "--threads",
        metavar="N",
        type=threads,
        help="processor threads of the trainer (default: torch's choice, divided among the agents "
        "that you run on this device)",
    )
    group.add_argument(
        "--pause-on-battery",
        action="store_true",
        help="compute nothing while this device runs on battery: the others take its share",
    )
    group.add_argument(
        "--pause-on-activity",
        metavar="SECONDS",
        type=positive,
        help="compute nothing while this device was used within the last SECONDS",
    )
    group.add_argument(
        "--pause-on-metered",
        action="store_true",
        help="leave the cluster while the network connection is metered, and join again then",
    )
