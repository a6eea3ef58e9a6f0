"""The flat training state where the trainer works on it.

Law: on the CPU that is the shared memory itself. For any other device it is an image of the shared
memory there, with the same layout, in which parameters and optimizer slots lie; it becomes the
shared memory's content when it is brought home, in one copy, and takes that over in one. A tensor
that cannot lie in the image, such as the step counter that Adam keeps on the CPU, is copied by
itself then (a stray).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from edgeagent.trainer.staging import Staging

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from mmap import mmap

    from edgeagent.trainer.layout import StateLayout

CPU = torch.device("cpu")


class StateImage:
    """`views`: every tensor of the state by name, where the trainer works on it.

    `device`: where that is. `apart` forces an image of its own on the CPU, too.
    """

    def __init__(
        self, layout: StateLayout, memory: mmap, device: torch.device, *, apart: bool = False
    ) -> None:
        self.device = device
        self.apart = apart or device != CPU
        self.staging = Staging(device)
        self.is_home = True  # the shared memory has what the image has
        self._shared = torch.frombuffer(memory, dtype=torch.uint8, count=max(1, layout.size))
        self._shared_views = layout.views(memory)
        self._flat = torch.zeros_like(self._shared, device=device) if self.apart else self._shared
        self.views = layout.cut(self._flat) if self.apart else self._shared_views

    def holds(self, device: torch.device) -> bool:
        """Return whether a tensor there can be a view of the image; else it is a stray."""
        return device == self.device

    def changed(self) -> None:
        """The trainer has changed the image."""
        self.is_home = not self.apart

    def bring_home(self, strays: Mapping[str, torch.Tensor]) -> None:
        """Make the shared memory what the image, and each of the `strays` by name, is."""
        if self.apart:
            self.staging.copy(self._flat, self._shared)
        for name, tensor in strays.items():
            self._shared_views[name].copy_(tensor)
        self.is_home = True

    def take_over(self) -> None:
        """Make the image what the shared memory is; strays are the caller's, see `stray`."""
        if self.apart:
            self.staging.copy(self._shared, self._flat)
        self.is_home = True

    def stray(self, name: str) -> torch.Tensor:
        """Return what the shared memory has for a stray."""
        return self._shared_views[name]


def device_of(tensors: Iterable[torch.Tensor]) -> torch.device:
    """Return where most of the work is: the first device that is no CPU, else the CPU."""
    return next((tensor.device for tensor in tensors if tensor.device != CPU), CPU)
