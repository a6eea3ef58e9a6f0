"""`python -m edgeagent.trainer.jobs NAME`: what `edgeagent run NAME` starts as the trainer."""

from __future__ import annotations

import os
import sys

import torch

from edgeagent.config import MODES, TrainerConfig, trainer_config_from
from edgeagent.errors import UsageError
from edgeagent.trainer import endings
from edgeagent.trainer.devices import usable_device
from edgeagent.trainer.jobs import cifar10, digits, fashion, speech_commands, text
from edgeagent.trainer.jobs.job import train_and_evaluate

JOBS = {
    "digits": digits.make,
    "fashion-mnist": fashion.make,
    "fashion-alexnet": fashion.make_alexnet,
    "cifar10": cifar10.make,
    "speech-commands": speech_commands.make,
    "text": text.make,
    "text-lora": text.make_lora,
}


def main(arguments: list[str]) -> None:
    """Run the job named by the one argument; raise `UsageError` if there is none of that name."""
    endings.watch_for_crashes()
    if len(arguments) != 1 or arguments[0] not in JOBS:
        raise UsageError(f"name one built-in job: {', '.join(JOBS)}")
    config = trainer_config_from(os.environ) or TrainerConfig()
    device = usable_device(config.device or "cpu")
    torch.manual_seed(config.seed or 0)
    try:
        job = JOBS[arguments[0]](device, config.data)
        by_parts = config.mode == MODES[1]
        train_and_evaluate(job, device, config.local_steps or 0, by_parts=by_parts)
    except FileNotFoundError:
        if os.path.exists("."):
            raise
        raise UsageError("the folder in which this was started is gone: start again") from None


if __name__ == "__main__":
    main(sys.argv[1:])
