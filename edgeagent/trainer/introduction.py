"""How a trainer introduces itself to its agent: its job and the layout of what they share.

The agent neither imports torch nor reads the script. Everything that it must know of the job is in
this first message.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from edgeagent.errors import UsageError
from edgeagent.handover import HANDOVER_VERSION, Hello
from edgeagent.planner.work_cost import IN_PROPORTION
from edgeagent.terminal.text import plural
from edgeagent.trainer.script import script_statements
from protocols.cluster.stripes import OnLost

if TYPE_CHECKING:
    from edgeagent.trainer.fingerprint import Fields
    from edgeagent.trainer.state import TrainingState
    from edgeagent.trainer.subnets.options import SubnetOptions


def introduce(
    state: TrainingState,
    job: Fields,
    global_batch: int,
    micro_batch: int,
    steps: int,
    save: str,
    *,
    rounds: bool = False,
    local_steps: int = 0,
    subnets: SubnetOptions | None = None,
    copies: int = 0,
    on_lost: OnLost = OnLost.WAIT,
    lacking: int = 0,
) -> Hello:
    """Return the first message.

    `job` is the job's fingerprint. It is taken before `state` was resumed from a file, because all
    members must have the same and others do not resume. `save` is the file into which the state is
    written at the end, "" for none. `rounds`: gradients travel as bfloat16. `local_steps`: how many
    global batches a round of local steps has, 0 without such rounds. `subnets`: how these rounds
    are divided, None if they are not. `copies`, `on_lost` and `lacking` as in `Hello`. Raises
    `UsageError` if gradients cannot travel as bfloat16, because they are float64.
    """
    vector = state.vector
    cost = IN_PROPORTION if subnets is None else subnets.division.cost(state.model)
    if rounds and vector.accumulate != "float32":
        raise UsageError(f"wire bf16 is for float32 gradients, and these are {vector.accumulate}")
    count = global_batch // micro_batch
    return Hello(
        version=HANDOVER_VERSION,
        pid=os.getpid(),
        job=job,
        state_bytes=state.layout.size,
        tensors=state.layout.tensors(),
        accumulate=vector.accumulate,
        elements=vector.words,
        chunk_elements=vector.chunk_words,
        micro_batches=count,
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
        constant_bytes=state.layout.constant_bytes,
        constants=state.constants(),
        rounded_chunks=vector.gradient_chunks if rounds else 0,
        local_steps=local_steps,
        wide_bytes=vector.wide_bytes,
        in_cells=subnets is not None,
        fixed_cost=cost.fixed,
        square_cost=cost.square,
        slots=state.shards.layout.slots if state.shards is not None else 0,
        copies=copies,
        weights=state.shards.places(state.layout) if state.shards is not None else (),
        on_lost=on_lost.value,
        slot_names=tuple(state.shards.slot_names) if state.shards is not None else (),
        least_share=0 if subnets is None else subnets.least_cells(count),
        last_round_counts=0.0 if subnets is None else subnets.ewma,
        lacking=lacking,
    )


def work_in_words(hello: Hello) -> str:
    """Return in words what an iteration consists of, for a line that the user sees."""
    count, size = hello.micro_batches, hello.micro_batch_size
    work = f"{plural(count, 'micro-batch', 'es')} of {plural(size, 'sample')}"
    if hello.in_cells:
        least = f", at least {hello.least_share} for each device" if hello.least_share else ""
        return (
            f"global batch {count * size // hello.local_steps}, subnets: rounds of"
            f" {plural(hello.local_steps, 'such step')} on each device, the model in"
            f" {plural(count, 'part')}{least}"
        )
    if hello.local_steps:
        return (
            f"global batch {count * size // hello.local_steps},"
            f" {plural(hello.local_steps, 'local step')}:"
            f" rounds of {work}, each a step of its device"
        )
    return f"global batch {count * size} = {work}, dealt to devices"
