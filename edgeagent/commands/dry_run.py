"""`edgeagent run JOB --dry-run`: what the job needs of this device's memory, and whether it has it.

No agent is started and no cluster looked for: the job's own trainer starts, computes one
micro-batch and one update on nothing but this device, and reports (`trainer/rehearsal.py`). Where
the memory does not suffice for that, or the system ends the trainer meanwhile, what follows from
the shapes alone is shown.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, TypedDict

from edgeagent import memory
from edgeagent.errors import EdgeAgentError
from edgeagent.footprint import Footprint, Part, footprint, remarks, verdict
from edgeagent.handover import Decoder, Rehearsed
from edgeagent.launch import how_it_ended, start_trainer, stop_trainer
from edgeagent.plain_json import json_text
from edgeagent.terminal.text import bytes_text, clean, plural

if TYPE_CHECKING:
    import socket
    from typing import TextIO

    from rich.table import Table

    from edgeagent.config import TrainerConfig
    from edgeagent.launch import Job
    from edgeagent.memory import Room

_READ_BYTES = 1 << 16
_NO_ROOM = 1  # exit status where the job does not fit


class PartFigures(TypedDict):
    """One line of the sum, as JSON."""

    name: str
    bytes: int
    how: str
    when: str


class DryRun(TypedDict):
    """What `--json` prints. Sizes are bytes; None is what the system does not say. `measured`:
    whether a micro-batch and an update were run."""

    job: str
    parameters: int
    micro_batch: int
    fits: bool | None
    verdict: str
    measured: bool
    need_bytes: int
    free_bytes: int | None
    free_with_swap_bytes: int | None
    available_bytes: int | None
    swap_free_bytes: int
    group_free_bytes: int | None
    dev_shm_free_bytes: int | None
    parts: list[PartFigures]
    remarks: list[str]


def dry_run(job: Job, config: TrainerConfig, *, as_json: bool) -> int:
    """Rehearse `job` and print its memory; return 0 if it fits (or nobody can tell), else 1.

    Raises `EdgeAgentError` if the job ended before it said anything of its memory, or because of a
    fault of its own.
    """
    room = memory.room()  # before the job takes any
    found, status = _rehearse(job, config)
    if found is None:
        raise EdgeAgentError(
            f"{job.name} ended with {how_it_ended(status)} before its first loader(), so its memory"
            " is not known"
        )
    summed = footprint(found, _agent_bytes())
    fits, line = verdict(summed, room)
    if not found.is_measured and fits is not False:
        if status != -signal.SIGKILL:
            raise EdgeAgentError(
                f"{job.name} ended with {how_it_ended(status)} in its first micro-batch, so its"
                " memory is not known"
            )
        fits, line = (
            False,
            (
                "does not fit: the system killed the trainer in its first micro-batch, as it does"
                f" where memory is used up; the job needs at least {bytes_text(summed.need)}"
            ),
        )
    report = _report(job, found, summed, room)
    report["fits"], report["verdict"] = fits, line
    if as_json:
        print(json_text(report))
    else:
        _print(report, sys.stdout)
    return _NO_ROOM if fits is False else 0


def _rehearse(job: Job, config: TrainerConfig) -> tuple[Rehearsed | None, int]:
    """Return the last that the trainer reported, None for nothing, and its exit status."""
    process, ours = start_trainer(job, config, os.environ, stdout_to_stderr=True)
    try:
        with ours:
            found = _last_report(ours)
    finally:
        status = stop_trainer(process)
    return found, status


def _last_report(connection: socket.socket) -> Rehearsed | None:
    decoder, found = Decoder(), None
    while data := connection.recv(_READ_BYTES):
        for message in decoder.feed(data):
            if isinstance(message, Rehearsed):
                found = message
    return found


def _agent_bytes() -> int:
    """Return what an agent takes that has nothing to do: this process with the agent's modules."""
    import edgeagent.agent  # noqa: F401 - loaded to be measured

    used = memory.usage()
    return used.private if used else 0


def _report(job: Job, found: Rehearsed, summed: Footprint, room: Room) -> DryRun:
    groups: tuple[tuple[str, tuple[Part, ...]], ...] = (
        ("always", summed.always),
        ("micro-batch", summed.micro_batch),
        ("update", summed.update),
        ("seldom", summed.later),
    )
    return {
        "job": job.name,
        "parameters": found.parameters,
        "micro_batch": found.micro_batch_size,
        "fits": None,
        "verdict": "",
        "measured": summed.is_measured,
        "need_bytes": summed.need,
        "free_bytes": room.free,
        "free_with_swap_bytes": room.with_swap,
        "available_bytes": room.available,
        "swap_free_bytes": room.swap,
        "group_free_bytes": room.group,
        "dev_shm_free_bytes": room.shared_files,
        "parts": [
            {"name": part.name, "bytes": part.bytes, "how": part.how, "when": when}
            for when, parts in groups
            for part in parts
        ],
        "remarks": remarks(found, room),
    }


def _print(report: DryRun, stream: TextIO) -> None:
    """Write the report for people: the parts, what is free, the verdict."""
    from edgeagent.terminal.status_view import rich_console

    console = rich_console(stream)
    size = f"{report['parameters']:,} parameters, {plural(report['micro_batch'], 'sample')}"
    console.print(f"{clean(report['job'])}: {size} in a micro-batch")
    console.print(_parts_table(report))
    for line in report["remarks"]:
        console.print(f"note: {line}", soft_wrap=True)
    console.print(report["verdict"], soft_wrap=True)


def _parts_table(report: DryRun) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("memory", "size", "found by", "when"):
        is_size = heading == "size"  # the one column that is of no use if it is cut
        table.add_column(heading, justify="right" if is_size else "left", no_wrap=is_size)
    for part in report["parts"]:
        table.add_row(part["name"], bytes_text(part["bytes"]), part["how"], part["when"])
    table.add_section()
    table.add_row("needed at one time", bytes_text(report["need_bytes"]), "", "")
    for name, free in (
        ("free without swap", report["free_bytes"]),
        ("free swap", report["swap_free_bytes"]),
        ("left by the control group", report["group_free_bytes"]),
        ("free in /dev/shm", report["dev_shm_free_bytes"]),
    ):
        if free is not None:
            table.add_row(name, bytes_text(free), "", "")
    return table
