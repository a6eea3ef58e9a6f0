"""What a job needs of a device's memory, added up, and whether the device has it.

Pure sums: what is free comes from `memory.py`, what the trainer measured from its rehearsal
(`trainer/rehearsal.py`). A device that cannot hold a job is found before the shared memory is
created, since the system ends processes without a word once memory is used up. Sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeagent.errors import EdgeAgentError
from edgeagent.shared_memory import mapped_bytes, region_sizes
from edgeagent.terminal.text import bytes_text
from protocols import limits

if TYPE_CHECKING:
    from edgeagent.handover import Rehearsed
    from edgeagent.memory import Room

# What an agent at work was seen to take beside an idle one: for links alone, and while others join.
LINK_BUFFERS_LEAST, LINK_BUFFERS_MOST = 24 << 20, 96 << 20
LITTLE_SHARED_FILES = 256 << 20  # in /dev/shm; what containers have by default is 64 MiB
REMEDY = "use a smaller model, or an optimizer that remembers less"


@dataclass(frozen=True, slots=True)
class Part:
    """One line of the sum. `how`: "computed" from shapes, or "measured" on this device."""

    name: str
    bytes: int
    how: str


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a job needs: `always`, plus the larger of what a micro-batch and an update need in
    passing; `later` only now and then, and not counted. Of what is there always, `held` is divided
    among the devices, with `copies` of each part."""

    always: tuple[Part, ...]
    micro_batch: tuple[Part, ...]
    update: tuple[Part, ...]
    later: tuple[Part, ...]
    held: int = 0
    copies: int = 0

    @property
    def need(self) -> int:
        """Return the most that is needed at one time, if this device has all that is divided."""
        return _total(self.always) + max(_total(self.micro_batch), _total(self.update))

    def need_beside(self, devices: int) -> int:
        """Return the most that is needed at one time on each of so many devices."""
        return self.need - self.held + -(-self.held * min(devices, 1 + self.copies) // devices)

    @property
    def is_measured(self) -> bool:
        """Return whether a micro-batch and an update were run."""
        return any(part.how == "measured" for part in (*self.micro_batch, *self.update))


def footprint(found: Rehearsed, agent: int) -> Footprint:
    """Return the sum from what a trainer reported; `agent`: what an idle agent takes, measured."""
    state, own, even, odd, replay, _, _, _ = region_sizes(
        found.state_bytes, found.elements, found.accumulate
    )
    always = [
        Part("training state (weights, optimizer, buffers)", mapped_bytes(state), "computed"),
        Part("gradient sum of this device", mapped_bytes(own), "computed"),
    ]
    if found.held:
        always += [
            Part("new weights of the cluster", mapped_bytes(even), "computed"),
            Part("divided optimizer state, all of it", found.held, "computed"),
        ]
    else:
        both = mapped_bytes(even) + mapped_bytes(odd)
        always.append(Part("gradient sums of the cluster, two", both, "computed"))
    always.append(Part("trainer process (torch, script, data)", found.process, "measured"))
    if found.workers:
        always.append(Part("data loader's workers", found.workers, "measured"))
    always.append(Part("agent process", agent, "measured"))
    frames = min(LINK_BUFFERS_MOST, mapped_bytes(state) + mapped_bytes(own))
    buffers = max(LINK_BUFFERS_LEAST, frames)
    always.append(Part("agent's buffers for links", buffers, "computed"))
    changes = mapped_bytes(found.state_bytes - found.constant_bytes)
    kept = limits.LEAST_LOGGED_UPDATES * mapped_bytes(even)
    # They are kept by the agent, and handed to the trainer through a region of their own.
    late = mapped_bytes(replay) + limits.LEAST_KEPT_UPDATES * mapped_bytes(even)
    later = (
        # Without room for both a device copies nothing for one that joins; others do, or all wait.
        Part("snapshot for a device that joins", changes, "computed"),
        Part("updates kept for it, at the least", kept, "computed"),
        Part("updates kept while the trainer is late, at the least", late, "computed"),
    )
    gradients = Part("gradients of a micro-batch", found.gradient_bytes, "computed")
    beyond = max(0, found.micro_batch - found.gradient_bytes)
    if not found.is_measured:
        return Footprint(
            tuple(always),
            (gradients,),
            (Part("mean of the gradients", own, "computed"),),
            later,
            found.held,
            found.copies,
        )
    return Footprint(
        tuple(always),
        (gradients, Part("activations and workspace beyond them", beyond, "measured")),
        (Part("update: mean gradients and workspace", found.update, "measured"),),
        later,
        found.held,
        found.copies,
    )


def needed_at_start(
    state_bytes: int, elements: int, accumulate: str, *, divided: bool = False
) -> int:
    """Return what a trainer takes, at the least, on top of what it has when it shares its state:
    the regions that are reserved, and the mean that the first update makes of the gradients. The
    gradients take the place of the weights, which move into the shared memory. If the optimizer's
    state is `divided`, others may have all of it, and the mean is made in small parts."""
    state, own, even, odd, _, marks, _, _ = region_sizes(state_bytes, elements, accumulate)
    regions = (state, own, even, marks) if divided else (state, own, even, odd, marks)
    return sum(mapped_bytes(size) for size in regions) + (0 if divided else own)


def check_it_fits(
    state_bytes: int, elements: int, accumulate: str, room: Room, *, divided: bool = False
) -> None:
    """Raise `EdgeAgentError` if a trainer's memory certainly cannot be had here, swap included."""
    need = needed_at_start(state_bytes, elements, accumulate, divided=divided)
    most = room.with_swap
    if most is not None and need > most:
        raise EdgeAgentError(
            f"this device cannot hold the job: training state and gradient sums need"
            f" {bytes_text(need)} of memory and {bytes_text(most)} are free; {REMEDY}"
        )


def verdict(sum_up: Footprint, room: Room) -> tuple[bool | None, str]:
    """Return whether the job fits, None where that is not known, and one line that says so."""
    need, free, most = sum_up.need, room.free, room.with_swap
    least = "" if sum_up.is_measured else "at least "
    if free is None or most is None:
        return (
            None,
            f"the job needs {least}{bytes_text(need)}; this system does not say what is free",
        )
    if need <= free:
        left = bytes_text(free - need)
        return True, f"fits: the job needs {least}{bytes_text(need)}, which leaves {left} free"
    if need <= most:
        return True, (
            f"fits only with swap: the job needs {least}{bytes_text(need)} and {bytes_text(free)}"
            " are free without it; every step will be slow"
        )
    if (devices := _enough(sum_up, most)) is not None:
        return True, (
            f"fits if at least {devices} devices train together: each then needs"
            f" {least}{bytes_text(sum_up.need_beside(devices))} of {bytes_text(most)} that are free"
        )
    return False, (
        f"does not fit: the job needs {least}{bytes_text(need)} and {bytes_text(most)} are free;"
        f" {REMEDY}, or a smaller --micro-batch on all devices"
    )


def _enough(sum_up: Footprint, most: int) -> int | None:
    """Return among how many devices a job has to be divided to need no more than `most`, None if
    that does not help."""
    counts = range(2, limits.MAX_MEMBERS + 1 if sum_up.held else 2)
    return next((n for n in counts if sum_up.need_beside(n) <= most), None)


def remarks(found: Rehearsed, room: Room) -> list[str]:
    """Return what else a user should know, a sentence each."""
    said: list[str] = []
    little = room.shared_files is not None and room.shared_files < LITTLE_SHARED_FILES
    if found.workers and little:
        said.append(
            f"the loader's workers pass samples through /dev/shm, which has only"
            f" {bytes_text(room.shared_files or 0)} free (of a container: docker run --shm-size=1g)"
        )
    if found.device != "cpu":
        said.append(f"the memory of {found.device} itself is not counted here")
    return said


def _total(parts: tuple[Part, ...]) -> int:
    return sum(part.bytes for part in parts)
