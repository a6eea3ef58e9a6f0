"""Module buffers (batch norm's statistics and the like) across micro-batches and nodes.

Every micro-batch starts from the buffers that the iteration began with, so that its result does not
depend on which node computes it or in which order. After the round a floating-point buffer is the
mean of its values after each micro-batch. Any other buffer, such as a counter, has no mean that
makes sense, so all micro-batches must leave the same value in it. The mean is taken of the change,
so that rounding never alters a buffer that nobody changes. An element that starts out infinite or
NaN, as in a mask for attention, has no such change, so it contributes its value instead. That
cannot be where sums are of integers, which hold no infinity, nor with subnets, where perhaps no
device has the element and its sum is 0. There it keeps its value, and a change of it is refused.

The module works on buffers of its own, and the training state changes only when a step is applied.
Between two rounds everything stays on the device. What the micro-batches left in the buffers that
must agree is read when the share is handed in (`exact`, `exact_agree`), in one copy, because each
copy waits for the device.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import torch

from edgeagent.errors import EdgeAgentError, UsageError
from protocols import limits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgeagent.trainer.gradients import VectorLayout

# What `exact` begins with: the number of buffers in it.
_COUNT = struct.Struct("<I")
# What comes before the bytes of each buffer: its number, and how many bytes they are.
_ENTRY = struct.Struct("<II")


def is_averaged(buffer: torch.Tensor) -> bool:
    """Return whether `buffer` is averaged; if not, all micro-batches must agree on its value."""
    return buffer.dtype.is_floating_point


class ModelBuffers:
    """All buffers of one model, numbered in canonical order; a tied buffer counts once. With
    `fixed` elements that are infinite or NaN must stay as they are."""

    def __init__(self, model: torch.nn.Module, *, fixed: bool = False) -> None:
        self._model = model
        self._fixed = fixed
        # The averaged buffers with such elements; None if they have not been looked for.
        self._fixed_in: list[int] | None = None
        owners: dict[int, list[tuple[torch.nn.Module, str]]] = {}
        for module in model.modules():
            for key, buffer in module._buffers.items():
                if buffer is not None:
                    owners.setdefault(id(buffer), []).append((module, key))
        found = dict(sorted(model.named_buffers()))
        self.names = list(found)
        self._working = list(found.values())
        self._owners = [owners[id(buffer)] for buffer in self._working]
        self._count = sum(len(places) for places in owners.values())
        self._shared: list[torch.Tensor] = []  # the iteration's buffers, in the training state
        self._sums: dict[int, torch.Tensor] = {}  # of the changes of averaged buffers, by number
        # What the first micro-batch left in each buffer on which all must agree, by number.
        self._left: dict[int, torch.Tensor] = {}
        # Whether a later micro-batch left anything else: a bool on the device, None for no.
        self._differs: torch.Tensor | None = None
        # `exact` and `exact_agree`, once they have been read from the device.
        self._found: tuple[bytes, bool] | None = None

    def averaged(self) -> list[int]:
        """Return the numbers of the buffers that are averaged."""
        return [n for n, buffer in enumerate(self._working) if is_averaged(buffer)]

    def exact_sizes(self) -> tuple[tuple[int, int], ...]:
        """Return (number, size in bytes) of each buffer on which all micro-batches must agree."""
        averaged = self.averaged()
        every = enumerate(self._working)
        return tuple((n, buffer.nbytes) for n, buffer in every if n not in averaged)

    def sizes(self) -> list[int]:
        """Return the numbers of elements of the averaged buffers."""
        return [self._working[n].numel() for n in self.averaged()]

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the module's own buffers by name."""
        return dict(zip(self.names, self._working, strict=True))

    def attach(
        self,
        shared: Mapping[str, torch.Tensor],
        layout: VectorLayout,
        vector: torch.Tensor,
        start: int = 0,
    ) -> None:
        """Use `shared` (by name) as the iteration's buffers, and `vector` for this node's sums.

        `vector` has the places of the flat vector from `start` on. The present values of the
        model's buffers become those of the iteration.
        """
        self._shared = [shared[name] for name in self.names]
        for view, buffer in zip(self._shared, self._working, strict=True):
            view.copy_(buffer)
        self._sums = self.section(layout, vector, start)

    def section(
        self, layout: VectorLayout, vector: torch.Tensor, start: int = 0
    ) -> dict[int, torch.Tensor]:
        """Return the part of a flat vector that belongs to each averaged buffer, by its number;
        `vector` has the places from `start` on."""
        return {
            n: vector[offset - start :][: self._working[n].numel()].view(self._working[n].shape)
            for n, offset in zip(self.averaged(), layout.buffer_offsets, strict=True)
        }

    def clear(self) -> None:
        """Forget what the micro-batches of the last iteration left."""
        self._left = {}
        self._differs = self._found = self._fixed_in = None

    @property
    def exact(self) -> bytes:
        """Return what the micro-batches left in those buffers on which they must agree.

        Only buffers that changed are in it. Raises `UsageError` if it is more than a message holds.
        """
        return self._look()[0]

    @property
    def exact_agree(self) -> bool:
        """Return whether all micro-batches left the same in these buffers."""
        return self._look()[1]

    def restore(self, *, averaged: bool = True) -> None:
        """Set the module's buffers to those that the iteration began with.

        A buffer that `forward()` replaced by another tensor is put back as well. With `averaged`
        False the buffers that are averaged keep their values: they go along with a device's own
        weights from one local step to the next.
        """
        places = zip(self._owners, self._working, self._shared, strict=True)
        for number, (owners, working, shared) in enumerate(places):
            keeps = not averaged and number in self._sums
            for module, key in owners:
                value = module._buffers[key]
                if value is not working:
                    if keeps and value is not None:
                        working.copy_(value)
                    module._buffers[key] = working
            if not keeps:
                working.copy_(shared)

    def collect(self, along: int = 0) -> None:
        """Take in what one micro-batch left in the buffers.

        `along` is 0, or how many local steps the averaged buffers have gone along with: their
        change since the round began then counts as often, instead of what was taken in before.

        Raises `UsageError` if a buffer changed its shape or dtype, or what must stay as it is, or
        if one came or went.
        """
        for number, (name, shared) in enumerate(zip(self.names, self._shared, strict=True)):
            module, key = self._owners[number][0]
            value = module._buffers.get(key)
            if value is None or value.shape != shared.shape or value.dtype != shared.dtype:
                raise UsageError(f"buffer {name} changed its shape or dtype while training")
            after = value.detach().to(shared.device)
            if number in self._sums:
                if along:
                    after = _finite(shared, after)
                    value.detach().copy_(after)  # the next local step begins with it
                    self._sums[number].zero_()
                self._check_fixed(number, shared, after)
                _add_change(self._sums[number], shared, after, along or 1, fixed=self._fixed)
            else:
                self._keep(number, after)
        self._check_new()

    def averaged_names(self) -> list[str]:
        """Return the names of the buffers that are averaged."""
        return [self.names[n] for n in self._sums]

    def put_change(
        self, name: str, after: torch.Tensor, weight: int, index: tuple[Any, ...]
    ) -> None:
        """Make `weight` times its change to `after` all that the sum has of a buffer, or of its
        elements at `index`, () for all. Raises `UsageError` if what must stay as it is changed."""
        number = self.names.index(name)
        total, start = self._sums[number], self._shared[number]
        change = torch.zeros_like(total[index] if index else total)
        begun = start[index] if index else start
        self._check_fixed(number, begun, after)
        _add_change(change, begun, _finite(begun, after), weight, fixed=self._fixed)
        if index:
            total[index] = change
        else:
            total.copy_(change)

    def apply(self, means: Mapping[int, torch.Tensor], exact: bytes) -> None:
        """Make the buffers of the next iteration.

        `means` has the means of the changes of the averaged buffers, by number, and `exact` the
        bytes of the others that changed. Raises `EdgeAgentError` if `exact` does not fit.
        """
        for number, data in _read_exact(exact):
            view = self._shared[number] if number < len(self._shared) else None
            if view is None or number in self._sums or view.nbytes != len(data):
                raise EdgeAgentError("the agent reported impossible buffers")
            view.view(-1).view(torch.uint8).copy_(
                torch.frombuffer(bytearray(data), dtype=torch.uint8)
            )
        for number, mean in means.items():
            shared = self._shared[number]
            after = shared + mean.to(torch.promote_types(shared.dtype, mean.dtype))
            endless = shared if self._fixed else mean
            shared.copy_(torch.where(torch.isfinite(shared), after, endless))
        self._fixed_in = None
        self.restore()

    def disagreeing(self) -> str:
        """Return the names of all buffers on which micro-batches must agree, for a message."""
        return ", ".join(n for k, n in enumerate(self.names) if k not in self._sums)

    def _keep(self, number: int, after: torch.Tensor) -> None:
        """Keep what the first micro-batch left, and compare what each later one left with it."""
        self._found = None
        first = self._left.setdefault(number, after)
        if first is after:
            self._left[number] = after.clone()
            return
        differs = (after != first).any()
        self._differs = differs if self._differs is None else self._differs | differs

    def _check_fixed(self, number: int, start: torch.Tensor, after: torch.Tensor) -> None:
        """Raise `UsageError` if an element that must stay infinite or NaN has not."""
        if not self._fixed:
            return
        if self._fixed_in is None:
            infinite = [(n, ~torch.isfinite(self._shared[n]).all()) for n in self._sums]
            flags = torch.stack([flag for _, flag in infinite]).tolist()  # one copy from the device
            self._fixed_in = [n for (n, _), flag in zip(infinite, flags, strict=True) if flag]
        if number not in self._fixed_in:
            return
        same = (start == after) | (start.isnan() & after.isnan())
        if not bool((torch.isfinite(start) | same).all()):
            raise UsageError(
                f"buffer {self.names[number]}: an element that is infinite or NaN has changed. With"
                " --exact and with subnets it would have to stay as it is, because no sum can tell"
                " such a change. Let the buffer begin with numbers, or leave that mode away"
            )

    def _look(self) -> tuple[bytes, bool]:
        if self._found is None:
            self._found = self._read_left() if self._left else (b"", True)
        return self._found

    def _read_left(self) -> tuple[bytes, bool]:
        """Return what changed, packed, and whether all agree, with one copy from the device."""
        pairs = [(self._left[n], self._shared[n]) for n in self._left]
        parts = [tensor.reshape(-1).view(torch.uint8) for pair in pairs for tensor in pair]
        if self._differs is not None:
            parts.append(self._differs.reshape(1).view(torch.uint8))
        data = torch.cat(parts).cpu().numpy().tobytes()
        changed: list[tuple[int, bytes]] = []
        at = 0
        for number, (left, _) in zip(self._left, pairs, strict=True):
            after, before = data[at : at + left.nbytes], data[at + left.nbytes :][: left.nbytes]
            if after != before:
                changed.append((number, after))
            at += 2 * left.nbytes
        return self._packed(changed), self._differs is None or not data[-1]

    def _packed(self, changed: Sequence[tuple[int, bytes]]) -> bytes:
        exact = _COUNT.pack(len(changed)) + b"".join(
            _ENTRY.pack(number, len(data)) + data for number, data in changed
        )
        if len(exact) > limits.MAX_INTEGER_BUFFER_BYTES:
            names = ", ".join(self.names[number] for number, _ in changed)
            raise UsageError(
                f"buffers {names}: more than {limits.MAX_INTEGER_BUFFER_BYTES} bytes of integer"
                " buffers change in an iteration"
            )
        return exact

    def _check_new(self) -> None:
        count = sum(
            buffer is not None
            for module in self._model.modules()
            if module._buffers
            for buffer in module._buffers.values()
        )
        if count != self._count:
            raise UsageError("the model got or lost a buffer while training")


def _finite(start: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Return `after`, with the number from `start` for each that has become infinite or NaN. A step
    whose gradient is not finite is left out on the device that meets it. What its `forward()` left
    in batch norm's statistics would otherwise get into those of all devices, and stay there."""
    return torch.where(torch.isfinite(start) & ~torch.isfinite(after), start, after)


def _add_change(
    total: torch.Tensor, start: torch.Tensor, after: torch.Tensor, weight: int, *, fixed: bool
) -> None:
    """Add `weight` times the change from `start` to `after` to `total`, computed in the wider of
    the dtypes. For an element that starts out infinite or NaN that is 0 if `fixed`, else its new
    value."""
    wide = torch.promote_types(start.dtype, total.dtype)
    wide_after = after.to(wide)
    instead = torch.zeros_like(wide_after) if fixed else wide_after
    change = torch.where(torch.isfinite(start), wide_after - start.to(wide), instead)
    total.add_(change.to(total.dtype), alpha=weight)


def _read_exact(data: bytes) -> list[tuple[int, bytes]]:
    """Return the (number, bytes) pairs that `_packed` wrote; raise `EdgeAgentError` otherwise."""
    if not data:
        return []
    try:
        (count,) = _COUNT.unpack_from(data)
        entries, at = [], _COUNT.size
        for _ in range(count):
            number, length = _ENTRY.unpack_from(data, at)
            at += _ENTRY.size
            if at + length > len(data):
                raise EdgeAgentError("the agent reported impossible buffers")
            entries.append((number, data[at : at + length]))
            at += length
    except struct.error:
        raise EdgeAgentError("the agent reported impossible buffers") from None
    if at != len(data):
        raise EdgeAgentError("the agent reported impossible buffers")
    return entries
