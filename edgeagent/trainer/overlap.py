"""Gradients that leave while `backward()` still computes others.

`backward()` computes the gradients of the last layers first. In the last micro-batch of a node's
share, each gradient is added to the node's sum as soon as it is final, and the agent is told of the
chunks that are ready by that. So most of the round takes place while the device computes, and an
iteration takes about as long as the longer of both, instead of both.

That is right only if nothing changes a gradient between `backward()` and `update()`, since what has
left cannot be taken back. Nobody can know that of a script beforehand. So this is used only if it
was asked for; at first it only watches whether the script keeps to that, and stays off if not. A
script that begins to change gradients later is refused.
"""

from __future__ import annotations

import threading
import warnings
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING

import torch

from edgeagent.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.utils.hooks import RemovableHandle

    from edgeagent.trainer.gradients import GradientSum, VectorLayout

# In how many shares the script is watched before any gradient leaves early: in the second one
# whatever a script does only in the first has passed.
WATCHED_SHARES = 2
# About how often in a micro-batch the agent is told of chunks: often enough to keep links busy, and
# so seldom that it costs nothing.
MOST_MESSAGES = 16
_CHANGED = (
    "the gradient of {} was changed after backward() had computed it (by clipping, scaling or a"
    " second backward())"
)


class _Mode(Enum):
    WATCHES = auto()
    STREAMS = auto()
    OFF = auto()


class Overlap:
    """Adds gradients to `sums` when they are final, and says which chunks are ready by that.

    `layout` is that of the vector; `parameters` are the trainable parameters in canonical order,
    and `names` are theirs. They must be on the CPU, where `sums` lies in the shared memory.
    """

    def __init__(
        self,
        layout: VectorLayout,
        sums: GradientSum,
        parameters: Sequence[torch.nn.Parameter],
        names: Sequence[str],
    ) -> None:
        self._sums = sums
        self._parameters = list(parameters)
        self._names = list(names)
        self._mode = _Mode.WATCHES
        self._watched = 0  # shares in which the script was watched
        # First and last data chunk of each parameter, counted from 1.
        self._chunks = [
            (
                1 + offset // layout.chunk_elements,
                1 + (offset + p.numel() - 1) // layout.chunk_elements,
            )
            for offset, p in zip(layout.gradient_offsets, parameters, strict=True)
        ]
        self._parts = [0] * (layout.gradient_chunks + 1)  # parameters in each chunk
        for first, last in self._chunks:
            for chunk in range(first, last + 1):
                self._parts[chunk] += 1
        self._step = -(-layout.gradient_chunks // MOST_MESSAGES)  # chunks of one message
        self._announce: Callable[[int], None] | None = None
        self._thread = 0  # of the script; hooks of another one must not use the agent's socket
        self._missing: list[int] = []  # parameters that are not final yet, for each chunk
        self._ready = 0  # bitmap of chunks that are ready and not announced
        self._count = 0  # how many these are
        # Number -> gradient that is final, and its version then.
        self._final: dict[int, tuple[torch.Tensor, int]] = {}
        self._changed = ""  # name of a parameter whose gradient changed after it was final
        self._hooks: list[RemovableHandle] = [
            parameter.register_post_accumulate_grad_hook(partial(self._accumulated, number))
            for number, parameter in enumerate(self._parameters)
        ]

    @property
    def is_open(self) -> bool:
        """Whether the sum has gradients of a micro-batch that has not come to its end."""
        return self._mode is _Mode.STREAMS and bool(self._final)

    def release(self) -> None:
        """Take the hooks off the parameters, because training is over."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._announce = None

    def forget(self) -> None:
        """Forget the micro-batch, because the sum begins anew."""
        self._final, self._announce, self._changed = {}, None, ""

    def begin(self, announce: Callable[[int], None] | None) -> None:
        """A micro-batch begins. If it is the last one of a share, `announce` is called with the
        bitmap of chunks that are ready, again and again; else it is None.

        Raises `UsageError` if the micro-batch before was given up after gradients had left.
        """
        if self.is_open:
            raise UsageError(
                "a micro-batch was given up after its gradients had left: let the error of update()"
                " end the script, or start without overlap"
            )
        self.forget()
        if announce is None or self._mode is _Mode.OFF:
            return
        self._announce, self._thread = announce, threading.get_ident()
        self._missing = list(self._parts)
        self._ready = self._count = 0

    def check(self) -> None:
        """The micro-batch is over, and its gradients are as the script leaves them.

        Raises `UsageError` if one has changed after it had left, and warns if one would have.
        """
        if self._announce is None:
            return
        self._announce = None
        for number, (gradient, version) in self._final.items():
            now = self._parameters[number].grad
            if now is not gradient or now._version != version:
                self._changed = self._changed or self._names[number]
        said = _CHANGED.format(self._changed)
        if self._changed and self._mode is _Mode.STREAMS:
            raise UsageError(
                f"{said}, when it was on its way to other devices already: leave gradients as they"
                " are (max_grad_norm= clips the mean), or start all devices without overlap"
            )
        if self._changed:
            self._mode = _Mode.OFF
            warnings.warn(f"{said}, so gradients will not leave during backward()", stacklevel=4)
        elif self._final:
            self._watched += 1

    def end(self) -> None:
        """The sum has all of the micro-batch."""
        self._final = {}
        if self._mode is _Mode.WATCHES and self._watched >= WATCHED_SHARES:
            self._mode = _Mode.STREAMS

    def taken(self, number: int) -> bool:
        """Whether the sum has the gradient of parameter `number` of this micro-batch already."""
        return self._mode is _Mode.STREAMS and number in self._final

    def _accumulated(self, number: int, parameter: torch.Tensor) -> None:
        """The engine has added to a parameter's gradient, and adds no more in this `backward()`."""
        announce, gradient = self._announce, parameter.grad
        if announce is None or gradient is None or threading.get_ident() != self._thread:
            return
        if number in self._final:  # another backward(), or one within it (checkpoint)
            self._changed = self._changed or self._names[number]
            return
        if gradient.layout != torch.strided:
            return  # refused when the micro-batch ends
        self._final[number] = (gradient, gradient._version)
        if self._mode is not _Mode.STREAMS:
            return
        self._sums.take(number)
        first, last = self._chunks[number]
        for chunk in range(first, last + 1):
            self._missing[chunk] -= 1
            if not self._missing[chunk]:
                self._ready |= 1 << chunk
                self._count += 1
        if self._count >= self._step:
            announce(self._ready)
            self._ready = self._count = 0
