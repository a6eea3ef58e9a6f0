"""The optimizer's state divided among the devices, as ElasWave and ZeRO do.

The script's optimizer is never stepped. For each chunk of the gradient vector whose slots this
device keeps, an optimizer of the same class is made for a moment over the pieces of parameters in
that chunk, with their slots as its memory, and is stepped. That gives the same bits as stepping
whole parameters if the optimizer treats each element by itself, which is tried out first.

All this is done on the CPU, whatever device the model is on: the weights that updates write are
those in the shared memory, from which a model elsewhere gets a copy after each update. So devices
with and without a GPU make the same updates.

What is no tensor of a parameter's shape in an optimizer's memory (its count of steps, for example)
every device keeps (`stand_ins.py`).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from edgeagent.errors import UsageError
from edgeagent.held_memory import HeldLayout
from edgeagent.marks import MARK_STRIPES
from edgeagent.slots_file import mark_of
from edgeagent.trainer.block_steps import count_of, is_ready, steps_of
from edgeagent.trainer.exact_arithmetic import ExactArithmetic
from edgeagent.trainer.gradients import clip_coefficient, is_finite
from edgeagent.trainer.image import CPU
from edgeagent.trainer.mean import Mean
from edgeagent.trainer.owed_slots import OwedSlots
from edgeagent.trainer.pieces import joined, pieces_of
from edgeagent.trainer.settings import NOT_SCALARS
from edgeagent.trainer.slots import HOOKS, discover_slots, lone_optimizer
from edgeagent.trainer.stand_ins import StandIns
from protocols import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping
    from mmap import mmap

    from torch.optim import Optimizer

    from edgeagent.dataplane.snapshot import Snapshot
    from edgeagent.handover import Publish, Reduced
    from edgeagent.slot_steps import SlotStep
    from edgeagent.trainer.gradients import VectorLayout
    from edgeagent.trainer.image import StateImage
    from edgeagent.trainer.layout import StateLayout
    from edgeagent.trainer.pieces import Piece

# The shape of the parameter with which slices are tried out, and where it is cut.
_TRIAL_SHAPE = (61, 67)
_TRIAL_CUTS = (0, 1000, 1017, 61 * 67)
_TRIAL_STEPS = 3
_TRIAL_RATE = 0.01
# About how many elements are stepped at a time: enough that the fixed cost of a step does not
# matter, and so few that their mean gradients and copied slots take little memory.
_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class _Update:
    """How the sums of an iteration become gradients, and which parameters have one (bits)."""

    mean: Mean
    bitmap: int


class Shards:
    """Steps the slots that this device keeps. `names` has the trainable parameters in canonical
    order. Raises `UsageError` if the optimizer's state cannot be divided."""

    def __init__(
        self,
        optimizer: Optimizer,
        names: Mapping[torch.nn.Parameter, str],
        vector: VectorLayout,
        max_grad_norm: float | None,
    ) -> None:
        self._optimizer = optimizer
        self._parameters = list(names)
        self._vector = vector
        self._max_grad_norm = max_grad_norm
        self._check(optimizer, names)
        slots = discover_slots(optimizer, names, CPU)
        for slot in slots:
            shape = tuple(self._parameters[slot.parameter].shape)
            if slot.spec.shape not in (shape, ()) or slot.spec.dtype != torch.float32:
                raise UsageError(
                    f"{slot.spec.name} is no float32 tensor like its parameter, so the optimizer's"
                    " state cannot be divided: leave --shard-optimizer away"
                )
        full = [s for s in slots if s.spec.shape == tuple(self._parameters[s.parameter].shape)]
        self.slot_names = sorted({s.slot for s in full if s.spec.shape})
        if not self.slot_names:
            raise UsageError(
                f"{type(optimizer).__name__} remembers nothing of a parameter's size here, so there"
                " is nothing to divide: leave --shard-optimizer away"
            )
        self.layout = HeldLayout(len(self.slot_names), vector.elements, vector.chunk_elements)
        self.stand_ins = StandIns(optimizer, names, self.layout.stripes)
        self._blocks = steps_of(optimizer, CPU)
        chunks = vector.gradient_chunks
        self.owed = OwedSlots(optimizer, self._blocks, self.layout, self.slot_names, chunks)
        self._names = tuple(names.values())
        self._pieces = pieces_of(vector, [p.numel() for p in self._parameters])
        numbers = {p: n for n, p in enumerate(self._parameters)}
        self._members = [
            {numbers[p] for p in group["params"] if p in numbers}
            for group in optimizer.param_groups
        ]
        # The stripes whose slots are kept here, all until the agent says otherwise.
        self.stripes: tuple[int, ...] = tuple(range(self.layout.stripes))

    def _check(self, optimizer: Optimizer, names: Mapping[torch.nn.Parameter, str]) -> None:
        for parameter, name in names.items():
            if parameter.dtype != torch.float32:
                raise UsageError(
                    f"{name} is {parameter.dtype}: with --shard-optimizer parameters are float32"
                    " (compute with less under torch.autocast)"
                )
            if not parameter.is_contiguous():
                raise UsageError(f"{name} is not contiguous, as --shard-optimizer needs it")
        if any(getattr(optimizer, hooks, None) for hooks in HOOKS):
            raise UsageError(
                f"{type(optimizer).__name__} has hooks for its steps, which are not run if its"
                " state is divided: leave --shard-optimizer away"
            )
        if any(optimizer.state.values()):
            raise UsageError("with --shard-optimizer the optimizer must not have stepped before")
        if trouble := trouble_in_slices(optimizer):
            raise UsageError(
                f"{type(optimizer).__name__} {trouble}, so its state cannot be divided: leave"
                " --shard-optimizer away"
            )

    @property
    def written_home(self) -> set[str]:
        """Return the names in the state's layout of what an update writes in the shared memory."""
        return {self.stand_ins.spec.name, *(f"model.{name}" for name in self._names)}

    def attach(self, held: mmap, contribution: torch.Tensor, marks: Any, image: StateImage) -> None:
        """Use these regions of the shared memory: `held`, P for results, `marks`, and in that of
        the state, which `image` knows, the weights."""
        self._marks = marks
        self._home = [image.at_home(f"model.{name}").view(-1) for name in self._names]
        for weights, parameter in zip(self._home, self._parameters, strict=True):
            weights.copy_(parameter.detach().view(-1))
        self.stand_ins.attach(image.at_home(self.stand_ins.spec.name))
        self.keep(self.stripes)
        self._held = torch.frombuffer(held, dtype=torch.float32, count=self.layout.bytes // 4)
        self._results = contribution
        self.owed.attach(self._held, marks)

    def keep(self, stripes: Iterable[int]) -> None:
        """From now on the slots of these stripes are here; note it for the agent, too."""
        self.owed.all()
        self.stripes = tuple(stripes)
        if not self.stripes:  # the state is another one, which may have no slots yet
            self.owed.forget()
        bits = sum(1 << s for s in self.stripes)
        for word in range(limits.MAX_STRIPES // 64):
            part = bits >> (64 * word) & ((1 << 64) - 1)
            self._marks[MARK_STRIPES + word] = part - (1 << 64) if part >> 63 else part

    def places(self, layout: StateLayout) -> tuple[tuple[int, int, int], ...]:
        """Return of each parameter its first element in the gradient vector, its first byte in the
        state, and its number of elements."""
        homes = {name: offset for name, offset, _ in layout.tensors()}
        every = zip(self._vector.gradient_offsets, self._names, self._parameters, strict=True)
        return tuple((at, homes[f"model.{name}"], p.numel()) for at, name, p in every)

    def mark(self, state: memoryview | Snapshot, layout: StateLayout) -> str:
        """Return the mark of the weights in a training state (`slots_file.mark_of`)."""
        return mark_of(state, self.places(layout))

    @property
    def gradient_chunks(self) -> int:
        """The number of chunks that hold gradients, and so have slots."""
        return self._vector.gradient_chunks

    def slot_memory(self, number: int, chunk: int) -> torch.Tensor:
        """Return where the slot with this number of `slot_names` lies for a chunk."""
        return self._held[self.layout.slot(number, chunk)]

    # --- updates ----------------------------------------------------------------------------------

    def publish(self, wanted: Publish, scale: float) -> None:
        """Put the new weights of the stripes that this device owns into P, of which nobody needs
        what it had there any more. Where sums are lost, these are the old weights, and changes of
        buffers that are zero."""
        self.owed.all()
        lost = dict.fromkeys(self._chunks(wanted.lost))
        chunks = self._chunks(wanted.stripes)
        for chunk in chunks:
            start, end = self.layout.span(chunk)
            if chunk in lost:
                self._results[start:end].zero_()
            elif chunk > self._vector.gradient_chunks:
                self._results[start:end] = self._held[self.layout.sums(chunk)]
            for piece in self._pieces.get(chunk, []):
                self._result(piece).copy_(self._weights(piece))
        update = self._update_of(wanted, scale)
        if update is None:
            return
        anew = dict.fromkeys(self._chunks(self.stand_ins.with_these(wanted.anew)))
        for some in self._batches([c for c in chunks if c not in lost], anew):
            self._step(some, self._result, update, keep=False, anew=anew)

    def begin_anew(self, stripes: Iterable[int], kept: Container[int]) -> None:
        """Have the slots of these stripes begin anew, because all who had kept them are lost. Only
        the stripes in `kept` are kept here from now on."""
        self.owed.all()
        every = self.stand_ins.with_these(stripes)
        self.stand_ins.begin_anew(stripes)
        self.owed.forget()
        for chunk in self._chunks(s for s in every if s in kept):
            for number in range(len(self.slot_names)):
                self.slot_memory(number, chunk).zero_()

    def _result(self, piece: Piece) -> torch.Tensor:
        """Return where the result of a piece lies."""
        return self._results[piece.first : piece.first + piece.length]

    def apply(self, reduced: Reduced, vector: torch.Tensor, scale: float, *, missed: bool) -> None:
        """Make the update of an iteration: take over the weights in `vector`, which is R, and step
        the slots that this device keeps with the sums in the region `held` (those `missed` there),
        or put that off (`owed`)."""
        update = self._update_of(reduced, scale)
        now = missed or reduced.slots_now
        if update is not None and (step := self._to_owe(update, now=now)) is not None:
            self.owed.owe(step, reduced.stripes)
        elif update is not None:
            self._step_slots(reduced, update, missed=missed)
        self._take_weights(vector)
        with ExactArithmetic():
            self.stand_ins.step(reduced.gradient_bitmap)

    def _to_owe(self, update: _Update, *, now: bool) -> SlotStep | None:
        """Return the step of the slots if it may be put off."""
        if now or not self.stripes:  # an update that was missed is followed by others at once
            return None
        all_have = update.bitmap + 1 == 1 << len(self._parameters)
        return self.owed.step_for(update.mean, self.stand_ins, all_have=all_have)

    def _step_slots(self, reduced: Reduced, update: _Update, *, missed: bool) -> None:
        """Step the slots of the stripes that this device keeps, and their weights with them."""
        for some in self._batches(self._chunks(reduced.stripes)):
            self._step(some, self._weights, update, keep=True, missed=missed)

    def _weights(self, piece: Piece) -> torch.Tensor:
        """Return where the weights of a piece lie."""
        return self._home[piece.parameter][piece.start : piece.start + piece.length]

    def _chunks(self, stripes: Iterable[int]) -> list[int]:
        return sorted(c for s in stripes for c in self.layout.chunks_of(s))

    def _update_of(self, told: Publish | Reduced, scale: float) -> _Update | None:
        """Return how sums become gradients, None if the step is skipped."""
        if not is_finite(told.square_sums, self._vector):
            return None
        weight = told.weight
        coefficient = clip_coefficient(
            told.square_sums, self._vector, weight * scale, self._max_grad_norm
        )
        bitmap = int.from_bytes(told.gradient_bitmap, "little")
        return _Update(Mean(weight, scale, coefficient), bitmap)

    def _batches(self, chunks: list[int], anew: Container[int] = ()) -> Iterator[list[Piece]]:
        """Yield the pieces in these chunks of which an optimizer remembers the same kind of things:
        several at a time, since each step has a fixed cost."""
        count = max(1, _AT_ONCE // self._vector.chunk_elements)
        generations = self.stand_ins.generations()

        def kind(chunk: int) -> tuple[int, bool]:
            return generations[self.layout.stripe_of(chunk)], chunk in anew

        for first in range(0, len(chunks), count):
            some = chunks[first : first + count]
            yield joined((piece for c in some for piece in self._pieces.get(c, [])), kind)

    def _step(
        self,
        pieces: list[Piece],
        place: Callable[[Piece], torch.Tensor],
        update: _Update,
        *,
        keep: bool,
        missed: bool = False,
        anew: Container[int] = (),
    ) -> None:
        """Step what lies at the `place` of each piece; with `keep` the slots are stepped, too. Sums
        are those `missed`, if so. Of the chunks `anew` nothing is remembered."""
        groups = self._groups()
        others: list[tuple[Piece, torch.Tensor]] = []
        for piece in pieces:
            if not update.bitmap >> piece.parameter & 1:
                continue
            sums = self._held[self.layout.part_of_sums(piece.first, piece.length, missed=missed)]
            group, stripe = groups[piece.parameter], self.layout.stripe_of(piece.chunk)
            memory = self.stand_ins.memory(piece.parameter, stripe)
            blocks = self._blocks if piece.chunk not in anew else None
            if blocks is not None and is_ready(self._optimizer, group, memory):
                slots = {k: view for k, view in self._views(piece).items() if k in memory}
                count = count_of(memory) + 1
                blocks.step(place(piece), sums, update.mean, slots, group, count, keep=keep)
            else:
                others.append((piece, sums))
        if others:
            self._step_others(others, place, update, keep=keep, anew=anew)

    def _step_others(
        self,
        pieces: list[tuple[Piece, torch.Tensor]],
        place: Callable[[Piece], torch.Tensor],
        update: _Update,
        *,
        keep: bool,
        anew: Container[int],
    ) -> None:
        """Step pieces, each given with its sums, with an optimizer that is made for this moment."""
        leaves = [torch.nn.Parameter(place(piece)) for piece, _ in pieces]
        optimizer = self._momentary([piece for piece, _ in pieces], leaves)
        views: list[dict[str, torch.Tensor]] = []
        for (piece, sums), leaf in zip(pieces, leaves, strict=True):
            leaf.grad = update.mean.of(sums)
            views.append(self._views(piece))
            if piece.chunk in anew:
                continue
            if memory := self._memory_of(piece, views[-1], copied=not keep):
                optimizer.state[leaf] = memory
        with ExactArithmetic():
            type(optimizer).step(optimizer)
        if not keep:
            return
        for leaf, known in zip(leaves, views, strict=True):
            for slot, value in optimizer.state.get(leaf, {}).items():
                view = known.get(slot)
                if view is None or not isinstance(value, torch.Tensor):
                    continue
                if value.data_ptr() != view.data_ptr():
                    view.copy_(value)

    def _groups(self) -> dict[int, dict[str, Any]]:
        """Return the parameter group of each parameter, by number."""
        both = zip(self._optimizer.param_groups, self._members, strict=True)
        return {number: group for group, members in both for number in members}

    def _momentary(self, pieces: list[Piece], leaves: list[torch.nn.Parameter]) -> Optimizer:
        """Return an optimizer over these pieces, without memory."""
        groups = []
        for group, members in zip(self._optimizer.param_groups, self._members, strict=True):
            mine = [x for p, x in zip(pieces, leaves, strict=True) if p.parameter in members]
            if mine:
                scalars = {k: v for k, v in group.items() if k not in NOT_SCALARS}
                groups.append({**scalars, "params": mine})
        return lone_optimizer(self._optimizer, groups)

    def _views(self, piece: Piece) -> dict[str, torch.Tensor]:
        """Return where the slots of a piece lie, by name."""
        return {
            slot: self._held[self.layout.part_of_slot(number, piece.first, piece.length)]
            for number, slot in enumerate(self.slot_names)
        }

    def _memory_of(
        self, piece: Piece, views: Mapping[str, torch.Tensor], *, copied: bool
    ) -> dict[str, Any]:
        """Return what an optimizer remembers of a piece, as its stand-in says what there is."""
        memory: dict[str, Any] = {}
        stripe = self.layout.stripe_of(piece.chunk)
        for slot, value in self.stand_ins.memory(piece.parameter, stripe).items():
            if isinstance(value, torch.Tensor) and slot in views:
                memory[slot] = views[slot].clone() if copied else views[slot]
            else:
                memory[slot] = value.clone() if isinstance(value, torch.Tensor) else value
        return memory

    def _take_weights(self, vector: torch.Tensor) -> None:
        """Make the results in R the weights."""
        for weights, offset in zip(self._home, self._vector.gradient_offsets, strict=True):
            weights.copy_(vector[offset : offset + weights.numel()])


def trouble_in_slices(optimizer: Optimizer) -> str:
    """Return what is wrong with stepping parameters in slices on the CPU, as the end of a sentence
    that begins with the optimizer's name; "" if each group's settings give the same bits for a
    parameter as a whole and in slices."""
    for group in optimizer.param_groups:
        scalars = {k: v for k, v in group.items() if k not in NOT_SCALARS}
        scalars["lr"] = scalars.get("lr") or _TRIAL_RATE  # 0 at the beginning of a warm-up
        draw = torch.Generator().manual_seed(1)
        values = torch.randn(_TRIAL_SHAPE, generator=draw)
        whole = torch.nn.Parameter(values.clone())
        ends = list(itertools.pairwise(_TRIAL_CUTS))
        parts = [torch.nn.Parameter(values.view(-1)[a:b].clone()) for a, b in ends]
        both = [lone_optimizer(optimizer, [{**scalars, "params": x}]) for x in ([whole], parts)]
        for _ in range(_TRIAL_STEPS):
            gradient = torch.randn(_TRIAL_SHAPE, generator=draw)
            whole.grad = gradient.clone()
            for part, (a, b) in zip(parts, ends, strict=True):
                part.grad = gradient.view(-1)[a:b].clone()
            try:
                with (
                    ExactArithmetic()
                ):  # as slices are stepped: torch's own roots may differ by chance
                    for each in both:
                        type(each).step(each)
            except Exception as error:
                return f"cannot step parameters in slices on the CPU ({error})"
        if not torch.equal(whole.detach().view(-1), torch.cat([p.detach() for p in parts])):
            return "gives other numbers if parameters are stepped in slices"
    return ""
