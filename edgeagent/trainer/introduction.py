"""How a trainer introduces itself to its agent: its job and the layout of what they share.

Law: everything that the agent must know of a job beside the script is in this one message.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from edgeagent.handover import HANDOVER_VERSION, Hello
from edgeagent.trainer.script import script_statements

if TYPE_CHECKING:
    from edgeagent.trainer.fingerprint import Fields
    from edgeagent.trainer.state import TrainingState


def introduce(
    state: TrainingState, job: Fields, global_batch: int, micro_batch: int, steps: int, save: str
) -> Hello:
    """Return the first message. `job`: its fingerprint, taken before `state` was resumed; `save`:
    where the state is saved at the end, "" for nowhere."""
    vector = state.vector
    return Hello(
        version=HANDOVER_VERSION,
        pid=os.getpid(),
        job=job,
        state_bytes=state.layout.size,
        tensors=state.layout.tensors(),
        accumulate=vector.accumulate,
        elements=vector.elements,
        chunk_elements=vector.chunk_elements,
        micro_batches=global_batch // micro_batch,
        micro_batch_size=micro_batch,
        steps=steps,
        iteration=state.iteration,
        meta=state.meta(),
        parameters=state.trainable,
        exact_buffers=state.buffers.exact_sizes(),
        script=script_statements(),
        save=os.path.abspath(save) if save else "",
        shapes=tuple((spec.dtype_name, spec.shape) for spec in state.layout.specs),
        notes=tuple(state.notes().items()),
    )


def work_in_words(hello: Hello) -> str:
    """Return what an iteration consists of, for people."""
    count, size = hello.micro_batches, hello.micro_batch_size
    return (
        f"global batch {count * size} = {count} micro-batches of {size} samples, dealt to devices"
    )
