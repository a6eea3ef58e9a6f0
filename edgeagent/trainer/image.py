"""The flat training state on the device where the trainer works on it.

On the CPU the trainer works in the memory that it shares with the agent. On any other device it
works in an image: one block of that device's memory with the same layout, in which parameters and
optimizer slots lie. "Bringing home" copies the whole image into the shared memory, and "taking
over" copies the shared memory into the image. Each is one copy of the whole block, because a copy
for each tensor would cost far more than its bytes. A tensor that cannot lie in the image, such as
the step counter that Adam keeps on the CPU, is called a stray and copied by itself.

Tensors that never change, such as a frozen base, lie at the beginning of the state. They are the
largest part of it where a low-rank adapter is trained, and once the shared memory has them they are
not copied again.

With a divided optimizer the update of the weights is made in the shared memory, by the processor of
every device alike. These tensors are "written at home": they go out to the image after each update,
and never come home.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from edgeagent.trainer.staging import Staging

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from mmap import mmap

    from edgeagent.trainer.layout import StateLayout

CPU = torch.device("cpu")


class StateImage:
    """The state on `device`; `views` has every tensor of it by its name in the layout.

    `apart` says that the image is not the shared memory itself. Passing `apart=True` forces that on
    the CPU, too, for a model that is spread over several devices and for tests. `written_home`
    names the tensors that updates write in the shared memory.
    """

    def __init__(
        self,
        layout: StateLayout,
        memory: mmap,
        device: torch.device,
        *,
        apart: bool = False,
        written_home: Collection[str] = (),
    ) -> None:
        self.device = device
        self.apart = apart or device != CPU
        self.staging = Staging(device)
        self.is_home = True  # the shared memory has what the image has
        self._shared = torch.frombuffer(memory, dtype=torch.uint8, count=max(1, layout.size))
        self._shared_views = layout.views(memory)
        self._flat = torch.zeros_like(self._shared, device=device) if self.apart else self._shared
        self.views = layout.cut(self._flat) if self.apart else self._shared_views
        self._written_home = written_home
        others = {spec.name for spec in layout.specs}.difference(written_home)
        self._to_device = layout.spans(written_home) if self.apart else ()
        self._to_home = layout.spans(others) if self.apart else ()
        self._constant_bytes = layout.constant_bytes
        self._has_constants = False  # whether the shared memory has those of the image

    def holds(self, device: torch.device) -> bool:
        """Return whether a tensor on `device` can be a view of the image; else it is a stray."""
        return device == self.device

    def changed(self) -> None:
        """Note that the trainer has changed the image, so the shared memory may be out of date."""
        self.is_home = not self.apart

    def bring_home(self, strays: Mapping[str, torch.Tensor], *, whole: bool = False) -> None:
        """Copy the image, and each of the `strays` by its name, into the shared memory; but not
        what updates write there, and, unless the `whole` state is wanted, not what never changes
        and is there."""
        known = self._constant_bytes if self._has_constants and not whole else 0
        for start, end in self._to_home:
            first = max(start, known)
            if first < end:
                self.staging.copy(self._flat[first:end], self._shared[first:end])
        for name, tensor in strays.items():
            if name not in self._written_home:
                self._shared_views[name].copy_(tensor)
        self.is_home = self._has_constants = True

    def send_out(self, strays: Mapping[str, torch.Tensor]) -> None:
        """Copy what is written in the shared memory into the image, and into those of the `strays`
        that are."""
        for start, end in self._to_device:
            self.staging.copy(self._shared[start:end], self._flat[start:end])
        for name, tensor in strays.items():
            if name in self._written_home:
                tensor.copy_(self._shared_views[name])

    def take_over(self) -> None:
        """Copy the shared memory into the image. Strays are left to the caller; see `at_home`."""
        if self.apart:
            self.staging.copy(self._shared, self._flat)
        self.is_home = self._has_constants = True

    def received(self, vector: torch.Tensor) -> torch.Tensor:
        """Return `vector`, which is on the CPU, where the image is; the same one on the CPU."""
        if not self.apart:
            return vector
        target = torch.empty_like(vector, device=self.device)
        self.staging.copy(vector, target)
        return target

    def home(self, count: int) -> memoryview:
        """Return the first `count` bytes of the shared memory."""
        return self._shared[:count].numpy().data

    def at_home(self, name: str) -> torch.Tensor:
        """Return the tensor called `name` as the shared memory has it, on the CPU."""
        return self._shared_views[name]


def device_of(tensors: Iterable[torch.Tensor]) -> torch.device:
    """Return the first device that is not the CPU, for most of the work is there; else the CPU."""
    return next((tensor.device for tensor in tensors if tensor.device != CPU), CPU)
