"""`speech-commands`: 35 spoken words, three fully connected layers on their spectrograms."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

import torch

from edgeagent.errors import UsageError
from edgeagent.trainer.jobs.classification import accuracy_on, classification_loss
from edgeagent.trainer.jobs.job import Job, warm_then_decay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HIDDEN = 512
GLOBAL_BATCH = 256
STEPS = 3000
LEARNING_RATE = 1e-3
WARM_STEPS = 100
HALF_STEPS = 800
LINE_EVERY = 10_000  # recordings, where no bar can be drawn


def make(device: torch.device, data: str) -> Job:
    """Build the job; `data`: the folder of the words or the archive, "" looks in the cache.

    Raises `UsageError`, here or in `Job.data`, if the data cannot be had.
    """
    from models.download import DataError
    from models.fully_connected import fully_connected_net
    from models.log_mel import BANDS, FRAMES
    from models.speech_commands import WORDS, SpeechCommands

    def recordings(train: bool) -> SpeechCommands:
        try:
            with features_bar() as progress:
                return SpeechCommands(train, data or None, progress=progress)
        except DataError as error:
            raise UsageError(str(error)) from None

    model = fully_connected_net(FRAMES * BANDS, HIDDEN, len(WORDS)).to(device)
    return Job(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=1e-2),
        rate=warm_then_decay(WARM_STEPS, HALF_STEPS),
        data=recordings,
        loss=classification_loss,
        evaluate=accuracy_on("test recordings"),
        global_batch=GLOBAL_BATCH,
        steps=STEPS,
    )


@contextlib.contextmanager
def features_bar() -> Iterator[Callable[[int, int], None]]:
    """Yield what is told how many recordings of how many have been read (0: unknown).

    It draws a bar on stderr if that is a terminal, and prints a line now and then otherwise.
    Nothing is shown if the features come from the cache.
    """
    if not sys.stderr.isatty():
        yield _line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("speech-commands: features"), BarColumn(), MofNCompleteColumn())
    with contextlib.ExitStack() as stack:
        bar = Progress(*columns, console=Console(stderr=True))
        task = bar.add_task("features", total=None)

        def draw(done: int, total: int) -> None:
            if done == 1:
                stack.enter_context(bar)
            bar.update(task, completed=done, total=total or None)

        yield draw


def _line(done: int, total: int) -> None:
    if done == 1 or done % LINE_EVERY == 0 or done == total:
        of = f" of {total}" if total else ""
        text = f"speech-commands: features of {done}{of} recordings"
        print(text, file=sys.stderr, flush=True)
